"""What the web UI shows for a text: each model's probabilities, the decision, and the effect of each word."""

import re
from typing import Any

import numpy as np

from ebmcal.model import Model
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import softmax
from ebmcal.reports.histograms import EnergyHistogram, energy_histogram
from ebmcal.run_dir import RunDir
from ebmcal.selective import AbstentionRule
from ebmcal.selective.ood import OOD_SCORES
from ebmcal.selective.rule import REASONS
from ebmcal.serving.batcher import Text
from ebmcal.serving.service import Service

#: Words that are left out one at a time; of a longer text the first ones.
MAX_WORDS = 100


async def explain_text(service: Service, text: Text) -> dict[str, Any]:
    """The answers of all models, then the effect of each word on the energy of the first one."""
    models = [await _explain_model(service, name, text) for name in service.engines]
    engine = next(iter(service.engines.values()))
    shortened = engine.shorten(text)
    spans = word_spans(shortened if isinstance(shortened, str) else shortened[0])
    words = await _word_effects(service, shortened, spans[:MAX_WORDS], models[0]) if len(spans) > 1 else []
    return {"models": models, "words": words, "n_words": len(spans)}


async def _explain_model(service: Service, name: str, text: Text) -> dict[str, Any]:
    (answer,) = await service.answer([text], name)
    engine = service.engines[name]
    info = engine.describe()
    temperature = info["folded_temperature"] or 1.0
    before = softmax(temperature * np.array([list(answer["logits"].values())]))[0]
    folded = "temperature, in the weights" if info["folded_temperature"] else None
    return {
        **answer,
        "name": name,
        "before": dict(zip(answer["logits"], before.tolist(), strict=True)),
        "calibrator": info["calibrator"] or folded,
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
        name, threshold = REASONS[rule.score.name], rule.guarantee.threshold
        reasons.append(f"{name} is {answer['score']:.4g}, at least {threshold:.4g}")
    if rule.ood is not None and not rule.answer_ood:
        reasons.append(f"not out-of-distribution (p = {answer['ood_p']:.2g}, above {rule.ood.rate:g})")
    return "; ".join(reasons) or "the rule answers every text"


async def _word_effects(
    service: Service, text: Text, spans: list[tuple[int, int]], answer: dict[str, Any]
) -> list[dict[str, Any]]:
    """Each word with E(text) − E(text without it): positive if the word raises the energy."""
    first, rest = (text, ()) if isinstance(text, str) else (text[0], (text[1],))
    variants: list[Text] = [(without(first, span), rest[0]) if rest else without(first, span) for span in spans]
    limits = service.limits
    size = max(1, min(limits.max_texts, limits.max_tokens // (answer["n_tokens"] + 2)))
    answers = [a for i in range(0, len(variants), size) for a in await service.answer(variants[i : i + size])]
    return [
        {"start": start, "end": end, "word": first[start:end], "effect": answer["energy"] - found["energy"]}
        for (start, end), found in zip(spans, answers, strict=True)
    ]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each word.

    >>> word_spans("a fine film")
    [(0, 1), (2, 6), (7, 11)]
    """
    return [match.span() for match in re.finditer(r"\S+", text)]


def without(text: str, span: tuple[int, int]) -> str:
    """The text without a word and the spaces after it.

    >>> without("a fine film", (2, 6))
    'a film'
    """
    return text[: span[0]] + text[span[1] :].lstrip()


def stored_histogram(model: Model) -> dict[str, Any] | None:
    """The energy histograms of a model, from its directory or its run, in the order in which they are shown."""
    found = _read_histogram(model)
    if found is None:
        return None
    names = list(found.shares)
    known = [name for name in ("train", "noise") if name in names]
    others = [name for name in names if name.startswith("ood_")]
    shown = [*known, *others, *(name for name in names if name.startswith("test"))] or names
    return {"edges": found.edges.tolist(), "shares": {name: found.shares[name].tolist() for name in shown}}


def _read_histogram(model: Model) -> EnergyHistogram | None:
    if "histograms" in model.card:
        return EnergyHistogram.from_json(model.card["histograms"])
    place = RunDir.containing(model.folder)
    if place is None:
        return None
    run, trial = place
    return energy_histogram({split: Predictions.read(run.predictions(trial, split)) for split in run.splits(trial)})
