"""The pictures of a report: an inline SVG each, with a heading and a line on how to read it.

`overview_pictures` show all methods of a run at once, `model_pictures` one trained model, with the baseline of the same
seed beside it where that helps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ebmcal import plots
from ebmcal.plots.svg import to_svg
from ebmcal.predictions import Predictions
from ebmcal.report.material import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = Callable[["Axes"], Any]
PANEL = (4.4, 3.2)  # all lengths are inches
LEFT, RIGHT, BOTTOM, TITLED, UNTITLED = 0.74, 0.16, 0.46, 0.32, 0.08
PER_ROW = 3
OVER_STEPS = (
    "Calibration error on the test split at each evaluation during training; lower is better. "
    "A line that climbs as training goes on belongs to a model that grows over-confident."
)
TRADEOFF = (
    "One point for each evaluation during training, the last one ringed. Further right is more accurate, "
    "further down is better calibrated."
)
NOISE_TOLD = (
    "How often the energy tells generated text from data while training. "
    "Near 0.5 it is guessing; near 1 the noise is too easy to teach much."
)
RISK_OF_ALL = (
    "If only the texts the model is most sure of were answered: the share of errors among them. "
    "Lower is better; the right end is the error on all texts. First seed of each method."
)
RELIABILITY = (
    "Bars: how often the model is right at each level of confidence, with 95% intervals. A calibrated model's bars "
    "end on the dashed diagonal; the hatched part is how far the mean confidence is from the accuracy, "
    "over-confidence where it reaches above the bar. "
    "Below: how many texts have that confidence, their mean confidence (dotted) and the accuracy (solid)."
)
CLASSES = (
    "The same for each label by itself: of the texts given this probability of the label, how many have it. "
    "ECE class-wise averages the distances over all labels."
)
RISK = (
    "Errors among the texts answered when only the most confident (or lowest-energy) ones are. "
    "A line that rises steadily from zero knows its own errors; a flat one does not."
)
ENTROPY = (
    "One point a text (at most 500 drawn). The method works if texts of higher energy, which look less like data, "
    "also get a less certain answer: the cloud rises to the right."
)
HISTOGRAM = (
    "How energies spread over the test texts, and over generated and out-of-domain ones where there are any. "
    "The less they overlap, the better the energy tells data from the rest."
)
HARDNESS = (
    "Each source and method: how often noise has the higher energy. In the grey band noise teaches; right of it, it is "
    "too easy, left of it too hard. A gap between training and held-out texts was memorised."
)
TRAINING = (
    "The terms of the loss and the mean energies as training went on. "
    "The noise term is weighted by the number of noise texts for each data text."
)


@dataclass(frozen=True)
class Picture:
    """`panels` is how many axes stand side by side: the page gives it as much room."""

    title: str
    svg: str
    reading: str
    panels: int = 1


def overview_pictures(subjects: Sequence[Subject]) -> list[Picture]:
    """ECE over steps, accuracy against ECE, noise told from data, risk and coverage: those there is data for."""
    histories = [(subject.method, subject.history) for subject in subjects]
    found = [*(_over_steps(histories, key) for key in plots.ECE_NAMES), _tradeoff(histories)]
    found += [_noise(histories), _risk_of_all(subjects)]
    return [picture for picture in found if picture]


def _over_steps(histories: Sequence[Any], key: str) -> Picture | None:
    data, name = plots.prepare_over_steps(histories, key), plots.ECE_NAMES[key]
    panel = partial(plots.draw_ece_over_steps, data, y=name)
    return draw(key, f"{name} over training steps", OVER_STEPS, panel) if data else None


def _tradeoff(histories: Sequence[Any]) -> Picture | None:
    data = plots.prepare_tradeoff(histories)
    return (
        draw("tradeoff", "Accuracy against ECE class-wise", TRADEOFF, partial(plots.draw_tradeoff, data))
        if data
        else None
    )


def _noise(histories: Sequence[Any]) -> Picture | None:
    data = plots.prepare_over_steps(histories, "noise_accuracy")
    return (
        draw("noise", "Telling noise from data", NOISE_TOLD, partial(plots.draw_noise_accuracy, data)) if data else None
    )


def hardness_picture(document: Mapping[str, Any]) -> Picture | None:
    """How often each source of noise was told from data."""
    data = plots.prepare_hardness(document)
    panel = partial(plots.draw_hardness, data)
    return draw("hardness", "How hard the noise was", HARDNESS, panel) if data else None


def _risk_of_all(subjects: Sequence[Subject]) -> Picture | None:
    first: dict[str, Predictions] = {}
    for subject in subjects:
        for rows in list(subject.test_sets().values())[:1]:
            first.setdefault(subject.method, rows)
    data = plots.prepare_risk_coverage(first)
    return draw("risk", "Risk and coverage", RISK_OF_ALL, partial(plots.draw_risk_coverage, data)) if data else None


def model_pictures(subject: Subject, baseline: Subject | None, key: str) -> list[Picture]:
    """Every figure there is data for; `key` names the model within the page."""
    beside = baseline if baseline is not subject else None
    found: list[Picture | None] = []
    for split, rows in subject.test_sets().items():
        other = beside.splits.get(split) if beside is not None else None
        others = {} if beside is None or other is None else {beside.method: other}
        place = _Place(f"{key}-{split}", "" if split == "test" else f", {split}")
        found += [_reliability(subject, rows, others, place), _classes(rows, place)]
        found += [_risk(subject, rows, others, place), _entropy(rows, place)]
    found += [_histogram(subject, key), _training(subject, key)]
    return [picture for picture in found if picture]


class _Place:
    """Where a figure stands: the start of its key, and what its heading adds for a test set other than the main one."""

    def __init__(self, key: str, where: str) -> None:
        self.key, self.where = key, where


def _reliability(subject: Subject, rows: Predictions, others: dict[str, Predictions], place: _Place) -> Picture:
    shown = [plots.prepare_reliability(r, name) for name, r in (others | {subject.method: rows}).items()]
    panels = [partial(plots.draw_reliability, data) for data in shown]
    return draw(f"{place.key}-rel", f"Reliability{place.where}", RELIABILITY, *panels, size=(4.4, 4.4), under=0.95)


def _classes(rows: Predictions, place: _Place) -> Picture | None:
    shown = plots.prepare_class_reliability(rows)
    panels = [partial(plots.draw_reliability, data, histogram=False) for data in shown]
    title = f"Reliability of each label{place.where}"
    if len(shown) < rows.n_classes:
        title += f": the {len(shown)} most frequent of {rows.n_classes}"
    return draw(f"{place.key}-cls", title, CLASSES, *panels, size=(3.1, 2.95)) if shown else None


def _risk(subject: Subject, rows: Predictions, others: dict[str, Predictions], place: _Place) -> Picture | None:
    lines = plots.prepare_risk_coverage(others | {subject.method: rows})
    lines += plots.prepare_risk_coverage({f"{subject.method}, by energy": rows}, by="energy")
    panel = partial(plots.draw_risk_coverage, lines)
    return draw(f"{place.key}-risk", f"Risk and coverage{place.where}", RISK, panel) if lines else None


def _entropy(rows: Predictions, place: _Place) -> Picture | None:
    data = plots.prepare_entropy_energy(rows)
    panel = partial(plots.draw_entropy_energy, data)
    return draw(f"{place.key}-ent", f"Entropy and energy{place.where}", ENTROPY, panel) if data else None


def _histogram(subject: Subject, key: str) -> Picture | None:
    ordered = sorted(subject.splits.items(), key=lambda item: (not item[0].startswith("test"), item[0]))
    named = {split.replace("ood_", "out of domain: "): rows for split, rows in ordered}
    data = plots.prepare_energy_histogram(named)
    panel = partial(plots.draw_energy_histogram, data)
    return draw(f"{key}-hist", "Energies of test, noise and other texts", HISTOGRAM, panel) if data else None


def _training(subject: Subject, key: str) -> Picture | None:
    losses = plots.prepare_terms([subject.history], plots.LOSS_TERMS)
    energies = plots.prepare_terms([subject.history], plots.ENERGIES)
    panels = []
    if losses:
        panels.append(partial(plots.draw_terms, losses, title="terms of the loss", y="loss"))
    if energies:
        panels.append(partial(plots.draw_terms, energies, title="mean energies", y="energy"))
    return draw(f"{key}-train", "Training", TRAINING, *panels) if panels else None


def draw(
    key: str, title: str, reading: str, *panels: Panel, size: tuple[float, float] = PANEL, under: float = 0.0
) -> Picture:
    """One figure with an axes for each of the `panels`, functions that draw on the axes they are given; three to a row.

    `key` names the figure within its page; `under` is room below the axes, in inches, for what a panel adds there.
    """
    from matplotlib.figure import Figure

    across, down = min(len(panels), PER_ROW), math.ceil(len(panels) / PER_ROW)
    figure = Figure(figsize=(size[0] * across, size[1] * down))
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for panel, ax in zip_longest(panels, axes):
        panel(ax) if panel else ax.set_axis_off()
    top = TITLED if any(ax.get_title(loc="left") for ax in axes) else UNTITLED
    for index, ax in enumerate(axes):
        ax.set_position(_place(divmod(index, across), (down, across), size, (LEFT, BOTTOM + under, RIGHT, top)))
    return Picture(title, to_svg(figure, key, title), reading, across)


def _place(
    cell: tuple[int, int], grid: tuple[int, int], size: tuple[float, float], margins: tuple[float, ...]
) -> tuple[float, float, float, float]:
    """Left, bottom, width, height as shares of the figure. A layout engine would draw every figure twice."""
    left, bottom, right, top = margins
    width, height = size[0] * grid[1], size[1] * grid[0]
    x, y = size[0] * cell[1] + left, size[1] * (grid[0] - 1 - cell[0]) + bottom
    return x / width, y / height, (size[0] - left - right) / width, (size[1] - bottom - top) / height
