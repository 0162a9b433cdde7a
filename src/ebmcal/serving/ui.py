"""The web UI: a page next to the API on which a text or a file can be tried. `ebmcal serve MODEL --ui`.

This module explains the answer to a text, `ui_files` evaluates an uploaded file. `static/` is sent to the browser:
plain HTML, CSS and JavaScript without any other source.
"""

import asyncio
import re
import secrets
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from ebmcal.model import Model
from ebmcal.predictions.arrays import softmax
from ebmcal.selective import AbstentionRule
from ebmcal.selective.ood import OOD_SCORES
from ebmcal.selective.rule import SCORE_NAMES
from ebmcal.serving.app import require_key, respond
from ebmcal.serving.batcher import Text
from ebmcal.serving.schema import parse_request
from ebmcal.serving.service import Service
from ebmcal.serving.ui_files import describe_columns, predict_file, report_html

#: What the page may do: use files of this server and show a report in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {"/": ("index.html", "text/html"), "/ui.css": ("ui.css", "text/css"), "/ui.js": ("ui.js", "text/javascript")}

#: Words that are left out one at a time; of a longer text the first ones.
MAX_WORDS = 100

#: Limits of uploaded files: bytes, seconds for a report, reports that are kept.
MAX_FILE, REPORT_TIMEOUT, KEPT_REPORTS = 5_000_000, 600.0, 8


def add_ui(app: FastAPI, service: Service) -> None:
    """Add the page and its routes to an app."""
    for path, (name, media_type) in FILES.items():
        app.get(path, include_in_schema=False)(_file(name, media_type))
    protected: dict[str, Any] = {"include_in_schema": False, **require_key(service.api_key)}
    first = next(iter(service.engines.values()))
    about = {
        "models": list(service.engines),
        "histogram": stored_histogram(first.model),
        "is_pair": bool(first.model.is_pair),
        "is_energy_trained": first.describe()["is_energy_trained"],
    }

    @app.get("/ui/about", **protected)
    async def get_about() -> Response:
        return JSONResponse(about)

    @app.post("/ui/explain", **protected)
    async def explain(request: Request) -> Response:
        async def explain_first(content: bytes) -> dict[str, Any]:
            text = parse_request(content, service.limits)[0][0]
            models = [await _explain(service, name, text) for name in service.engines]
            return {"models": models, **await _word_effects(service, text, models[0])}

        return await respond(request, service, explain_first)

    _add_file_routes(app, service, protected)


def _add_file_routes(app: FastAPI, service: Service, protected: dict[str, Any]) -> None:
    reports: dict[str, str] = {}
    one_at_a_time = asyncio.Lock()  # a report needs a lot of memory
    limits: dict[str, Any] = {"media_type": "text/csv", "max_body": MAX_FILE}

    @app.post("/ui/columns", **protected)
    async def columns(request: Request) -> Response:
        async def describe(content: bytes) -> dict[str, Any]:
            return describe_columns(next(iter(service.engines.values())).model, content)

        return await respond(request, service, describe, **limits)

    @app.post("/ui/report", **protected)
    async def report(request: Request, text: str = "text", text_pair: str = "", label: str = "label") -> Response:
        async def create(content: bytes) -> dict[str, str]:
            async with one_at_a_time:
                predictions = await predict_file(service, content, text, text_pair or None, label)
                html = await asyncio.to_thread(report_html, predictions)
            name = secrets.token_urlsafe(16)
            reports[name] = html
            if len(reports) > KEPT_REPORTS:
                del reports[next(iter(reports))]
            return {"report": f"ui/report/{name}"}

        return await respond(request, service, create, **limits, timeout=REPORT_TIMEOUT)

    @app.get("/ui/report/{name}", include_in_schema=False)  # a frame cannot send the API key: the name is a secret
    async def stored_report(name: str) -> Response:
        if name not in reports:
            raise HTTPException(404, "This report does not exist any more. Create it again.")
        return HTMLResponse(reports[name], headers={"Content-Security-Policy": "sandbox allow-scripts"})


def _file(name: str, media_type: str) -> Callable[[], Any]:
    content = resources.files("ebmcal.serving").joinpath("static", name).read_bytes()

    async def send() -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return Response(content, media_type=media_type, headers=headers)

    return send


def stored_histogram(model: Model) -> dict[str, Any] | None:
    """The energy histograms that a run stored in the model directory, in the order in which they are shown."""
    try:
        edges = [float(edge) for edge in model.card["histograms"]["edges"]]
        shares = {str(n): [float(v) for v in values] for n, values in model.card["histograms"]["shares"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or an edited ebmcal.json
        return None
    order = [n for prefix in ("train", "noise", "ood_", "test") for n in shares if n.startswith(prefix)]
    return {"edges": edges, "shares": {name: shares[name] for name in order or shares}}


async def _explain(service: Service, name: str, text: Text) -> dict[str, Any]:
    (answer,) = await service.answer([text], name)
    engine = service.engines[name]
    info = engine.describe()
    logits = np.array([list(answer["logits"].values())])
    before = softmax(logits * (info["folded_temperature"] or 1.0))[0]
    return {
        **answer,
        "name": name,
        "before": dict(zip(answer["logits"], before.tolist(), strict=True)),
        "calibrator": info["calibrator"] or ("temperature, in the weights" if info["folded_temperature"] else None),
        "abstention": info["abstention"],
        "explanation": explain_decision(engine.rule, answer),
        "ood_score_name": OOD_SCORES[engine.rule.ood.score] if engine.rule and engine.rule.ood else None,
    }


def explain_decision(rule: AbstentionRule | None, answer: dict[str, Any]) -> str | None:
    """The score that the decision is based on and its threshold; None without a rule."""
    if rule is None:
        return None
    if answer["decision"] == "abstain":
        return str(answer["reason"])
    reasons = []
    if rule.score is not None and rule.guarantee is not None and rule.guarantee.threshold is not None:
        name, threshold = SCORE_NAMES[rule.score.name], rule.guarantee.threshold
        reasons.append(f"{name} is {answer['score']:.4g}, at least {threshold:.4g}")
    if rule.ood is not None and not rule.answer_ood:
        reasons.append(f"not out-of-distribution (p = {answer['ood_p_value']:.2g}, above {rule.ood.rate:g})")
    return "; ".join(reasons) or "the rule answers every text"


async def _word_effects(service: Service, text: Text, answer: dict[str, Any]) -> dict[str, Any]:
    """Each word with E(text) − E(text without it): positive if the word raises the energy."""
    (text,) = service.engines[answer["name"]].prepare([text])
    first = text if isinstance(text, str) else text[0]
    spans = [match.span() for match in re.finditer(r"\S+", first)]
    shown = spans[:MAX_WORDS] if len(spans) > 1 else []
    shorter = [first[:start] + first[end:].lstrip() for start, end in shown]
    variants: list[Text] = [*shorter] if isinstance(text, str) else [(variant, text[1]) for variant in shorter]
    size = max(1, min(service.limits.max_texts, service.limits.max_tokens // (answer["n_tokens"] + 2)))
    energies: list[float] = []
    for i in range(0, len(variants), size):
        energies += [found["energy"] for found in await service.answer(variants[i : i + size], answer["name"])]
    words = [
        {"start": start, "end": end, "word": first[start:end], "effect": answer["energy"] - energy}
        for (start, end), energy in zip(shown, energies, strict=True)
    ]
    return {"words": words, "n_words": len(spans)}
