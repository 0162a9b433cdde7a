"""Calibrators that learn one curve per label, from its one-vs-rest log-odds to its probability.

With two classes there is one curve, for label 1, and P(0) = 1 - P(1); with more the curves are fitted one by one
and rows are divided by their sum. A curve is a frozen dataclass of numbers and arrays that can be called.
"""

from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from ebmcal.calibrators.contract import Calibrator
from ebmcal.calibrators.logodds import log_odds, rows_of


class OneVsRest(Calibrator):
    """Common part of the calibrators with one curve per label; learned: `curves_`."""

    curve: ClassVar[type]
    learned = ("curves_",)

    def _fit_curve(self, odds: np.ndarray, hits: np.ndarray) -> Any:
        """The curve for log-odds `[n]` of one label and whether each row has that label `[n]`."""
        raise NotImplementedError

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        odds = log_odds(logits)
        labels = [1] if len(odds) == 2 else range(len(odds))
        self.curves_ = [self._fit_curve(odds[label], y == label) for label in labels]

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        odds = log_odds(logits)
        if len(odds) == 2:
            p = self.curves_[0](odds[1])
            return np.stack([1.0 - p, p], axis=1)
        return rows_of(np.stack([curve(line) for curve, line in zip(self.curves_, odds, strict=True)]))

    def _learned_to_json(self, name: str) -> Any:
        return [
            {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in asdict(curve).items()}
            for curve in self.curves_
        ]

    @classmethod
    def _learned_from_json(cls, name: str, value: Any) -> Any:
        return [
            cls.curve(**{k: np.asarray(v, dtype=np.float64) if isinstance(v, list) else v for k, v in curve.items()})
            for curve in value
        ]
