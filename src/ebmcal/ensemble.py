"""`Ensemble`: several models averaged (deep ensembles, Lakshminarayanan et al. 2017), or passes with dropout.

Ensemble([ebmcal.load(a), ebmcal.load(b)]).predict(texts).probs
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from ebmcal.model import Model


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models with the same labels; with `mc_dropout`, that many passes with dropout for each (Gal & Ghahramani 2016).

    The calibrator of each member is applied before averaging. Abstention rules of members do not hold for the average:
    fit one on predictions of the ensemble.

        ebmcal.Ensemble([ebmcal.load("seed1"), ebmcal.load("seed2")]).predict(["a text"]).probs
    """

    members: "Sequence[Model]"
    mc_dropout: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise EbmcalError("An ensemble needs at least one model, got none.")
        if self.mc_dropout < 0 or (self.mc_dropout == 1 and len(self.members) == 1):
            raise EbmcalError(f"mc_dropout (--mc-dropout): expected 2 passes or more, got {self.mc_dropout}.")
        places = [member.folder.resolve() for member in self.members]
        repeated = next((place for place in places if places.count(place) > 1), None)
        if repeated is not None:
            raise EbmcalError(f"{repeated} was given twice; each model counts once in the average.")
        for member in self.members[1:]:
            if sorted(member.label_names) != sorted(self.label_names):
                raise EbmcalError(
                    f"The labels differ: {', '.join(self.label_names)} in {self.members[0].folder}, "
                    f"{', '.join(member.label_names)} in {member.folder}. Expected the same labels."
                )

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.members[0].label_names

    def predict(self, texts: Any, **options: Any) -> Predictions:
        """Averaged probabilities and energies; arguments as in `Model.predict`."""
        return self.average(self.predict_members(texts, **options))

    def predict_members(self, texts: Any, **options: Any) -> list[Predictions]:
        """The predictions of every member and dropout pass, with the classes in the same order."""
        texts = list(texts) if hasattr(texts, "__next__") else texts  # an iterator can be read only once
        found = (member.predict(texts, **options, dropout_seed=seed) for member, seed in self.passes())
        return [predictions.reorder(self.label_names) for predictions in found]

    def passes(self) -> "list[tuple[Model, int | None]]":
        """Every member with the dropout seeds of its passes; None: without dropout."""
        seeds: Sequence[int | None] = range(self.mc_dropout) if self.mc_dropout else [None]
        return [(member, seed) for member in self.members for seed in seeds]

    def average(self, members: Sequence[Predictions]) -> Predictions:
        """The mean of the probabilities and of the energies."""
        meta = {"ensemble": [str(member.folder) for member in self.members], "mc_dropout": self.mc_dropout}
        energies = np.mean([p.require_energies() for p in members], axis=0)
        probs = np.mean([p.probs for p in members], axis=0)
        return members[0].replace(probs=probs, energies=energies, distances=None, meta=meta)


def disagreement(members: Sequence[Predictions]) -> np.ndarray:
    """How much members disagree [n], in nats: the entropy of the mean minus the mean entropy (mutual information)."""
    mean = members[0].with_probs(np.mean([p.probs for p in members], axis=0))
    return np.maximum(mean.entropy - np.mean([p.entropy for p in members], axis=0), 0.0)
