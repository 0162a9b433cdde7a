"""Risk–coverage: the error among the texts a model is most sure of, as more and more of them are answered."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ebmcal.plots.history import Series
from ebmcal.plots.reliability import labelled_rows
from ebmcal.plots.style import add_legend, label_text, looks, on_axes, say_empty, tidy
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def prepare_risk_coverage(named: Mapping[str, Predictions], *, by: str = "confidence", most: int = 150) -> list[Series]:
    """Coverage (x) and risk (y) of each set of predictions, ranked by "confidence" or by "energy" (low first).

    Sets without labels, or without energies when ranked by them, are left out; long curves keep `most` points.
    """
    from ebmcal.metrics import risk_coverage

    found = []
    for name, predictions in named.items():
        rows = labelled_rows(predictions)
        if rows is None or (by == "energy" and rows.energies is None):
            continue
        scores = -np.asarray(rows.energies, dtype=np.float64) if by == "energy" else rows.confidences()
        curve = risk_coverage(rows.labels, probs=rows.probabilities(), scores=scores)
        kept = np.unique(np.linspace(0, len(curve.coverage) - 1, min(most, len(curve.coverage))).round().astype(int))
        found.append(Series(name, curve.coverage[kept], curve.risk[kept]))
    return found


def draw_risk_coverage(data: list[Series], ax: "Axes | None" = None) -> "Axes":
    """A line for each; lower is better, and the right end is the error on all texts."""
    ax = on_axes(ax)
    if not data:
        return say_empty(ax, "No row has a label.")
    tidy(ax, x="coverage: share of texts answered", y="risk: share of errors")
    for series, look in zip(data, looks(series.name for series in data).values(), strict=True):
        line = {"color": look.color, "linestyle": look.line, "marker": look.marker, "markersize": 4, "linewidth": 1.6}
        ax.plot(series.x, series.y, label=label_text(series.name), markevery=max(1, len(series.x) // 7), **line)
    ax.set(xlim=(0, 1.01), ylim=(0, None))
    add_legend(ax)
    return ax
