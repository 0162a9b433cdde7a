"""Several models as one: their probabilities averaged (Lakshminarayanan et al. 2017), or passes with dropout on.

Ensemble([ebmcal.load(a), ebmcal.load(b)]).predict(texts).probs
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import xlogy

from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError
from ebmcal.model import Model
from ebmcal.predictions import Predictions


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models for the same classes; `mc_dropout` passes with dropout on for each, none by default.

    Each member's own calibrator is applied before averaging. A rule of one member is not for the average: fit one on
    predictions of the ensemble.

        ebmcal.Ensemble([ebmcal.load("seed1"), ebmcal.load("seed2")]).predict(["a text"]).probs
    """

    members: Sequence[Model]
    mc_dropout: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise EbmcalError("An ensemble needs at least one model.")
        if self.mc_dropout < 0 or (self.mc_dropout == 1 and len(self.members) == 1):
            raise EbmcalError(f"mc_dropout (--mc-dropout) is {self.mc_dropout}; give 2 passes or more.")
        places = [member.folder.resolve() for member in self.members]
        twice = next((place for place in places if places.count(place) > 1), None)
        if twice is not None:
            raise EbmcalError(f"{twice} was given twice: it would count twice in the average. Give each model once.")
        for member in self.members[1:]:
            if sorted(member.label_names) != sorted(self.label_names):
                raise EbmcalError(
                    f"{member.folder} has the classes {', '.join(member.label_names)}; {self.members[0].folder} has "
                    f"{', '.join(self.label_names)}. Only models for the same classes can be averaged."
                )

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.members[0].label_names

    def predict(self, texts: Any, **options: Any) -> Predictions:
        """The averaged probabilities and energies of texts; options as in `Model.predict`."""
        return self._averaged(texts, **options)[0]

    def predict_rows(self, texts: list[Any], *, calibrated: bool = True) -> tuple[Predictions, np.ndarray]:
        """Averaged predictions and the disagreement [n]: entropy of the mean minus mean entropy, in nats."""
        return self._averaged(texts, calibrated=calibrated)

    def columns_of(self, text: str | None, pair: str | None, label: str | None) -> Columns:
        return self.members[0].columns_of(text, pair, label)

    def fingerprint(self) -> dict[str, Any]:
        return {"members": [member.fingerprint() for member in self.members], "mc_dropout": self.mc_dropout}

    def _averaged(self, texts: Any, **options: Any) -> tuple[Predictions, np.ndarray]:
        texts = texts if isinstance(texts, list) else list(texts) if hasattr(texts, "__next__") else texts
        seeds: Sequence[int | None] = range(self.mc_dropout) if self.mc_dropout else [None]
        found = [
            member.predict(texts, **options, dropout_seed=seed).in_order(self.label_names)
            for member in self.members
            for seed in seeds
        ]
        each = np.stack([p.probabilities() for p in found])  # [members, n, C]
        probs, energies = each.mean(axis=0), np.mean([p.require_energies() for p in found], axis=0)
        disagreement = np.maximum(_entropy(probs) - _entropy(each).mean(axis=0), 0.0)
        folders = [str(member.folder) for member in self.members]
        meta = {"energy": found[0].meta["energy"], "ensemble": folders, "mc_dropout": self.mc_dropout}
        first = replace(found[0], meta=meta, energies=energies, distances=None)
        return first.with_probs(probs), disagreement


def _entropy(probs: np.ndarray) -> np.ndarray:
    return -xlogy(probs, probs).sum(axis=-1)
