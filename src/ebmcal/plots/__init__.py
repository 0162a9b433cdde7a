"""Figures in two steps: `prepare_…` computes plain data, `draw_…(data, ax=None)` draws it on axes and returns them.

No pyplot and no global state: without `ax` a figure of its own is made, reachable as `ax.figure`.
"""

from ebmcal.plots.coverage import draw_risk_coverage, prepare_risk_coverage
from ebmcal.plots.energy import (
    EnergyHistogram,
    EntropyEnergy,
    draw_energy_histogram,
    draw_entropy_energy,
    prepare_energy_histogram,
    prepare_entropy_energy,
)
from ebmcal.plots.history import (
    ECE_NAMES,
    ENERGIES,
    LOSS_TERMS,
    Series,
    draw_ece_over_steps,
    draw_noise_accuracy,
    draw_terms,
    draw_tradeoff,
    prepare_over_steps,
    prepare_terms,
    prepare_tradeoff,
)
from ebmcal.plots.reliability import (
    Reliability,
    draw_confidence_histogram,
    draw_reliability,
    prepare_class_reliability,
    prepare_reliability,
)
from ebmcal.plots.svg import to_svg

__all__ = [
    "ECE_NAMES",
    "ENERGIES",
    "LOSS_TERMS",
    "EnergyHistogram",
    "EntropyEnergy",
    "Reliability",
    "Series",
    "draw_confidence_histogram",
    "draw_ece_over_steps",
    "draw_energy_histogram",
    "draw_entropy_energy",
    "draw_noise_accuracy",
    "draw_reliability",
    "draw_risk_coverage",
    "draw_terms",
    "draw_tradeoff",
    "prepare_class_reliability",
    "prepare_energy_histogram",
    "prepare_entropy_energy",
    "prepare_over_steps",
    "prepare_reliability",
    "prepare_risk_coverage",
    "prepare_terms",
    "prepare_tradeoff",
    "to_svg",
]
