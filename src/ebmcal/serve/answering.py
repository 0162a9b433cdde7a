"""A model's answers to tokenised texts: one packed forward pass, then calibrator and rule, as plain dictionaries.

The figures are those of `Model.predict`: the same tokens, energies and calibrator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ebmcal.data.values import is_blank
from ebmcal.errors import EbmcalError
from ebmcal.model import Model
from ebmcal.models.classifier import CARD_FILE
from ebmcal.models.packing import pack
from ebmcal.models.tokens import encode
from ebmcal.predictions import Predictions
from ebmcal.serve.batching import Row


@dataclass(frozen=True)
class EncodedText:
    """Token ids and segment numbers of a text; whether it was longer than the model reads."""

    ids: np.ndarray  # [L]
    types: np.ndarray  # [L]
    is_cut: bool

    def __len__(self) -> int:
        return len(self.ids)


#: What a rule may say of a text.
DECISIONS = ("unusual", "unusual_p", "decision", "reason", "label_set")


class NotFinite(EbmcalError):
    """The model gave no numbers for a text."""


class Answering:
    """What the worker of a `Batcher` does with a model: `encode` and `answer`."""

    def __init__(self, model: Model) -> None:
        self.model, self.names = model, model.label_names
        self.rule = model.rule  # refuses one that was fitted for another model or calibrator
        self.is_pair, self.measure = model.is_pair, model.measure
        self.device = next(model.classifier.parameters()).device

    def describe(self) -> dict[str, Any]:
        """What `/v1/models` says of the model."""
        calibrator = self.model.calibrator
        return {
            "labels": list(self.names),
            "calibrator": calibrator.name if calibrator else None,
            "folded_temperature": self.model.folded_temperature,
            "energy": self.model.classifier.energy,
            "is_energy_trained": (self.model.folder / CARD_FILE).exists(),
            "max_length": self.model.max_length,
            "is_pair": self.is_pair,
            "rule": self.rule.describe() if self.rule else [],
        }

    def trouble_with(self, rows: Sequence[Row]) -> str:
        """Why the model cannot answer rows: an empty text, a pair where it knows single texts, or the reverse."""
        for i, (text, pair) in enumerate(rows):
            where = f"inputs[{i}]" if len(rows) > 1 else "The input"
            if is_blank(text) or (pair is not None and is_blank(pair)):
                return f"{where} has an empty text; there is nothing to classify in it."
            if self.is_pair is not None and self.is_pair != (pair is not None):
                kinds = (
                    ("a single text", "pairs: send text and text_pair") if self.is_pair else ("a pair", "single texts")
                )
                return f"{where} is {kinds[0]}, and the model was trained on {kinds[1]}."
        return ""

    def encode(self, rows: Sequence[Row]) -> list[EncodedText]:
        """Tokens of texts and pairs, each cut to what the model reads."""
        found: list[EncodedText | None] = [None] * len(rows)
        for is_pair in (False, True):  # the tokenizer takes one kind at a time
            places = [i for i, (_, pair) in enumerate(rows) if (pair is not None) == is_pair]
            encoded = encode([rows[i] for i in places], self.model.tokenizer, self.model.max_length) if places else ()
            for i, (ids, types, is_cut) in zip(places, encoded, strict=True):
                found[i] = EncodedText(np.asarray(ids), np.asarray(types), is_cut)
        return [text for text in found if text is not None]

    def answer(self, texts: Sequence[EncodedText]) -> list[dict[str, Any] | NotFinite]:
        """An answer for each text; where logits or energy are not finite, the error that says so."""
        logits, energies, distances = self._score(texts)
        finite = np.isfinite(logits).all(axis=1) & np.isfinite(energies)
        finite &= np.all([np.isfinite(values) for values in distances.values()], axis=0)
        found: list[dict[str, Any] | NotFinite] = [NotFinite(NOT_FINITE)] * len(texts)
        places, far = np.flatnonzero(finite).tolist(), {name: values[finite] for name, values in distances.items()}
        for i, answer in zip(places, self._answers(logits[finite], energies[finite], far), strict=True):
            found[i] = answer | {"n_tokens": len(texts[i]), "is_cut": texts[i].is_cut}
        return found

    def _score(self, texts: Sequence[EncodedText]) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Logits [n, C], energies [n] and distances by name [n] of one packed batch, in the order of the texts."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        batch = pack([texts[i].ids for i in order], [texts[i].types for i in order]).to(self.device)
        forward = self.model.classifier if self.measure is None else self.model.classifier.with_features
        with torch.inference_mode():
            scores = [values.cpu().numpy() for values in forward(batch)]
        back = np.argsort(order)
        return scores[0][back], scores[1][back], self.measure(scores[2][back]) if self.measure else {}

    def _answers(
        self, logits: np.ndarray, energies: np.ndarray, distances: dict[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        if not len(logits):
            return []
        raw = Predictions(
            np.full(len(logits), -1), self.names, logits=logits, energies=energies, distances=distances or None
        )
        final = self.model.finished(raw)
        probs, chosen, decided = final.probabilities(), final.predicted(), self._decided(final)
        rows = zip(chosen.tolist(), probs.tolist(), logits.tolist(), final.require_energies().tolist(), strict=True)
        return [
            {
                "label": self.names[best],
                "confidence": p[best],
                "probabilities": dict(zip(self.names, p, strict=True)),
                "logits": dict(zip(self.names, scores, strict=True)),
                "energy": energy,
                **{name: values[i] for name, values in decided.items()},
            }
            for i, (best, p, scores, energy) in enumerate(rows)
        ]

    def _decided(self, final: Predictions) -> dict[str, list[Any]]:
        """The columns of the rule, of None where it has no part for them."""
        said = self.rule.decide(final).columns() if self.rule else {}
        return {name: said.get(name) or [None] * final.n_rows for name in DECISIONS}


NOT_FINITE = "The model gave values that are not numbers for a text: its weights may be damaged."
