"""Energies: histograms over test, noise and OOD texts, and energy against the entropy of the posterior.

Low energy = looks like data.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ebmcal.predictions import Predictions
from ebmcal.reports.histograms import EnergyHistogram, energy_histogram
from ebmcal.reports.plots.style import (
    BLUE,
    INK,
    VERMILLION,
    add_legend,
    format_axes,
    get_axes,
    safe_label,
    show_message,
    styles_for,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_ENERGIES = "These predictions have no energies."


def energy_histograms(data: Mapping[str, Predictions] | EnergyHistogram, ax: "Axes | None" = None) -> "Axes":
    """Histograms of the energies of several sets of texts, drawn over each other.

    energy_histograms({"test": test, "noise": noise}).figure.savefig("energies.png")
    """
    ax = get_axes(ax)
    found = data if isinstance(data, EnergyHistogram) else energy_histogram(data)
    if found is None:
        return show_message(ax, NO_ENERGIES)
    format_axes(ax, x="energy Ê(x), low = looks like data", y="share of texts")
    for name, style in styles_for(found.shares).items():
        ax.stairs(
            found.shares[name], found.edges, fill=bool(style.hatch), facecolor="none", edgecolor=style.color,
            linestyle=style.dash, linewidth=1.5, hatch=style.hatch, label=safe_label(name),
        )  # fmt: skip
    add_legend(ax)
    return ax


def entropy_against_energy(
    predictions: Predictions, ax: "Axes | None" = None, *, most: int = 500, seed: int = 0
) -> "Axes":
    """One point per text (a sample of `most`): energy and entropy of P(·|x); crosses are wrong predictions.

    The title gives the rank correlation over all texts.
    """
    from scipy.stats import spearmanr

    ax = get_axes(ax)
    if predictions.energies is None or predictions.n_rows == 0:
        return show_message(ax, NO_ENERGIES)
    energies, entropy = np.asarray(predictions.energies, dtype=np.float64), predictions.entropy
    varies = len(energies) > 1 and np.ptp(energies) > 0 and np.ptp(entropy) > 0
    title = f"rank correlation {spearmanr(energies, entropy).statistic:.2f}" if varies else ""
    format_axes(ax, title=title, x="energy Ê(x)", y="entropy of P(·|x), nats")
    shown = np.arange(len(energies))
    if len(shown) > most:
        shown = np.sort(np.random.default_rng(seed).choice(shown, most, replace=False))
    correct = np.where(predictions.labels < 0, -1, predictions.predicted == predictions.labels)
    kinds = ((1, "right", BLUE, "o"), (0, "wrong", VERMILLION, "x"), (-1, "no label", INK, "."))
    for kind, name, color, marker in kinds:
        chosen = shown[correct[shown] == kind]
        if len(chosen):
            ax.plot(energies[chosen], entropy[chosen], marker, color=color, markersize=3.6, alpha=0.65, label=name)
    ax.set_ylim(0, np.log(predictions.n_classes) * 1.04)  # from certain to uniform, so that models are comparable
    # Above the points, next to the title: no corner is certain to be free.
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3, "borderaxespad": 0.2}
    add_legend(ax, **above, handlelength=1, columnspacing=1)
    return ax
