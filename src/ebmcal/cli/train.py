"""`ebmcal train`: the models of a run without predictions and report; under torchrun, by several processes."""

from ebmcal.cli.options import with_config
from ebmcal.config import RunConfig


def train_config(config: RunConfig) -> None:
    """Train what is missing; `ebmcal run` with the same settings goes on from there."""
    import typer

    from ebmcal.pipeline import train_only
    from ebmcal.progress import console_of_main_process

    reporter, log = console_of_main_process, config.output and config.output / "log.txt"
    for folder in train_only(config, reporter(log)):
        typer.echo(folder)


train = with_config(train_config)
