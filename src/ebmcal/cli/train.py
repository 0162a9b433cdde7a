"""`ebmcal train`: the models of a run without predictions and report; under torchrun, by several processes."""

from ebmcal.cli.options import with_config
from ebmcal.config import RunConfig


def train_config(config: RunConfig) -> None:
    """Train what is missing; `ebmcal run` with the same settings goes on from there."""
    import typer

    from ebmcal.pipeline.stages import train_only
    from ebmcal.progress import console_of_main_process
    from ebmcal.training.processes import is_main_process

    log = config.output / "log.txt" if config.output else None
    folders = train_only(config, console_of_main_process(log))
    if is_main_process():
        typer.echo("\n".join(map(str, folders)))


train = with_config(train_config)
