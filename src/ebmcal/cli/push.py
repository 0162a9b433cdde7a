"""`ebmcal push`: a model folder to the Hugging Face hub. A thin call of `ebmcal.push`."""

from pathlib import Path
from typing import Annotated

import typer


def push(
    model: Annotated[Path, typer.Argument(help="A model folder: of a run, or any sequence classifier.")],
    name: Annotated[str, typer.Argument(help="USER/NAME on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="For everybody to see; private without it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
) -> None:
    """Send a model, its calibrator, its rule and its card to the hub; nothing else ever sends anything."""
    from ebmcal.report.model_card import CARD
    from ebmcal.sharing.push import cards_to_come, check_name, push, sent_files

    check_name(name)
    coming = cards_to_come(model)
    for path in sent_files(model):
        if not (coming and path.name == CARD):
            typer.echo(f"{path.stat().st_size / 1e6:10.2f} MB  {path.name}")
    for what in coming:
        typer.echo(f"{'':10}     {what}")
    if dry_run:
        typer.echo(f"{name}: nothing was sent (--dry-run).")
        return
    typer.echo(f"Sent to {push(model, name, private=not public)}")
