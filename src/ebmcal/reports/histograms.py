"""Compact histograms of energies: where the training, test, noise and OOD texts of a model lie.

A run stores them in the model's `ebmcal.json`, so that a new text can be placed among them. No matplotlib.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions


@dataclass(frozen=True)
class EnergyHistogram:
    """Common bin edges [B + 1] and, for each set of texts, the share of texts in each bin [B]."""

    edges: np.ndarray
    shares: dict[str, np.ndarray]

    def to_json(self) -> dict[str, Any]:
        return {
            "edges": self.edges.round(6).tolist(),
            "shares": {k: v.round(6).tolist() for k, v in self.shares.items()},
        }

    @classmethod
    def from_json(cls, data: Any) -> "EnergyHistogram":
        """Read what `to_json` wrote.

        >>> EnergyHistogram.from_json({"edges": [0, 1], "shares": {"test": [1]}}).shares
        {'test': array([1.])}
        """
        try:
            edges = np.array(data["edges"], dtype=np.float64)
            shares = {str(name): np.array(values, dtype=np.float64) for name, values in data["shares"].items()}
            if any(v.shape != (len(edges) - 1,) or not np.isfinite(v).all() for v in shares.values()):
                raise ValueError("expected one finite share per bin")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EbmcalError(f"The energy histograms of the model are not valid: {error}.") from error
        return cls(edges, shares)


def energy_histogram(named: Mapping[str, Predictions], n_bins: int = 30) -> EnergyHistogram | None:
    """Histograms over common bins, from the 0.5th to the 99.5th percentile; None if no predictions have energies.

    Energies outside the bins count in the first or last bin.

    >>> p = Predictions([0, 1], ("no", "yes"), logits=[[2.0, 0.0], [0.0, 1.0]], energies=[-2.0, -1.0])
    >>> energy_histogram({"test": p}, n_bins=2).shares["test"]
    array([0.5, 0.5])
    """
    found = {name: _finite(p.energies) for name, p in named.items() if p.energies is not None}
    found = {name: values for name, values in found.items() if len(values)}
    if not found:
        return None
    low = min(float(np.percentile(values, 0.5)) for values in found.values())
    high = max(float(np.percentile(values, 99.5)) for values in found.values())
    edges = np.linspace(low, high if high > low else low + 1.0, n_bins + 1)
    shares = {name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0] / len(v) for name, v in found.items()}
    return EnergyHistogram(edges, shares)


def _finite(values: Any) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    return values[np.isfinite(values)]
