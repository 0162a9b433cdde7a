"""Reliability: how often the model is right at each level of confidence, with the confidence histogram under it.

Ten bins for readability; the calibration errors in the title use the twenty of the tables. Top-label for the model as
a whole, class-wise for each label by itself.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ebmcal.plots.style import BLUE, GRID, INK, MUTED, VERMILLION, add_legend, label_text, on_axes, say_empty, tidy
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from ebmcal.metrics import Bins

CLASS_AXES = ("P(label | text)", "share with the label")


@dataclass(frozen=True)
class Reliability:
    """One reliability plot: bins (None without labelled rows), the share of rows in each, and the two means.

    For example:

        prepare_reliability(predictions).bins.accuracy  # [n_bins]
    """

    name: str
    bins: "Bins | None"
    shares: np.ndarray  # [B], sums to one
    mean_confidence: float
    accuracy: float
    subtitle: str = ""
    axes: tuple[str, str] = ("confidence", "accuracy")  # what stands along x and y


def prepare_reliability(predictions: Predictions, name: str = "", n_bins: int = 10) -> Reliability:
    """Top-label bins of the labelled rows, with Wilson intervals.

    >>> data = prepare_reliability(Predictions(np.array([0, 1]), ("a", "b"), probs=np.array([[0.9, 0.1], [0.3, 0.7]])))
    >>> data.bins.counts.tolist()
    [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]
    """
    from ebmcal import metrics

    rows = labelled_rows(predictions)
    if rows is None:
        return _empty(name, n_bins)
    probs = rows.probabilities()
    bins = metrics.reliability_bins(rows.labels, probs=probs, n_bins=n_bins)
    ece = metrics.ece_top_label(rows.labels, probs=probs)
    right = float(np.mean(probs.argmax(axis=1) == rows.labels))
    return Reliability(name, bins, _shares(bins), float(probs.max(axis=1).mean()), right, f"ECE top-label {ece:.3f}")


def prepare_class_reliability(predictions: Predictions, n_bins: int = 10, most: int = 6) -> list[Reliability]:
    """Class-wise bins of each label: P(label|x) against how often it is the label. The `most` frequent labels only.

    >>> two = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.2, 0.8]])
    >>> [data.name for data in prepare_class_reliability(two)]
    ['no', 'yes']
    """
    from ebmcal import metrics

    rows = labelled_rows(predictions)
    if rows is None:
        return []
    probs = rows.probabilities()
    counts = np.bincount(rows.labels, minlength=rows.n_classes)
    shown = sorted(np.argsort(-counts, kind="stable")[:most])
    found = []
    for c in map(int, shown):
        bins = metrics.reliability_bins(rows.labels, probs=probs, n_bins=n_bins, kind="class", class_index=c)
        means = float(probs[:, c].mean()), float(counts[c] / rows.n_rows)
        name = rows.label_names[c]
        found.append(Reliability(name, bins, _shares(bins), *means, f"n = {counts[c]:,}", CLASS_AXES))
    return found


def draw_reliability(data: Reliability, ax: "Axes | None" = None, *, histogram: bool = True) -> "Axes":
    """Bars of accuracy with intervals, the gap to the confidence hatched, the diagonal, and the histogram under it.

    For example:

        draw_reliability(prepare_reliability(predictions, "mine")).figure.savefig("reliability.png")
    """
    ax = on_axes(ax, (4.0, 4.4))
    if data.bins is None:
        return say_empty(ax, "No row has a label.")
    title = ", ".join(part for part in (label_text(data.name, 22), data.subtitle) if part)
    tidy(ax, title=title, x="" if histogram else data.axes[0], y=data.axes[1])
    _draw_bars(data.bins, ax)
    ax.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    _set_quarters(ax.xaxis, ax.yaxis)
    if histogram:
        add_legend(ax, loc="upper left", fontsize=7.5, handlelength=1.6)
        ax.tick_params(labelbottom=False)
        draw_confidence_histogram(data, ax.inset_axes((0, -0.36, 1, 0.3)))
    return ax


def draw_confidence_histogram(data: Reliability, ax: "Axes | None" = None) -> "Axes":
    """The share of texts at each confidence; lines mark the mean confidence and the accuracy.

    For example:

        draw_confidence_histogram(prepare_reliability(predictions))
    """
    ax = on_axes(ax, (4.0, 1.6))
    if data.bins is None:
        return say_empty(ax, "No row has a label.")
    tidy(ax, x=data.axes[0], y="share")
    edges = data.bins.edges
    ax.bar(edges[:-1], data.shares, np.diff(edges), align="edge", color=GRID, edgecolor=MUTED, linewidth=0.6)
    ax.vlines(data.accuracy, 0, 1, color=BLUE, linewidth=1.4, label="accuracy")
    ax.vlines(data.mean_confidence, 0, 1, color=INK, linewidth=1.4, linestyle=":", label="mean confidence")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    _set_quarters(ax.xaxis)
    ax.locator_params(axis="y", nbins=3)
    return ax


def labelled_rows(predictions: Predictions) -> Predictions | None:
    """The rows with a label; None, rather than an error, where there are none."""
    return predictions.labelled() if (predictions.labels >= 0).any() else None


def _draw_bars(bins: "Bins", ax: "Axes") -> None:
    """Only bins with texts. The hatched part runs from the accuracy to the mean confidence."""
    full = bins.counts > 0
    left, width = bins.edges[:-1][full], np.diff(bins.edges)[full]
    accuracy, confidence = bins.accuracy[full], bins.confidence[full]
    ax.bar(left, accuracy, width, align="edge", color=BLUE, alpha=0.55, edgecolor=BLUE, linewidth=0.8, label="accuracy")
    gap = {"facecolor": "none", "edgecolor": VERMILLION, "hatch": "////", "linewidth": 0.8, "label": "gap"}
    ax.bar(left, confidence - accuracy, width, bottom=accuracy, align="edge", **gap)
    reach = np.clip([accuracy - bins.low[full], bins.high[full] - accuracy], 0, None)
    ax.errorbar(left + width / 2, accuracy, yerr=reach, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)


def _set_quarters(*axes: "Axis") -> None:
    from matplotlib.ticker import FixedLocator

    for axis in axes:
        axis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))


def _shares(bins: "Bins") -> np.ndarray:
    return bins.counts / max(int(bins.counts.sum()), 1)


def _empty(name: str, n_bins: int) -> Reliability:
    return Reliability(name, None, np.zeros(n_bins), float("nan"), float("nan"))
