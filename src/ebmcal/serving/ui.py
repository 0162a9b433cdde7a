"""The web UI: a page next to the API on which a text or a file can be tried. `ebmcal serve MODEL --ui`.

The answer to a text is explained; an uploaded CSV file, with labelled texts or predictions of any classifier, is
evaluated. The page has the frame and the style of reports: plain HTML, CSS and JavaScript without any other source.
"""

import asyncio
import csv
import io
import re
import secrets
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from ebmcal.data import as_dataset
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.model import Model
from ebmcal.predictions import Predictions, softmax
from ebmcal.predictions.files import FileColumns, read_columns
from ebmcal.reports.page import environment, read_asset
from ebmcal.selective import AbstentionRule
from ebmcal.selective.ood import OOD_SCORES
from ebmcal.selective.rule import SCORE_NAMES
from ebmcal.serving.app import parse_request, require_key, respond
from ebmcal.serving.batcher import Text
from ebmcal.serving.service import Service

#: What the page may do: use files of this server and show a report in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

#: Words that are left out one at a time; of a longer text the first ones.
MAX_WORDS = 100

#: Limits of uploaded files: bytes, rows, columns, seconds for a report, reports that are kept.
MAX_FILE, MAX_ROWS, MAX_COLUMNS, REPORT_TIMEOUT, KEPT_REPORTS = 5_000_000, 2000, 1000, 600.0, 8

#: Of the intervals in a report.
N_RESAMPLES = 200

_ONE_REPORT = threading.Lock()  # matplotlib is not thread-safe, and a report of a disconnected client is still drawn


def add_ui(app: FastAPI, service: Service) -> None:
    """Add the page and its routes to an app."""
    page = environment().get_template("ui.html.j2").render(title="Try the model")
    _add_file(app, "/", page, "text/html")
    _add_file(app, "/ui.css", read_asset("page.css") + read_asset("ui.css"), "text/css")
    _add_file(app, "/ui.js", read_asset("ui.js"), "text/javascript")
    protected: dict[str, Any] = {"include_in_schema": False, **require_key(service.api_key)}
    first = next(iter(service.engines.values()))
    is_energy_trained = first.describe()["is_energy_trained"]
    about = {
        "models": list(service.engines),
        "histogram": stored_histogram(first.model, with_noise=is_energy_trained),
        "is_pair": bool(first.model.is_pair),
        "is_energy_trained": is_energy_trained,
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
            return await asyncio.to_thread(describe_columns, next(iter(service.engines.values())).model, content)

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


def _add_file(app: FastAPI, path: str, content: str, media_type: str) -> None:
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}

    @app.get(path, include_in_schema=False)
    async def send() -> Response:
        return Response(content, media_type=media_type, headers=headers)


def stored_histogram(model: Model, with_noise: bool = True) -> dict[str, Any] | None:
    """The energy histograms that a run stored in the model directory, in the order in which they are shown."""
    try:
        edges = [float(edge) for edge in model.card["histograms"]["edges"]]
        shares = {str(n): [float(v) for v in values] for n, values in model.card["histograms"]["shares"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or an edited ebmcal.json
        return None
    kinds = ("train", *["noise"][:with_noise], "ood_", "test")
    order = [n for kind in kinds for n in shares if n.startswith(kind)]
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
        "ood_score_name": OOD_SCORES.get(answer["ood_score_name"]),
    }


def explain_decision(rule: AbstentionRule | None, answer: dict[str, Any]) -> str | None:
    """The score that the decision is based on and its threshold; None without a rule."""
    if rule is None:
        return None
    if answer["decision"] == "abstain":
        return str(answer["reason"])
    reasons = []
    if rule.score is not None and rule.guarantee is not None and rule.guarantee.threshold is not None:
        name, threshold = SCORE_NAMES[rule.score], rule.guarantee.threshold
        reasons.append(f"{name} is {answer['score']:.4g}, at least {threshold:.4g}")
    if rule.ood is not None and not rule.answer_ood:
        reasons.append(f"not out-of-distribution (p = {answer['ood_p_value']:.2g}, above {rule.ood.rate:g})")
    return "; ".join(reasons) or "the rule answers every text"


async def _word_effects(service: Service, text: Text, answer: dict[str, Any]) -> dict[str, Any]:
    """Each word with its effects: a value of the text minus that of the text without the word.

    The values are the probability of the text's label (positive: the word speaks for it) and the energy.
    """
    (text,) = service.engines[answer["name"]].prepare([text])
    first = text if isinstance(text, str) else text[0]
    spans = [match.span() for match in re.finditer(r"\S+", first)]
    shown = spans[:MAX_WORDS] if len(spans) > 1 else []
    shorter = [first[:start] + first[end:].lstrip() for start, end in shown]
    variants: list[Text] = [*shorter] if isinstance(text, str) else [(variant, text[1]) for variant in shorter]
    size = max(1, min(service.limits.max_texts, service.limits.max_tokens // (answer["n_tokens"] + 2)))
    others: list[dict[str, Any]] = []
    for i in range(0, len(variants), size):
        others += await service.answer(variants[i : i + size], answer["name"])
    label = answer["label"]
    words = [
        {
            "start": start,
            "end": end,
            "word": first[start:end],
            "effect": answer["probabilities"][label] - other["probabilities"][label],
            "energy_effect": answer["energy"] - other["energy"],
        }
        for (start, end), other in zip(shown, others, strict=True)
    ]
    return {"words": words, "n_words": len(spans)}


def describe_columns(model: Model, content: bytes) -> dict[str, Any]:
    """The columns of a file and the most likely choice of text, second text and label."""
    with _as_file(content) as path:
        table = read_columns(path)
    names = list(table.columns)
    sample = {name: [str(value) for value in values[:20]] for name, values in table.columns.items()}

    def first(*wanted: Any) -> str | None:
        return next((name for name in wanted if name in names), None)

    known = [name for name in names if set(sample[name]) <= set(model.label_names)]
    label = first("label", *known, "labels", "class", "category", "target")
    by_length = sorted((name for name in names if name != label), key=lambda name: -sum(map(len, sample[name])))
    text = first(model.card.get("text_column"), "text", "sentence", "sentence1", *by_length) or names[0]
    label = label or first(*(name for name in reversed(names) if name != text))
    pair = first(model.card.get("text_pair_column"), "text_pair", "sentence2") if model.is_pair else None
    return {"columns": names, "text": text, "text_pair": pair, "label": label, "is_predictions": _has_classes(table)}


async def predict_file(
    service: Service, content: bytes, text: str, text_pair: str | None, label: str
) -> dict[str, Predictions]:
    """The predictions in a file, or those of each served model for its texts."""
    model = next(iter(service.engines.values())).model
    found = await asyncio.to_thread(_read, content, model.label_names, text, text_pair, label)
    if isinstance(found, Predictions):
        return {"your file": found}
    return {name: await _predict(service, name, found) for name in service.engines}


def report_html(named: Mapping[str, Predictions]) -> str:
    """The evaluation report, as `ebmcal evaluate --report` writes it."""
    from ebmcal.evaluation import evaluate

    with _ONE_REPORT, tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about few rows: the report states their number
        path = Path(scratch) / "report.html"
        evaluate(named, n_resamples=N_RESAMPLES).report(path)
        return path.read_text(encoding="utf-8")


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    _check_header(content)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "your file.csv"
        path.write_bytes(content)
        try:
            yield path
        except EbmcalError as error:  # the user does not know the temporary directory
            raise EbmcalError(str(error).replace(str(path), path.stem)) from error


def _check_header(content: bytes) -> None:
    """Raise if there are too many columns: pyarrow needs 20 kB of memory for each, even in a file of one row."""
    text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")
    try:
        rows = (csv.reader(io.StringIO(text, newline=None), delimiter=mark) for mark in ",;\t|")
        n_columns = max(len(next(filter(None, lines), [])) for lines in rows)
    except csv.Error:  # a name is too long
        n_columns = MAX_COLUMNS + 1
    if n_columns > MAX_COLUMNS:
        raise EbmcalError(f"The file has too many columns; at most {MAX_COLUMNS:,} are possible here.")


def _has_classes(table: FileColumns) -> bool:
    return any(name.startswith(("prob_", "logit_")) for name in table.columns)


def _read(content: bytes, label_names: tuple[str, ...], text: str, text_pair: str | None, label: str) -> Any:
    """The predictions in a file, or its texts and labels as a dataset."""
    with _as_file(content) as path:
        table = read_columns(path)
        if table.n_rows > MAX_ROWS:
            raise EbmcalError(
                f"The file has {table.n_rows:,} rows; at most {MAX_ROWS:,} are possible here. Use ebmcal predict and "
                "evaluate."
            )
        if not _has_classes(table):
            _check_labels(table, label_names, text, label)
            return as_dataset(
                path, text_column=text, text_pair_column=text_pair, label_column=label, label_names=label_names
            )
        if label not in table.columns:
            raise unknown_name("column", label, table.columns)
        table.columns["label"] = table.columns[label]
        return Predictions.from_columns(table)


def _check_labels(table: FileColumns, label_names: tuple[str, ...], text: str, label: str) -> None:
    """Raise for a file without labels, and for class numbers: the order of the classes may be another in the file."""
    if label in ("", text):
        raise EbmcalError("Choose the column with the true labels. For texts without labels, use ebmcal predict.")
    written = {re.sub(r"\.0*$", "", str(value).strip()) for value in table.columns.get(label, ())}
    if numbers := sorted({str(i) for i in range(len(label_names))} & written - {*label_names}):
        raise EbmcalError(
            f"The column {label!r} has numbers ({', '.join(numbers)}), but the classes are {', '.join(label_names)}. "
            "Write the names of the classes."
        )


async def _predict(service: Service, name: str, rows: Any) -> Predictions:
    texts, pairs = list(rows["text"]), list(rows["text_pair"]) if "text_pair" in rows.column_names else None
    inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
    answers: list[dict[str, Any]] = []
    longest = service.engines[name].model.max_length
    size = max(1, min(service.limits.max_texts, service.limits.max_tokens // longest))
    for start in range(0, len(inputs), size):
        answers += await service.answer(inputs[start : start + size], name)
    return Predictions(
        np.asarray(rows["label"]),
        service.engines[name].model.label_names,
        probs=np.array([list(answer["probabilities"].values()) for answer in answers]),
        meta={"calibrator": service.engines[name].describe()["calibrator"]},
        energies=np.array([answer["energy"] for answer in answers]),
        texts=texts,
        text_pairs=pairs,
    )
