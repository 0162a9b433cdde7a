"""`ebmcal train`: the models of a run without predictions and report; under torchrun, by several processes."""

from ebmcal.cli.options import with_config
from ebmcal.config import RunConfig


def train_config(config: RunConfig) -> None:
    """Train what is missing; `ebmcal run` with the same settings goes on from there."""
    import typer

    from ebmcal.runfolder import Cell, RunFolder
    from ebmcal.runs import train
    from ebmcal.training.processes import is_main_process

    config.require_output()
    folder = RunFolder(train(config, progress=True, shared_cache=True).folder)
    if is_main_process():
        cells = [Cell(method, seed) for seed in config.seeds for method in config.methods]
        typer.echo("\n".join(str(folder.model(cell)) for cell in cells))


train = with_config(train_config)
