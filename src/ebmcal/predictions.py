"""`Predictions`: what a classifier said about rows of text, the one type where the two halves meet."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.checks import as_probs


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits or probabilities of n rows over C classes, with labels, energies, ids and texts where known."""

    labels: np.ndarray  # [n] int64, -1 = label unknown
    label_names: tuple[str, ...]  # C names
    logits: np.ndarray | None = None  # [n, C]; exactly one of logits, probs
    probs: np.ndarray | None = None
    energies: np.ndarray | None = None  # [n], low = looks like data
    ids: np.ndarray | None = None  # [n] of str; default "0".."n-1"
    texts: list[str] | None = None
    text_pairs: list[str] | None = None
    meta: dict[str, Any] = field(default_factory=dict)  # task, method, seed, split, model, calibrator ... JSON-able

    @property
    def n_rows(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        return len(self.label_names)

    def probabilities(self) -> np.ndarray:
        """P(y|x) [n, C], float64."""
        return as_probs(logits=self.logits, probs=self.probs)

    def confidences(self) -> np.ndarray:
        """The largest probability of each row [n]."""
        return self.probabilities().max(axis=1)

    def predicted(self) -> np.ndarray:
        """The class of largest probability of each row [n]; the first one of a tie."""
        return self.probabilities().argmax(axis=1)

    def entropies(self) -> np.ndarray:
        """Entropy of P(·|x) in nats [n]."""
        raise NotImplementedError

    def labelled(self) -> "Predictions":
        """Only the rows whose label is known."""
        raise NotImplementedError

    def with_probs(self, probs: np.ndarray, **meta: Any) -> "Predictions":
        """The same rows with these probabilities instead of logits; `meta` is added."""
        raise NotImplementedError

    def write(self, path: str | Path) -> None:
        """Write by suffix: .parquet, .csv, .jsonl or .npz."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: str | Path, *, label_names: list[str] | None = None) -> "Predictions":
        """Read what `write` wrote or what somebody else's model wrote."""
        raise NotImplementedError
