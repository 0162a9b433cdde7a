"""Lines: metrics over training steps, accuracy against ECE, loss terms, risk over coverage, and any named series.

A history is the content of `history.jsonl`: a list of {"step": …, "loss": …} and {"step": …, "eval_…": …}. Series
with the same name (seeds of a method) share a style and one legend entry.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal import metrics
from ebmcal.predictions import Predictions
from ebmcal.reports.plots.style import add_legend, format_axes, get_axes, safe_label, show_message, styles_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

History = Sequence[Mapping[str, Any]]

#: Keys of a history and their names: evaluations, mean energies of a batch.
ECES = {"eval_ece_classwise": "ECE class-wise", "eval_ece_top_label": "ECE top-label"}
ENERGIES = {"energy_data": "data", "energy_noise": "noise"}

#: Keys of a training step that are not terms of the loss.
_NOT_TERMS = ("step", "epoch", "loss", "grad_norm", "learning_rate", "energy_", "noise_auroc", "eval_", "train_")


@dataclass(frozen=True)
class Series:
    """A named line: x [n], y [n] and, optionally, the ends of an interval around each y (NaN where unknown)."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def line_plot(
    series: Sequence[Series],
    ax: "Axes | None" = None,
    *,
    title: str = "",
    x: str = "",
    y: str = "",
    markers: bool = True,
) -> "Axes":
    """One line per series, with error bars where intervals are known.

    line_plot([Series("hidden", np.array([1, 2]), np.array([0.2, 0.1]))], x="step", y="loss")
    """
    ax = get_axes(ax)
    if not series:
        return show_message(ax, "Nothing was measured.")
    format_axes(ax, title=title, x=x, y=y)
    styles, seen = styles_for(line.name for line in series), set[str]()
    for line in series:
        style = styles[line.name]
        every = 1 if markers and len(line.x) <= 24 else max(1, len(line.x) // 8)  # so that dashes stay visible
        label = None if line.name in seen else safe_label(line.name)
        look: dict[str, Any] = {"color": style.color, "linestyle": style.dash, "marker": style.marker, "label": label}
        if line.low is None or line.high is None:
            ax.plot(line.x, line.y, linewidth=1.6, markersize=4, markevery=every, **look)
        else:
            reach = np.nan_to_num(np.clip([line.y - line.low, line.high - line.y], 0, None))
            ax.errorbar(line.x, line.y, yerr=reach, linewidth=1.4, elinewidth=0.8, capsize=2, markersize=4, **look)
        seen.add(line.name)
    add_legend(ax)
    return ax


def history_series(
    histories: Iterable[tuple[str, History]], y: str, x: str = "step", longest: int = 240
) -> list[Series]:
    """(name, history) pairs → one series each; long ones are averaged to `longest` points, entries without y skipped.

    >>> history_series([("a", [{"step": 1, "loss": 2.0}, {"step": 2, "eval_nll": 1.0}])], "loss")[0].y.tolist()
    [2.0]
    """
    found = []
    for name, history in histories:
        entries = sorted((e for e in history if _has(e, "step", x, y)), key=lambda entry: entry["step"])
        if entries:
            points = np.array([(entry[x], entry[y]) for entry in entries], dtype=np.float64)
            parts = np.array_split(points, min(len(points), longest))
            found.append(Series(name, *np.array([part.mean(axis=0) for part in parts]).T))
    return found


def ece_over_steps(
    histories: Sequence[tuple[str, History]], ax: "Axes | None" = None, *, ece: str = "eval_ece_classwise"
) -> "Axes":
    """ECE at every evaluation during training; one line per method and seed."""
    return line_plot(history_series(histories, ece), ax, x="step", y=ECES.get(ece, ece))


def accuracy_against_ece(
    histories: Sequence[tuple[str, History]],
    ax: "Axes | None" = None,
    *,
    ece: str = "eval_ece_classwise",
    accuracy: str = "eval_accuracy",
) -> "Axes":
    """One point per evaluated checkpoint, the last one ringed; good ones are low and to the right."""
    ax, series = get_axes(ax), history_series(histories, ece, accuracy, longest=10**9)
    if not series:
        return show_message(ax, "No evaluations during training.")
    format_axes(ax, x="accuracy", y=ECES.get(ece, ece))
    styles, seen = styles_for(line.name for line in series), set[str]()
    for line in series:
        style = styles[line.name]
        label = None if line.name in seen else safe_label(line.name)
        ax.plot(line.x, line.y, style.marker, color=style.color, markersize=5, alpha=0.6, label=label)
        ax.plot(line.x[-1:], line.y[-1:], "o", markersize=11, markerfacecolor="none", markeredgecolor=style.color)
        seen.add(line.name)
    add_legend(ax)
    return ax


def loss_terms(history: History) -> dict[str, str]:
    """The terms of the loss in a history: key → name.

    >>> loss_terms([{"step": 1, "loss": 1.2, "cross_entropy": 0.7, "nce_data": 0.5, "energy_data": -1.0}])
    {'cross_entropy': 'cross entropy', 'nce_data': 'nce data'}
    """
    keys = dict.fromkeys(key for entry in history if "loss" in entry for key in entry)
    return {key: key.replace("_", " ") for key in keys if not key.startswith(_NOT_TERMS)}


def history_terms(
    history: History, terms: Mapping[str, str], ax: "Axes | None" = None, *, title: str = "", y: str = ""
) -> "Axes":
    """Several quantities of one history over steps: `terms` maps keys to names, as `loss_terms` and `ENERGIES` do."""
    series = [line for key, name in terms.items() for line in history_series([(name, history)], key)]
    return line_plot(series, ax, title=title, x="step", y=y, markers=False)


def risk_coverage_curves(
    named: Mapping[str, Predictions], ax: "Axes | None" = None, *, by_energy: bool = False, most: int = 150
) -> "Axes":
    """The error rate among the most confident texts (or, `by_energy`, those of lowest energy) over their share.

    Lower is better; the right end is the error rate on all texts. Predictions without labels are skipped.
    """
    found = []
    for name, predictions in named.items():
        if not (predictions.labels >= 0).any() or (by_energy and predictions.energies is None):
            continue
        rows = predictions.labelled()
        scores = -np.asarray(rows.energies, dtype=np.float64) if by_energy else rows.confidence
        curve = metrics.risk_coverage(rows.labels, probs=rows.probs, scores=scores)
        kept = np.unique(np.linspace(0, len(curve.coverage) - 1, min(most, len(curve.coverage))).round().astype(int))
        found.append(Series(name, curve.coverage[kept], curve.risk[kept]))
    ax = line_plot(found, ax, x="coverage: share of texts answered", y="risk: share of errors", markers=False)
    if found:
        ax.set(xlim=(0, 1.01), ylim=(0, None))
    return ax


def _has(entry: Mapping[str, Any], *keys: str) -> bool:
    return all(isinstance(entry.get(key), int | float) and math.isfinite(entry[key]) for key in keys)
