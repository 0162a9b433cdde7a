"""Which texts are unusual, by conformal p-values of a score: energy, or a distance to training texts.

A distance is measured in the features of the model itself, half-way up its layers, which come with its forward pass.
The features of some training texts are kept with the rule for that, in half precision.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ebmcal.decisions.conformal import p_values
from ebmcal.decisions.scores import energies_of
from ebmcal.errors import EbmcalError
from ebmcal.metrics.distances import DISTANCES, Distance
from ebmcal.predictions import Predictions
from ebmcal.storage.checksums import fingerprint

ENERGY, NEAREST = "energy", "knn"

#: The layer of the features that are kept; an earlier version took the last one.
LAYER = "middle"

#: What a text may be unusual by.
UNUSUAL_BY = (ENERGY, *DISTANCES)

#: Training texts whose features are kept, at most.
KEPT_TEXTS = 2000

#: How a score is called in a sentence.
NAMES = {
    ENERGY: "an energy",
    "knn": "a distance to the nearest training texts",
    "mahalanobis": "a Mahalanobis distance to the training texts",
}


@dataclass(frozen=True, eq=False)
class TrainingFeatures:
    """Features of training texts, in half precision, and their classes (-1 = unknown): what distances are from.

    >>> kept = TrainingFeatures.of(np.eye(3), np.array([0, 1, 1]))
    >>> TrainingFeatures.from_json(kept.to_json()).features.shape
    (3, 3)
    """

    features: np.ndarray  # [n, H] float16
    labels: np.ndarray  # [n]

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray) -> "TrainingFeatures":
        half = features.astype(np.float16)
        if not np.isfinite(half).all():
            raise EbmcalError(
                "Features of the training texts are not numbers of half precision. Use --unusual-by energy."
            )
        return cls(half, np.asarray(labels, dtype=np.int64))

    def distance(self, name: str) -> Distance:
        """A distance to these texts; Mahalanobis' takes those whose class is known."""
        if name == "knn":
            return DISTANCES[name](self.features, self.labels)
        known = self.labels >= 0
        if not known.any():
            raise EbmcalError(f"{name} needs the labels of the training texts: a column label. Or take knn.")
        return DISTANCES[name](self.features[known], self.labels[known])

    @cached_property
    def mark(self) -> str:
        """What stands for them; predictions carry it with their distances (`meta["distances"]`)."""
        return fingerprint(self.to_json())

    def to_json(self) -> dict[str, Any]:
        raw = base64.b64encode(self.features.astype("<f2").tobytes()).decode("ascii")
        about = {"layer": LAYER, "shape": list(self.features.shape), "labels": self.labels.tolist()}
        return about | {"float16": raw}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "TrainingFeatures":
        if value.get("layer") != LAYER:
            raise EbmcalError(
                "The rule measures distances by features of another version. Fit it again: ebmcal decide."
            )
        features = np.frombuffer(base64.b64decode(value["float16"]), dtype="<f2").reshape(value["shape"])
        labels = np.array(value["labels"], dtype=np.int64)
        if features.ndim != 2 or labels.shape != (len(features),) or not features.size:
            raise ValueError(f"features {list(features.shape)} of training texts with labels {list(labels.shape)}")
        return cls(features, labels)


@dataclass(frozen=True, eq=False)
class Unusual:
    """A text is unusual where at most a share `false_alarms` of the calibration texts has a score as high."""

    false_alarms: float
    scores: np.ndarray  # of calibration texts, ascending; high = unusual
    by: str = ENERGY
    training: TrainingFeatures | None = None  # of a distance, where the model is known

    def p_values(self, predictions: Predictions) -> np.ndarray:
        """p [n]: the share of calibration texts, and of the text itself, whose score is as high or higher."""
        scores = unusual_scores(self.by, predictions)
        if not self.can_tell(predictions):
            raise EbmcalError(
                f"The distances of these predictions (distance_{self.by}) were not measured by this rule: those of a "
                "run's files are from other features. Predict the texts again with the model that has the rule."
            )
        return p_values(scores, self.scores)

    def can_tell(self, predictions: Predictions) -> bool:
        """Whether predictions have the scores that the texts here have, as far as they say where those are from."""
        if self.by == ENERGY:
            return True
        is_ours = self.training is None or predictions.meta.get("distances") == self.training.mark
        return self.by in (predictions.distances or {}) and (is_ours or "energy" not in predictions.meta)

    @cached_property
    def measure(self) -> Callable[[np.ndarray], dict[str, np.ndarray]] | None:
        """Features [n, H] → the distance of this rule by its name, [n]; None where it needs no features."""
        if self.training is None:
            return None
        distance, size = self.training.distance(self.by), self.training.features.shape[1]

        def measured(features: np.ndarray) -> dict[str, np.ndarray]:
            if features.shape[1] != size:
                raise EbmcalError(
                    f"The rule has features of {size} numbers and the model of {features.shape[1]}: it is for another "
                    "model. Fit it again: ebmcal decide."
                )
            return {self.by: distance(features)}

        return measured

    def to_json(self) -> dict[str, Any]:
        training = None if self.training is None else self.training.to_json()
        about = {"false_alarms": self.false_alarms, "by": self.by, "scores": self.scores.tolist()}
        return about | {"training": training}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Unusual":
        """Of the first format too, which knew energies only."""
        if "energies" in value:
            return cls(value["false_alarms"], _as_scores(value["energies"]))
        if value["by"] not in UNUSUAL_BY:
            raise ValueError(f"unusual by {value['by']!r}")
        training = None if value["training"] is None else TrainingFeatures.from_json(value["training"])
        return cls(value["false_alarms"], _as_scores(value["scores"]), value["by"], training)


def _as_scores(values: Any) -> np.ndarray:
    scores = np.array(values, dtype=np.float64)
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError("scores of calibration texts that are not a list of numbers")
    return scores


def unusual_scores(by: str, predictions: Predictions) -> np.ndarray:
    """Scores [n] by which texts may be unusual, high = unusual."""
    if by == ENERGY:
        return energies_of(predictions)
    if by not in (predictions.distances or {}):
        raise EbmcalError(
            f"These predictions have no distances to the training texts (column distance_{by}), by which the rule "
            "tells unusual texts. Predict with the model that has the rule; or fit one with unusual_by='energy'."
        )
    return (predictions.distances or {})[by]
