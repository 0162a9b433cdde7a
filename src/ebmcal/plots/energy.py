"""Energies: against the entropy of the posterior, and as histograms over test, noise and out-of-domain texts.

Low energy = looks like data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.plots.style import INK, LOOKS, VERMILLION, add_legend, label_text, looks, on_axes, say_empty, tidy
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_ENERGIES = "This model has no energies."


@dataclass(frozen=True)
class EntropyEnergy:
    """Points of the scatter, thinned; `right` is 1 for a right prediction, 0 for a wrong one, -1 without a label.

    For example:

        data = prepare_entropy_energy(predictions)
    """

    energies: np.ndarray  # [n]
    entropies: np.ndarray  # [n], nats
    right: np.ndarray  # [n]
    n_rows: int  # before thinning
    correlation: float  # of all rows, Spearman's
    highest: float  # the entropy of a uniform posterior


@dataclass(frozen=True)
class EnergyHistogram:
    """Shared edges and, for each set of texts, the share in each bin. Values outside count in the end bins.

    For example:

        data = prepare_energy_histogram({"test": test, "noise": noise})
    """

    edges: np.ndarray  # [B + 1]
    shares: dict[str, np.ndarray]  # name → [B]


def prepare_entropy_energy(predictions: Predictions, most: int = 500, seed: int = 0) -> EntropyEnergy | None:
    """Entropy of P(·|x) and energy of each text; at most `most` of them, drawn by `seed`. None without energies.

    >>> prepare_entropy_energy(Predictions([0], ("no", "yes"), logits=[[0.0, 0.0]], energies=[-1.0])).entropies.round(3)
    array([0.693])
    """
    if predictions.energies is None:
        return None
    energies, entropies = np.asarray(predictions.energies, dtype=np.float64), predictions.entropies()
    finite = np.flatnonzero(np.isfinite(energies) & np.isfinite(entropies))
    if not len(finite):
        return None
    correlation = _spearman(energies[finite], entropies[finite])
    shown = finite
    if len(finite) > most:
        shown = np.sort(np.random.default_rng(seed).choice(finite, most, replace=False))
    right = np.where(predictions.labels < 0, -1, predictions.predicted() == predictions.labels)
    uniform = float(np.log(predictions.n_classes))
    return EntropyEnergy(energies[shown], entropies[shown], right[shown], len(finite), correlation, uniform)


def prepare_energy_histogram(named: Mapping[str, Predictions], n_bins: int = 30) -> EnergyHistogram | None:
    """Histograms over common bins, from the 0.5th to the 99.5th percentile of all energies. None without energies.

    >>> two = Predictions([0, 1], ("no", "yes"), logits=[[2.0, 0.0], [0.0, 1.0]])
    >>> prepare_energy_histogram({"test": two}) is None  # no energies
    True
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


def draw_entropy_energy(data: EntropyEnergy | None, ax: "Axes | None" = None) -> "Axes":
    """A point a text: circles for right predictions, crosses for wrong ones.

    For example:

        draw_entropy_energy(prepare_entropy_energy(predictions)).figure.savefig("entropy.png")
    """
    ax = on_axes(ax)
    if data is None:
        return say_empty(ax, NO_ENERGIES)
    tidy(
        ax,
        title=f"rank correlation {data.correlation:.2f}",
        x="energy Ê(x)",
        y="entropy of P(·|x), nats",
    )
    kinds = ((1, "right", LOOKS[1].color, "o"), (0, "wrong", VERMILLION, "x"), (-1, "no label", INK, "."))
    for value, name, color, marker in kinds:
        chosen = data.right == value
        if chosen.any():
            points: dict[str, Any] = {
                "linestyle": "none",
                "marker": marker,
                "color": color,
                "markersize": 3.6,
                "alpha": 0.65,
            }
            ax.plot(data.energies[chosen], data.entropies[chosen], label=name, **points)
    ax.set_ylim(0, max(data.highest, 1e-9) * 1.04)  # from certain to uniform, so that models can be compared
    # Above the points, beside the title: the cloud leaves no corner free for certain.
    add_legend(
        ax, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2, handlelength=1, columnspacing=1
    )
    return ax


def draw_energy_histogram(data: EnergyHistogram | None, ax: "Axes | None" = None) -> "Axes":
    """Outlines over each other, each with its own colour, dash and hatch.

    For example:

        draw_energy_histogram(prepare_energy_histogram({"test": test, "noise": noise})).figure.savefig("energies.png")
    """
    ax = on_axes(ax)
    if data is None:
        return say_empty(ax, NO_ENERGIES)
    tidy(ax, x="energy Ê(x), low = looks like data", y="share of texts")
    for name, look in looks(data.shares).items():
        options: dict[str, Any] = {
            "edgecolor": look.color,
            "linestyle": look.line,
            "linewidth": 1.5,
            "hatch": look.hatch,
        }
        ax.stairs(
            data.shares[name], data.edges, fill=bool(look.hatch), facecolor="none", label=label_text(name), **options
        )
    add_legend(ax)
    return ax


def _finite(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    return values[np.isfinite(values)]


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; not a number where one of them never changes."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """The mean rank of equal values; by hand, for scipy.stats takes a second to import.

    >>> _ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places]
