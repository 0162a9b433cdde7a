"""Curves: over training (calibration error of the checkpoints, what it costs in accuracy, the terms of the loss), and
risk over coverage (the error among the texts a model is most sure of, as more and more of them are answered).

A history is a list of {"step": .., "loss": .., ..} and {"step": .., "eval_..": ..}; several seeds of one method share
a look and one entry in the legend.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.plots.reliability import labelled_rows
from ebmcal.plots.style import Look, add_legend, label_text, looks, on_axes, say_empty, tidy
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

History = Sequence[Mapping[str, Any]]
ECE_NAMES = {"eval_ece_classwise": "ECE class-wise", "eval_ece_top_label": "ECE top-label"}
LOSS_TERMS = {
    "cross_entropy": "cross-entropy",
    "data_term": "data term",
    "noise_term": "noise term",
    "posterior_term": "posterior term",
}
ENERGIES = {"energy_data": "data", "energy_noise": "noise"}
NO_HISTORY = "No evaluations during training."


@dataclass(frozen=True)
class Series:
    """One line of a figure.

    >>> Series("hidden", np.array([1, 2]), np.array([0.2, 0.1])).name
    'hidden'
    """

    name: str
    x: np.ndarray
    y: np.ndarray


def prepare_over_steps(histories: Iterable[tuple[str, History]], key: str, longest: int = 240) -> list[Series]:
    """(method, history) pairs → `key` over steps; long ones as means of equal stretches, lines without it left out.

    >>> prepare_over_steps([("a", [{"step": 1, "loss": 2.0}, {"step": 2, "eval_nll": 1.0}])], "loss")[0].y.tolist()
    [2.0]
    """
    found = [_series(name, history, "step", key, longest) for name, history in histories]
    return [series for series in found if len(series.x)]


def prepare_tradeoff(
    histories: Iterable[tuple[str, History]], ece: str = "eval_ece_classwise", performance: str = "eval_accuracy"
) -> list[Series]:
    """(method, history) pairs → accuracy (x) and calibration error (y) of every checkpoint, in the order of steps.

    >>> history = [{"step": 1, "eval_ece_classwise": 0.1, "eval_accuracy": 0.8}]
    >>> prepare_tradeoff([("hidden", history)])[0].x
    array([0.8])
    """
    found = [_series(name, history, performance, ece, 10**9) for name, history in histories]
    return [series for series in found if len(series.x)]


def draw_ece_over_steps(data: Sequence[Series], ax: "Axes | None" = None, *, y: str = "ECE class-wise") -> "Axes":
    """Test calibration error over training steps, a line for each method and seed.

    For example:

        draw_ece_over_steps(prepare_over_steps([("hidden", history)], "eval_ece_classwise"))
    """
    return _draw_lines(data, on_axes(ax), x="step", y=y)


def draw_tradeoff(data: Sequence[Series], ax: "Axes | None" = None, *, y: str = "ECE class-wise") -> "Axes":
    """Accuracy against ECE, a point a checkpoint, the last one ringed; good ones are low and to the right.

    For example:

        draw_tradeoff(prepare_tradeoff([("hidden", history)]))
    """
    ax = on_axes(ax)
    if not data:
        return say_empty(ax, NO_HISTORY)
    tidy(ax, x="accuracy", y=y)
    styles = looks(series.name for series in data)
    for series, label in _labelled(data):
        look = styles[series.name]
        ax.plot(
            series.x,
            series.y,
            linestyle="none",
            marker=look.marker,
            color=look.color,
            markersize=5,
            alpha=0.6,
            label=label,
        )
        ring: dict[str, Any] = {
            "markersize": 11,
            "markerfacecolor": "none",
            "markeredgecolor": look.color,
            "linestyle": "none",
        }
        ax.plot(series.x[-1:], series.y[-1:], marker="o", **ring)
    add_legend(ax)
    return ax


def draw_noise_accuracy(data: Sequence[Series], ax: "Axes | None" = None) -> "Axes":
    """How often the energy tells noise from data: one half is guessing, one means that the noise teaches no more.

    For example:

        draw_noise_accuracy(prepare_over_steps([("hidden", history)], "noise_accuracy"))
    """
    ax = _draw_lines(data, on_axes(ax), x="step", y="share told apart", markers=False)
    if data:
        ax.set_ylim(min(0.45, *(float(series.y.min()) for series in data)), 1.02)
    return ax


def draw_terms(data: Sequence[Series], ax: "Axes | None" = None, *, title: str, y: str) -> "Axes":
    """Any set of training curves of one method: the terms of its loss, or its energies.

    For example:

        draw_terms(prepare_terms([history], LOSS_TERMS), title="Loss", y="nats")
    """
    return _draw_lines(data, on_axes(ax), title=title, x="step", y=y, markers=False)


def prepare_terms(histories: Iterable[History], terms: Mapping[str, str]) -> list[Series]:
    """The curves of the `terms` (key → name in the legend) over the histories of one method's seeds.

    >>> prepare_terms([[{"step": 1, "cross_entropy": 0.7}]], {"cross_entropy": "labels"})[0].name
    'labels'
    """
    histories = list(histories)
    return [series for key, name in terms.items() for series in prepare_over_steps([(name, h) for h in histories], key)]


def prepare_risk_coverage(named: Mapping[str, Predictions], *, by: str = "confidence", most: int = 150) -> list[Series]:
    """Coverage (x) and risk (y) of each set of predictions, ranked by "confidence" or by "energy" (low first).

    Sets without labels, or without energies when ranked by them, are left out; long curves keep `most` points.

    >>> two = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.6, 0.4]])
    >>> prepare_risk_coverage({"mine": two})[0].y
    array([0. , 0.5])
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
    """A line for each; lower is better, and the right end is the error on all texts.

    For example:

        draw_risk_coverage(prepare_risk_coverage({"mine": predictions})).figure.savefig("risk.png")
    """
    ax = on_axes(ax)
    if not data:
        return say_empty(ax, "No row has a label.")
    tidy(ax, x="coverage: share of texts answered", y="risk: share of errors")
    for series, look in zip(data, looks(series.name for series in data).values(), strict=True):
        line: dict[str, Any] = {
            "color": look.color,
            "linestyle": look.line,
            "marker": look.marker,
            "markersize": 4,
            "linewidth": 1.6,
        }
        ax.plot(series.x, series.y, label=label_text(series.name), markevery=max(1, len(series.x) // 7), **line)
    ax.set(xlim=(0, 1.01), ylim=(0, None))
    add_legend(ax)
    return ax


def _series(name: str, history: History, x: str, y: str, longest: int) -> Series:
    """Pairs where both are finite numbers, by step."""
    lines = sorted((line for line in history if _known(line, "step", x, y)), key=lambda line: line["step"])
    points = np.array([(line[x], line[y]) for line in lines], dtype=np.float64).reshape(-1, 2)
    stretches = np.array_split(points, min(len(points), longest)) if len(points) else []
    means = np.array([stretch.mean(axis=0) for stretch in stretches]).reshape(-1, 2)
    return Series(name, means[:, 0], means[:, 1])


def _known(line: Mapping[str, Any], *keys: str) -> bool:
    return all(isinstance(line.get(key), (int, float)) and np.isfinite(line[key]) for key in keys)


def _labelled(data: Sequence[Series]) -> Iterable[tuple[Series, str | None]]:
    seen: set[str] = set()
    for series in data:
        yield series, None if series.name in seen else label_text(series.name)
        seen.add(series.name)


def _draw_lines(data: Sequence[Series], ax: "Axes", *, title: str = "", x: str, y: str, markers: bool = True) -> "Axes":
    if not data:
        return say_empty(ax, NO_HISTORY)
    tidy(ax, title=title, x=x, y=y)
    styles = looks(series.name for series in data)
    for series, label in _labelled(data):
        ax.plot(series.x, series.y, label=label, **_line(styles[series.name], len(series.x), markers))
    add_legend(ax)
    return ax


def _line(look: Look, n_points: int, markers: bool) -> dict[str, Any]:
    """Markers on about a dozen points, so that dashes stay visible."""
    style = {"color": look.color, "linestyle": look.line, "linewidth": 1.6, "marker": look.marker, "markersize": 4}
    return style | {"markevery": 1 if markers and n_points <= 24 else max(1, n_points // 8)}
