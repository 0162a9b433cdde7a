"""Confusion matrix: which labels are mistaken for which."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.predictions import Predictions
from ebmcal.reports.plots.style import BLUE, INK, VERMILLION, format_axes, get_axes, safe_label, show_message

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def confusion_matrix(predictions: Predictions, ax: "Axes | None" = None) -> "Axes":
    """True labels (rows) against predicted labels (columns): counts, shaded by the share of the row.

    Correct predictions are blue, errors vermillion.

        confusion_matrix(predictions).figure.savefig("confusion.png")
    """
    ax = get_axes(ax)
    if not (predictions.labels >= 0).any():
        return show_message(ax, "No row has a label.")
    rows, n = predictions.labelled(), predictions.n_classes
    counts = np.zeros((n, n), dtype=int)
    np.add.at(counts, (rows.labels, rows.predicted), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    format_axes(ax, x="predicted label", y="true label")
    ax.grid(False)
    size = 9 if n <= 6 else 7
    for true, predicted in np.argwhere(counts > 0):
        color = BLUE if true == predicted else VERMILLION
        alpha = 0.08 + 0.5 * shares[true, predicted]
        ax.bar(predicted, 0.96, 0.96, bottom=true - 0.48, color=color, alpha=alpha, linewidth=0)
        count = f"{counts[true, predicted]:,}"
        ax.text(predicted, true, count, ha="center", va="center", fontsize=size, color=INK)
    names = [safe_label(name, 14) for name in rows.label_names]
    ax.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5))
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(n), names, **(turned if n * max(map(len, names)) > 42 else {}))
    ax.set_yticks(range(n), names)
    ax.tick_params(length=0)
    return ax
