"""Reliability diagrams: accuracy at each level of confidence, with the confidence histogram below.

Ten bins for readability; the ECE in the title uses the twenty bins of the tables.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal import metrics
from ebmcal.predictions import Predictions
from ebmcal.reports.plots.style import (
    BLUE,
    GRID,
    INK,
    MUTED,
    VERMILLION,
    add_legend,
    format_axes,
    get_axes,
    safe_label,
    show_message,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_LABELS = "No row has a label."
_QUARTERS = (0, 0.25, 0.5, 0.75, 1)


def reliability_diagram(
    predictions: Predictions,
    ax: "Axes | None" = None,
    *,
    name: str = "",
    label: str | None = None,
    n_bins: int = 10,
    histogram: bool = True,
) -> "Axes":
    """Accuracy per confidence bin with 95% intervals, the gap to the mean confidence, and the histogram below.

    With `label`, the diagram of that label: P(label | text) against how often the label is true. Rows without a label
    do not count.

        reliability_diagram(predictions, name="mine").figure.savefig("reliability.png")
    """
    ax = get_axes(ax, (4.0, 4.4))
    if not (predictions.labels >= 0).any():
        return show_message(ax, NO_LABELS)
    rows = predictions.labelled()
    options: dict[str, Any] = {"kind": "class", "class_index": rows.label_names.index(label)} if label else {}
    bins = metrics.reliability_bins(rows.labels, probs=rows.probs, n_bins=n_bins, **options)
    x, y = ("P(label | text)", "share with the label") if label else ("confidence", "accuracy")
    format_axes(ax, title=_title(rows, name, label), x="" if histogram else x, y=y)
    _draw_bars(bins, ax, y)
    ax.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=_QUARTERS, yticks=_QUARTERS)
    if histogram:
        add_legend(ax, loc="upper left", fontsize=7.5, handlelength=1.6)
        ax.tick_params(labelbottom=False)
        confidence_histogram(rows, ax.inset_axes((0, -0.36, 1, 0.3)), label=label, n_bins=n_bins)
    return ax


def confidence_histogram(
    predictions: Predictions, ax: "Axes | None" = None, *, label: str | None = None, n_bins: int = 10
) -> "Axes":
    """The share of texts per confidence bin; lines mark the mean confidence (dotted) and the accuracy (solid)."""
    ax = get_axes(ax, (4.0, 1.6))
    if not (predictions.labels >= 0).any():
        return show_message(ax, NO_LABELS)
    rows = predictions.labelled()
    format_axes(ax, x="P(label | text)" if label else "confidence", y="share")
    index = rows.label_names.index(label) if label else None
    forecast = rows.confidence if index is None else rows.probs[:, index]
    is_true = rows.labels == (rows.predicted if index is None else index)
    edges = np.linspace(0, 1, n_bins + 1)
    shares = np.histogram(forecast, edges)[0] / rows.n_rows
    ax.bar(edges[:-1], shares, np.diff(edges), align="edge", color=GRID, edgecolor=MUTED, linewidth=0.6)
    ax.vlines(is_true.mean(), 0, 1, color=BLUE, linewidth=1.4, label="accuracy")
    ax.vlines(forecast.mean(), 0, 1, color=INK, linewidth=1.4, linestyle=":", label="mean confidence")
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=_QUARTERS, yticks=(0, 0.5, 1))
    return ax


def _title(rows: Predictions, name: str, label: str | None) -> str:
    if label:
        detail = f"{int((rows.labels == rows.label_names.index(label)).sum()):,} texts"
    else:
        detail = f"ECE top-label {metrics.ece_top_label(rows.labels, probs=rows.probs):.3f}"
    return ", ".join(part for part in (safe_label(name or label or "", 30), detail) if part.strip())


def _draw_bars(bins: Any, ax: "Axes", name: str) -> None:
    """Only bins that hold texts. The hatched part spans from the accuracy to the mean confidence."""
    full = bins.counts > 0
    left, width = bins.edges[:-1][full], np.diff(bins.edges)[full]
    accuracy, confidence = bins.accuracy[full], bins.confidence[full]
    ax.bar(left, accuracy, width, align="edge", color=BLUE, alpha=0.55, edgecolor=BLUE, linewidth=0.8, label=name)
    gap = {"facecolor": "none", "edgecolor": VERMILLION, "hatch": "////", "linewidth": 0.8}
    ax.bar(left, confidence - accuracy, width, bottom=accuracy, align="edge", label="gap to confidence", **gap)
    reach = np.clip([accuracy - bins.low[full], bins.high[full] - accuracy], 0, None)
    ax.errorbar(left + width / 2, accuracy, yerr=reach, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
