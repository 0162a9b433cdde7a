"""The web UI: a page next to the API on which a text can be tried. `ebmcal serve MODEL --ui`.

The answer to a text is explained. `static/` is sent to the browser: plain HTML, CSS and JavaScript without any other
source.
"""

import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
from fastapi import Response

from ebmcal.model import Model
from ebmcal.predictions.arrays import softmax
from ebmcal.selective import AbstentionRule
from ebmcal.selective.ood import OOD_SCORES
from ebmcal.selective.rule import SCORE_NAMES
from ebmcal.serving.batcher import Text
from ebmcal.serving.service import Service

#: What the page may do: use files of this server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
FILES = {"/": ("index.html", "text/html"), "/ui.css": ("ui.css", "text/css"), "/ui.js": ("ui.js", "text/javascript")}

#: Words that are left out one at a time; of a longer text the first ones.
MAX_WORDS = 100


def static_file(name: str, media_type: str) -> Callable[[], Any]:
    """A route that sends a file of the page."""
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


async def explain(service: Service, texts: list[Text]) -> dict[str, Any]:
    """The answer to the first text with probabilities before calibration, the reason of the decision, and words."""
    (answer,) = await service.answer(texts[:1])
    logits = np.array([list(answer["logits"].values())])
    before = softmax(logits * (service.model.folded_temperature or 1.0))[0]
    return {
        **answer,
        **await _word_effects(service, texts[0], answer),
        "before": dict(zip(answer["logits"], before.tolist(), strict=True)),
        "explanation": explain_decision(service.rule, answer),
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
    """Each word with E(text) − E(text without it): positive if the word raises the energy."""
    (text,) = service.prepare([text])
    first = text if isinstance(text, str) else text[0]
    spans = [match.span() for match in re.finditer(r"\S+", first)]
    shown = spans[:MAX_WORDS] if len(spans) > 1 else []
    shorter = [first[:start] + first[end:].lstrip() for start, end in shown]
    variants: list[Text] = [*shorter] if isinstance(text, str) else [(variant, text[1]) for variant in shorter]
    size = max(1, min(service.limits.max_texts, service.limits.max_tokens // (answer["n_tokens"] + 2)))
    energies: list[float] = []
    for i in range(0, len(variants), size):
        energies += [found["energy"] for found in await service.answer(variants[i : i + size])]
    words = [
        {"start": start, "end": end, "word": first[start:end], "effect": answer["energy"] - energy}
        for (start, end), energy in zip(shown, energies, strict=True)
    ]
    return {"words": words, "n_words": len(spans)}
