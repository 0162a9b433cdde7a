"""What the page shows of a text: each model's posterior before and after calibration, decisions, words by energy."""

import re
from typing import Any

import numpy as np

from ebmcal.decisions.rule import REASONS
from ebmcal.decisions.unusual import NAMES
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import softmax
from ebmcal.serve.answering import Answering
from ebmcal.serve.app import Service
from ebmcal.serve.batching import Row

#: Words that are left out one by one; of a longer text the first ones.
MOST_WORDS = 100


async def look(service: Service, row: Row) -> dict[str, Any]:
    """Everything about one text: the models in order, then the words by what they add to the first model's energy."""
    models = [await _model(service, name, row) for name in service.models]
    spans = word_spans(row[0])
    words = await _words(service, row, spans[:MOST_WORDS], models[0]["energy"]) if len(spans) > 1 else []
    return {"models": models, "words": words, "n_words": len(spans)}


async def _model(service: Service, name: str, row: Row) -> dict[str, Any]:
    (answer,) = await service.ask([row], name)
    answering = service.models[name]
    temperature = answering.model.folded_temperature or 1.0
    before = softmax(temperature * np.array([list(answer["logits"].values())]))[0]
    facts = answering.describe()
    return {
        **answer,
        "name": name,
        "before": dict(zip(answering.names, before.tolist(), strict=True)),
        "calibrator": facts["calibrator"] or ("temperature, in the weights" if facts["folded_temperature"] else None),
        "rule": facts["rule"],
        "why": _why(answering, answer),
        "unusual_by": NAMES[rule.unusual.by] if (rule := answering.rule) and rule.unusual else None,
    }


def _why(answering: Answering, answer: dict[str, Any]) -> str | None:
    """What the rule decided by: its score of the text beside the threshold; None where it decides nothing."""
    if answering.rule is None or answering.rule.abstention is None:
        return None
    score, threshold = answering.rule.abstention.score, answering.rule.abstention.promise.threshold
    if threshold is None:
        return "the rule answers every text"
    probs, energies = np.array([list(answer["probabilities"].values())]), np.array([answer["energy"]])
    value = score(Predictions(np.array([-1]), answering.names, probs=probs, energies=energies))[0]
    side = "at least" if answer["decision"] == "answer" else "below"
    return f"{REASONS[score.name]} is {value:.4g}, {side} {threshold:.4g}"


async def _words(service: Service, row: Row, spans: list[tuple[int, int]], energy: float) -> list[dict[str, Any]]:
    """Each word with E(text) − E(text without it): above 0 where the word raises the energy. One packed batch."""
    answers = await service.ask([(without(row[0], span), row[1]) for span in spans])
    return [
        {"start": start, "end": end, "word": row[0][start:end], "rise": energy - answer["energy"]}
        for (start, end), answer in zip(spans, answers, strict=True)
    ]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text are.

    >>> word_spans("a fine film")
    [(0, 1), (2, 6), (7, 11)]
    """
    return [match.span() for match in re.finditer(r"\S+", text)]


def without(text: str, span: tuple[int, int]) -> str:
    """The text without a word and the blanks behind it.

    >>> without("a fine film", (2, 6))
    'a film'
    """
    return text[: span[0]] + text[span[1] :].lstrip()
