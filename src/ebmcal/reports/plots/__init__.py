"""Plots of predictions and training histories. Each function accepts `ax` and returns the axes it drew on.

No pyplot and no global state: without `ax` a new figure is created, available as `ax.figure`.
"""

from ebmcal.reports.plots.confusion import confusion_matrix
from ebmcal.reports.plots.curves import (
    ECES,
    ENERGIES,
    Series,
    accuracy_against_ece,
    ece_over_steps,
    history_series,
    history_terms,
    line_plot,
    loss_terms,
    risk_coverage_curves,
)
from ebmcal.reports.plots.energy import energy_histograms, entropy_against_energy
from ebmcal.reports.plots.reliability import confidence_histogram, reliability_diagram
from ebmcal.reports.plots.svg import to_svg

__all__ = [
    "ECES",
    "ENERGIES",
    "Series",
    "accuracy_against_ece",
    "confidence_histogram",
    "confusion_matrix",
    "ece_over_steps",
    "energy_histograms",
    "entropy_against_energy",
    "history_series",
    "history_terms",
    "line_plot",
    "loss_terms",
    "reliability_diagram",
    "risk_coverage_curves",
    "to_svg",
]
