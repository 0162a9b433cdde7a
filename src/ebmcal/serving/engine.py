"""From tokenised texts to answers: one packed forward pass, then the model's calibrator and abstention rule.

The numbers equal those of `Model.predict`: the same tokens, energies, calibrator and rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.methods import METHODS
from ebmcal.model import Model
from ebmcal.modeling.packing import Tokens
from ebmcal.modeling.predictor import CHARACTERS_PER_TOKEN, Outputs
from ebmcal.predictions import Predictions
from ebmcal.serving.batcher import Text


@dataclass(frozen=True)
class EncodedText:
    """The tokens of a text; its length is their number."""

    tokens: Tokens
    is_truncated: bool

    def __len__(self) -> int:
        return len(self.tokens.ids)


#: Fields of an answer that come from the abstention rule.
DECISION_FIELDS = ("decision", "reason", "score", "ood", "ood_score", "ood_p", "label_set")


class NotFinite(EbmcalError):
    """The model computed values that are not finite."""


class Engine:
    """The work of a `Batcher` for one model: `encode` and `answer`."""

    def __init__(self, model: Model) -> None:
        self.model, self.predictor = model, model.predictor
        self.rule = model.abstention_rule  # raises if it was fitted for another model or calibrator
        self.is_pair, self.fingerprint = model.is_pair, model.fingerprint
        self.max_characters = model.max_length * CHARACTERS_PER_TOKEN

    def describe(self) -> dict[str, Any]:
        """The entries of `/v1/models`."""
        calibrator = self.model.calibrator
        return {
            "labels": list(self.model.label_names),
            "calibrator": calibrator.name if calibrator else None,
            "folded_temperature": self.model.folded_temperature,
            "energy": self.model.energy_name,
            "is_energy_trained": is_energy_trained(self.model.card),
            "max_length": self.model.max_length,
            "is_pair": self.is_pair,
            "abstention": self.rule.describe() if self.rule else [],
        }

    def problem(self, texts: Sequence[Text]) -> str:
        """Why the model cannot answer: a pair for a model of single texts or vice versa; empty if it can."""
        for i, text in enumerate(texts):
            is_pair = not isinstance(text, str)
            if self.is_pair is not None and self.is_pair != is_pair:
                where = f"inputs[{i}]" if len(texts) > 1 else "The input"
                given, expected = (
                    ("a pair", "single texts") if is_pair else ("a single text", "pairs (text, text_pair)")
                )
                return f"{where} is {given}, but the model was trained on {expected}."
        return ""

    def shorten(self, text: Text) -> Text:
        """The part of a text that is tokenised: what lies beyond never reaches the model."""
        limit = self.max_characters
        return text[:limit] if isinstance(text, str) else (text[0][:limit], text[1][:limit])

    def encode(self, texts: Sequence[Text]) -> list[EncodedText]:
        """The tokens of texts and pairs, truncated to the maximum length."""
        encoded: dict[int, EncodedText] = {}
        for is_pair in (False, True):  # the tokenizer accepts one kind at a time
            places = [i for i, text in enumerate(texts) if is_pair != isinstance(text, str)]
            tokens = self.predictor.tokenize([texts[i] for i in places]) if places else []
            for i, found in zip(places, tokens, strict=True):
                longest = max(map(len, texts[i] if is_pair else [texts[i]]))
                is_truncated = len(found.ids) >= self.model.max_length or longest >= self.max_characters
                encoded[i] = EncodedText(found, is_truncated)
        return [encoded[i] for i in range(len(texts))]

    def answer(self, texts: Sequence[EncodedText]) -> list[dict[str, Any] | NotFinite]:
        """An answer per text; an error where logits, energy or features are not finite."""
        needs_features = self.rule is not None and self.rule.needs_features
        outputs = self.predictor.predict_tokens([text.tokens for text in texts], features=needs_features)
        is_finite = np.isfinite(outputs.logits).all(axis=1) & np.isfinite(outputs.energies)
        if outputs.features is not None:
            is_finite &= np.isfinite(outputs.features).all(axis=1)
        places = np.flatnonzero(is_finite).tolist()
        answers: list[dict[str, Any] | NotFinite] = [NotFinite(NOT_FINITE)] * len(texts)
        if places:
            features = None if outputs.features is None else outputs.features[places]
            finite = Outputs(outputs.logits[places], outputs.energies[places], features)
            for i, answer in zip(places, self._answers(finite), strict=True):
                answers[i] = answer | {"n_tokens": len(texts[i]), "is_truncated": texts[i].is_truncated}
        return answers

    def _answers(self, outputs: Outputs) -> list[dict[str, Any]]:
        predictions = self.model.finish(outputs)
        names, decisions = self.model.label_names, self._decisions(predictions)
        rows = zip(
            predictions.predicted.tolist(), predictions.probs.tolist(), outputs.logits.tolist(),
            predictions.require_energies().tolist(), strict=True,
        )  # fmt: skip
        return [
            {
                "label": names[best],
                "confidence": probs[best],
                "probabilities": dict(zip(names, probs, strict=True)),
                "logits": dict(zip(names, logits, strict=True)),
                "energy": energy,
                **{name: None if values is None else values[i] for name, values in decisions.items()},
            }
            for i, (best, probs, logits, energy) in enumerate(rows)
        ]

    def _decisions(self, predictions: Predictions) -> dict[str, list[Any] | None]:
        """The columns that the abstention rule adds; None for what it has no part for."""
        columns: dict[str, list[Any] | None] = dict.fromkeys(DECISION_FIELDS)
        if self.rule is None:
            return columns
        decisions = self.rule.apply(predictions)
        arrays = {
            "score": decisions.score, "ood": decisions.is_ood, "ood_score": decisions.ood_score,
            "ood_p": decisions.p_values,
        }  # fmt: skip
        columns |= {name: None if values is None else values.tolist() for name, values in arrays.items()}
        columns["decision"] = ["answer" if answered else "abstain" for answered in decisions.answered]
        columns["reason"] = list(decisions.reason)
        columns["label_set"] = decisions.label_sets and [list(labels) for labels in decisions.label_sets]
        return columns


def is_energy_trained(card: dict[str, Any]) -> bool:
    """Whether a model was trained by noise contrastive estimation, according to its `ebmcal.json`.

    >>> is_energy_trained({"method": "hidden"}), is_energy_trained({"method": "baseline"}), is_energy_trained({})
    (True, False, False)
    """
    method = METHODS.get(str(card.get("method")))
    return method is not None and (method.location == "joint:Joint" or bool(method.options.get("joint")))


NOT_FINITE = "The model computed values that are not finite; its weights may be damaged."
