"""The routes of the playground, added to the app of `ebmcal.serve`; and the process around it."""

import asyncio
import secrets
import warnings
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict

from ebmcal.errors import EbmcalError
from ebmcal.histograms import kept_histograms
from ebmcal.playground.looking import look
from ebmcal.playground.reporting import predictions_of, report_html
from ebmcal.serve.app import Refusal, Service, create_app, guarded, in_time, read_body, read_json_body
from ebmcal.serve.explaining import pair_trouble
from ebmcal.serve.limits import Limits
from ebmcal.serve.running import address, api_key, bound, check_rule, named_models, run_app

#: What the page may do: use what this server sends, and show a report of it in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {"/": "text/html", "/playground.css": "text/css", "/playground.js": "text/javascript"}

#: A larger batch than a server's: the variants of one text are to be one batch. A larger body: files.
LIMITS = Limits(max_body=5_000_000, batch_tokens=8192)
REPORT_SECONDS = 600.0
KEPT_REPORTS = 8


class Text(BaseModel):
    """A text to look at, with the second text of a pair."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    text_pair: str | None = None


def playground(
    model: str | Path,
    baseline: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a page to try a model on, beside a baseline where there is one: what `ebmcal playground` does."""
    key = api_key()
    check_rule(model, *([baseline] if baseline is not None else []))
    with bound(host, port) as place:
        models = named_models(model, *([baseline] if baseline is not None else []))
        labels = [loaded.label_names for loaded in models.values()]
        if any(names != labels[0] for names in labels):
            said = " and ".join(", ".join(names) for names in labels)
            raise EbmcalError(f"Model and baseline have different labels: {said}. Give two models of one task.")
        app = create_app(models, limits=LIMITS, api_key=key, extend=add_playground)
        run_app(app, place, LIMITS, say, f"the playground at {address(place)}")


def add_playground(app: FastAPI, service: Service) -> None:
    """Add the page and its routes to an app."""
    first = next(iter(service.models.values())).model
    histogram = kept_histograms(first.folder)
    shown = histogram and {
        "edges": histogram.edges.tolist(),
        "shares": {name: histogram.shares[name].tolist() for name in _shown(list(histogram.shares))},
    }
    for path, kind in FILES.items():
        app.get(path, include_in_schema=False)(_file(path, kind))
    hidden: dict[str, Any] = {"include_in_schema": False, **guarded(service)}

    @app.get("/playground/about", **hidden)
    async def about() -> Response:
        is_pair = first.columns_of(None, None, None).pair is not None
        return JSONResponse({"models": list(service.models), "histogram": shown, "is_pair": is_pair})

    @app.post("/playground/look", **hidden)
    async def look_at(request: Request) -> Response:
        async def answer() -> Response:
            asked = await read_json_body(request, Text, service.limits, pair_trouble)
            if max(len(asked.text), len(asked.text_pair or "")) > service.limits.max_characters:
                raise Refusal(422, f"Give a text of 1 to {service.limits.max_characters} characters.")
            return JSONResponse(await look(service, (asked.text, asked.text_pair)))

        return await in_time(answer(), service.limits.timeout)

    reports: dict[str, str] = {}
    one_at_a_time = asyncio.Lock()  # pictures are drawn in a thread, and matplotlib has state

    @app.post("/playground/report", **hidden)
    async def report(request: Request) -> Response:
        async def answer() -> Response:
            content = await read_body(request, "text/csv", service.limits)
            async with one_at_a_time:
                try:
                    html = await asyncio.to_thread(_quietly, await predictions_of(service, content))
                except EbmcalError as error:
                    raise Refusal(422, str(error)) from error
            name = secrets.token_urlsafe(16)
            reports[name] = html
            while len(reports) > KEPT_REPORTS:
                del reports[next(iter(reports))]
            return JSONResponse({"report": f"playground/report/{name}"})

        return await in_time(answer(), REPORT_SECONDS)

    @app.get("/playground/report/{name}", include_in_schema=False)  # a frame brings no key: the name is a secret
    async def kept_report(name: str) -> Response:
        if name not in reports:
            raise Refusal(404, "There is no such report any more. Make it again.")
        return HTMLResponse(reports[name], headers={"Content-Security-Policy": "sandbox allow-scripts"})


def _shown(splits: list[str]) -> list[str]:
    """Training and noise first, then texts from elsewhere and the test texts; calibration texts are like those.

    >>> _shown(["calibration", "noise", "ood_books", "test", "train"])
    ['train', 'noise', 'ood_books', 'test']
    """
    known = [name for name in ("train", "noise") if name in splits]
    others = [name for name in splits if name.startswith("ood_")]
    return [*known, *others, *(name for name in splits if name.startswith("test"))] or splits


def _quietly(named: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few rows: the page says so itself
        return report_html(named)


def _file(path: str, kind: str) -> Callable[[], Any]:
    name = path.lstrip("/") or "index.html"
    content = resources.files("ebmcal.playground").joinpath("page", name).read_bytes()

    async def send() -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return Response(content, media_type=kind, headers=headers)

    return send
