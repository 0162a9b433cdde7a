"""The figures that show all methods of a run at once."""

from collections.abc import Sequence
from functools import partial

from ebmcal import plots
from ebmcal.predictions import Predictions
from ebmcal.report.picture import Picture, draw
from ebmcal.report.reading import Subject

OVER_STEPS = (
    "Calibration error on the test split at each evaluation during training; lower is better. "
    "A line that climbs as training goes on belongs to a model that grows over-confident."
)
TRADEOFF = (
    "One point for each evaluation during training, the last one ringed. Further right is more accurate, "
    "further down is better calibrated."
)
NOISE = (
    "How often the energy tells generated text from data while training. "
    "Near 0.5 it is guessing; near 1 the noise is too easy to teach much."
)
RISK = (
    "If only the texts the model is most sure of were answered: the share of errors among them. "
    "Lower is better; the right end is the error on all texts. First seed of each method."
)


def overview(subjects: Sequence[Subject]) -> list[Picture]:
    """ECE over steps, accuracy against ECE, noise told from data, risk and coverage: those there is data for."""
    histories = [(subject.method, subject.history) for subject in subjects]
    found = [*(_over_steps(histories, key) for key in plots.ECE_NAMES), _tradeoff(histories)]
    found += [_noise(histories), _risk(subjects)]
    return [picture for picture in found if picture]


def _over_steps(histories: Sequence, key: str) -> Picture | None:
    data, name = plots.prepare_over_steps(histories, key), plots.ECE_NAMES[key]
    panel = partial(plots.draw_ece_over_steps, data, y=name)
    return draw(key, f"{name} over training steps", OVER_STEPS, panel) if data else None


def _tradeoff(histories: Sequence) -> Picture | None:
    data = plots.prepare_tradeoff(histories)
    return (
        draw("tradeoff", "Accuracy against ECE class-wise", TRADEOFF, partial(plots.draw_tradeoff, data))
        if data
        else None
    )


def _noise(histories: Sequence) -> Picture | None:
    data = plots.prepare_over_steps(histories, "noise_accuracy")
    return draw("noise", "Telling noise from data", NOISE, partial(plots.draw_noise_accuracy, data)) if data else None


def _risk(subjects: Sequence[Subject]) -> Picture | None:
    first: dict[str, Predictions] = {}
    for subject in subjects:
        for rows in list(subject.test_sets().values())[:1]:
            first.setdefault(subject.method, rows)
    data = plots.prepare_risk_coverage(first)
    return draw("risk", "Risk and coverage", RISK, partial(plots.draw_risk_coverage, data)) if data else None
