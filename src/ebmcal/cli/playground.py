"""`ebmcal playground`: a page to try a model on. A thin call of `ebmcal.playground.routes.playground`."""

from pathlib import Path
from typing import Annotated

import typer


def playground(
    model: Annotated[Path, typer.Argument(help="A model folder: of a run, or any sequence classifier.")],
    baseline: Annotated[Path | None, typer.Argument(help="Another one of the same labels, shown beside it.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
) -> None:
    """Serve a page where a text is typed and looked at: posterior, energy, decision, words."""
    from ebmcal.playground import routes

    routes.playground(model, baseline, host=host, port=port, say=lambda text: typer.echo(text, err=True))
