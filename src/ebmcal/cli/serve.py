"""`ebmcal serve`: a model over HTTP, with an optional web UI."""

from pathlib import Path
from typing import Annotated

import typer

from ebmcal.serving import Limits

DEFAULT = Limits()


def serve(
    model: Annotated[Path, typer.Argument(help="Model directory: of a run, or any sequence classifier.")],
    ui: Annotated[bool, typer.Option("--ui", help="Add a web page at / to try the model.")] = False,
    baseline: Annotated[Path | None, typer.Option(help="Another model, shown next to it in the web UI.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.")] = 8000,
    log: Annotated[
        Path | None, typer.Option(help="Append all answers, without texts, to this .jsonl file (see ebmcal monitor).")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Also write texts to the logs.")] = False,
    max_body: Annotated[int, typer.Option(help="Maximum bytes per request (413).")] = DEFAULT.max_body,
    max_texts: Annotated[int, typer.Option(help="Maximum texts per request (422).")] = DEFAULT.max_texts,
    max_characters: Annotated[int, typer.Option(help="Maximum characters per text (422).")] = DEFAULT.max_characters,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens per request (422).")] = DEFAULT.max_tokens,
    max_queue: Annotated[int, typer.Option(help="Maximum texts in the queue (429).")] = DEFAULT.max_queue,
    max_buffered: Annotated[
        int, typer.Option(help="Maximum bytes of all request bodies in memory (503).")
    ] = DEFAULT.max_buffered,
    max_connections: Annotated[
        int, typer.Option(help="Maximum open connections; at most what the system allows.")
    ] = DEFAULT.max_connections,
    timeout: Annotated[float, typer.Option(help="Maximum seconds per request (504).")] = DEFAULT.timeout,
    header_timeout: Annotated[
        float, typer.Option(help="Maximum seconds until the headers of a request are complete.")
    ] = DEFAULT.header_timeout,
    batch_tokens: Annotated[int, typer.Option(help="Maximum tokens per batch.")] = DEFAULT.batch_tokens,
    batch_wait: Annotated[float, typer.Option(help="Maximum batching delay in seconds.")] = DEFAULT.batch_wait,
    stall: Annotated[float, typer.Option(help="Seconds without progress after which /healthz fails.")] = DEFAULT.stall,
) -> None:
    """Serve a model over HTTP: POST /v1/classify. Set EBMCAL_API_KEY in the environment to require an API key."""
    from ebmcal.errors import require_extra

    limits = Limits(
        max_body=max_body, max_texts=max_texts, max_characters=max_characters, max_tokens=max_tokens,
        max_queue=max_queue, max_buffered=max_buffered, max_connections=max_connections, timeout=timeout,
        header_timeout=header_timeout, batch_tokens=batch_tokens, batch_wait=batch_wait, stall=stall,
    )  # fmt: skip
    require_extra("serve", "httptools")
    from ebmcal.serving import server

    server.serve(
        model, ui=ui, baseline=baseline, host=host, port=port, limits=limits, log_texts=log_texts, log_file=log,
        report=lambda text: typer.echo(text, err=True),
    )  # fmt: skip
