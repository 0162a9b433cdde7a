"""`ebmcal serve`: a model folder over HTTP. A thin call of `ebmcal.serve.running.serve`."""

from pathlib import Path
from typing import Annotated

import typer

from ebmcal.serve.limits import Limits

DEFAULT = Limits()


def serve(
    model: Annotated[Path, typer.Argument(help="A model folder: of a run, or any sequence classifier.")],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    max_body: Annotated[int, typer.Option(help="Bytes of a request (413).")] = DEFAULT.max_body,
    max_texts: Annotated[int, typer.Option(help="Texts of a request (422).")] = DEFAULT.max_texts,
    max_characters: Annotated[int, typer.Option(help="Characters of a text (422).")] = DEFAULT.max_characters,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a request (422).")] = DEFAULT.max_tokens,
    max_queue: Annotated[int, typer.Option(help="Texts that wait for the model (429).")] = DEFAULT.max_queue,
    timeout: Annotated[float, typer.Option(help="Seconds for a request (504).")] = DEFAULT.timeout,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a batch.")] = DEFAULT.batch_tokens,
    batch_wait: Annotated[float, typer.Option(help="Seconds a batch waits for company.")] = DEFAULT.batch_wait,
    stall: Annotated[float, typer.Option(help="Silent seconds of the worker until /healthz fails.")] = DEFAULT.stall,
    log: Annotated[
        Path | None, typer.Option(help="Append what was answered to this .jsonl, for ebmcal watch; without texts.")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write texts to the logs.")] = False,
) -> None:
    """Serve a model over HTTP: POST /v1/classify. The environment variable EBMCAL_API_KEY asks for a key."""
    limits = Limits(
        max_body, max_texts, max_characters, max_tokens, max_queue, timeout, batch_tokens, batch_wait, stall
    )
    from ebmcal.serve import running

    running.serve(
        model, host=host, port=port, limits=limits, log_texts=log_texts, log_file=log,
        say=lambda text: typer.echo(text, err=True),
    )  # fmt: skip
