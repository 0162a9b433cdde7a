"""Distances of test and other texts from the training texts, by the finetuned and by the untouched encoder.

They stand beside the energy in every comparison of out-of-domain detection. Finetuned features, taken half-way up, come
with the forward pass of the predictions; the untouched encoder, whose last states are taken, goes once over each split,
for all cells of a run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from ebmcal.metrics.distances import DISTANCES, Distance
from ebmcal.models.packing import packs, use_packing
from ebmcal.models.scoring import features
from ebmcal.models.tokens import TokenTable

#: Training texts that distances are measured from.
REFERENCE_ROWS = 2000


@dataclass(frozen=True)
class Reference:
    """Training texts that distances are measured from: their tokens, which of them, and their labels [n]."""

    table: TokenTable
    rows: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, table: TokenTable, rows: np.ndarray, labels: np.ndarray) -> "Reference":
        known = np.flatnonzero(labels >= 0)
        chosen = known[np.linspace(0, len(known) - 1, min(REFERENCE_ROWS, len(known))).astype(int)]
        return cls(table, rows[chosen], labels[chosen])

    def distances(self, encoder: nn.Module, *, middle: bool) -> dict[str, Distance]:
        """Each distance, fitted on the encoder's features of the reference: half-way up, or its last."""
        found = features(encoder, self.table, self.rows, middle=middle)
        return {name: fit(found, self.labels) for name, fit in DISTANCES.items()}


def untouched_distances(
    load: Callable[[], nn.Module], reference: Reference, splits: Sequence[tuple[str, TokenTable, np.ndarray]]
) -> dict[str, dict[str, np.ndarray]]:
    """Split → name → distances [n], by an encoder as it was before the training."""
    encoder = load()
    if packs(encoder):
        use_packing(encoder)
    fitted = reference.distances(encoder, middle=False)
    found = {split: features(encoder, table, rows) for split, table, rows in splits}
    return {s: {f"{name}_untouched": d(f) for name, d in fitted.items()} for s, f in found.items()}
