"""Plots of predictions and training histories. Each function accepts `ax` and returns the axes it drew on.

Without `ax` a new figure is created, available as `ax.figure`. A history is the content of `history.jsonl`: a list of
{"step": …, "loss": …} and {"step": …, "eval_…": …}. Low energy = looks like data.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal import metrics
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.reports.figures import (
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
    styles_for,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

History = Sequence[Mapping[str, Any]]

#: Keys of a history and their names: evaluations, mean energies of a batch.
ECES = {"eval_ece_classwise": "ECE class-wise", "eval_ece_top_label": "ECE top-label"}
ENERGIES = {"energy_data": "data", "energy_noise": "noise"}

#: Keys of a training step that are not terms of the loss.
_NOT_TERMS = ("step", "epoch", "loss", "grad_norm", "learning_rate", "energy_", "noise_auroc", "eval_", "train_")

NO_LABELS, NO_ENERGIES = "No row has a label.", "These predictions have no energies."
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

    Ten bins for readability; the ECE in the title uses the twenty bins of the tables. With `label`, the diagram of that
    label: P(label | text) against how often the label is true. Rows without a label do not count.

        reliability_diagram(predictions, name="mine").figure.savefig("reliability.png")
    """
    ax = get_axes(ax, (4.0, 4.4))
    if not (predictions.labels >= 0).any():
        return show_message(ax, NO_LABELS)
    rows = predictions.labelled()
    options: dict[str, Any] = {"kind": "class", "class_index": rows.label_names.index(label)} if label else {}
    bins = metrics.reliability_bins(rows.labels, probs=rows.probs, n_bins=n_bins, **options)
    if label:
        detail = f"{(rows.labels == options['class_index']).sum():,} texts"
    else:
        detail = f"ECE top-label {metrics.ece_top_label(rows.labels, probs=rows.probs):.3f}"
    title = ", ".join(filter(str.strip, (safe_label(name or label or "", 30), detail)))
    x, y = ("P(label | text)", "share with the label") if label else ("confidence", "accuracy")
    format_axes(ax, title=title, x="" if histogram else x, y=y)
    full = bins.counts > 0
    left, width = bins.edges[:-1][full], np.diff(bins.edges)[full]
    accuracy, confidence = bins.accuracy[full], bins.confidence[full]
    ax.bar(left, accuracy, width, align="edge", color=BLUE, alpha=0.55, edgecolor=BLUE, linewidth=0.8, label=y)
    gap = {"facecolor": "none", "edgecolor": VERMILLION, "hatch": "////", "linewidth": 0.8}
    ax.bar(left, confidence - accuracy, width, bottom=accuracy, align="edge", label="gap to confidence", **gap)
    reach = np.clip([accuracy - bins.low[full], bins.high[full] - accuracy], 0, None)
    ax.errorbar(left + width / 2, accuracy, yerr=reach, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
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
    shares, edges = np.histogram(forecast, n_bins, (0, 1), weights=np.full(rows.n_rows, 1 / rows.n_rows))
    ax.bar(edges[:-1], shares, np.diff(edges), align="edge", color=GRID, edgecolor=MUTED, linewidth=0.6)
    ax.vlines(is_true.mean(), 0, 1, color=BLUE, linewidth=1.4, label="accuracy")
    ax.vlines(forecast.mean(), 0, 1, color=INK, linewidth=1.4, linestyle=":", label="mean confidence")
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=_QUARTERS, yticks=(0, 0.5, 1))
    return ax


def confusion_matrix(predictions: Predictions, ax: "Axes | None" = None) -> "Axes":
    """True labels (rows) against predicted labels (columns): counts, shaded by the share of the row.

    Correct predictions are blue, errors vermillion.

        confusion_matrix(predictions).figure.savefig("confusion.png")
    """
    ax = get_axes(ax)
    if not (predictions.labels >= 0).any():
        return show_message(ax, NO_LABELS)
    rows, n = predictions.labelled(), predictions.n_classes
    counts = np.zeros((n, n), dtype=int)
    np.add.at(counts, (rows.labels, rows.predicted), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    format_axes(ax, x="predicted label", y="true label")
    ax.grid(False)
    for true, predicted in np.argwhere(counts > 0):
        color = BLUE if true == predicted else VERMILLION
        alpha = 0.08 + 0.5 * shares[true, predicted]
        ax.bar(predicted, 0.96, 0.96, bottom=true - 0.48, color=color, alpha=alpha, linewidth=0)
        text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9 if n <= 6 else 7, "color": INK}
        ax.text(predicted, true, f"{counts[true, predicted]:,}", **text)
    names = [safe_label(name, 14) for name in rows.label_names]
    ax.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5))
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(n), names, **(turned if has_long_names(rows.label_names) else {}))
    ax.set_yticks(range(n), names)
    ax.tick_params(length=0)
    return ax


def has_long_names(names: Sequence[str]) -> bool:
    """Whether the names of labels under a confusion matrix must be turned."""
    return len(names) * max(len(safe_label(name, 14)) for name in names) > 42


@dataclass(frozen=True)
class Series:
    """A named line: x [n], y [n] and, optionally, the ends of an interval around each y (NaN where unknown).

    Series with the same name (seeds of a method) share a style and one legend entry.
    """

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
    styles = styles_for(line.name for line in series)
    for number, line in enumerate(series):
        style = styles[line.name]
        every = 1 if markers and len(line.x) <= 24 else max(1, len(line.x) // 8)  # so that dashes stay visible
        label = safe_label(line.name) if line.name not in {other.name for other in series[:number]} else None
        look: dict[str, Any] = {"color": style.color, "linestyle": style.dash, "marker": style.marker, "label": label}
        if line.low is None or line.high is None:
            ax.plot(line.x, line.y, linewidth=1.6, markersize=4, markevery=every, **look)
        else:
            reach = np.nan_to_num(np.clip([line.y - line.low, line.high - line.y], 0, None))
            ax.errorbar(line.x, line.y, yerr=reach, linewidth=1.4, elinewidth=0.8, capsize=2, markersize=4, **look)
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
        entries = [[entry.get(key) for key in ("step", x, y)] for entry in history]
        points = np.array(
            sorted(e for e in entries if all(isinstance(v, int | float) and math.isfinite(v) for v in e)), dtype=float
        )
        if len(points):
            parts = np.array_split(points[:, 1:], min(len(points), longest))
            found.append(Series(name, *np.array([part.mean(axis=0) for part in parts]).T))
    return found


def accuracy_against_ece(
    histories: Sequence[tuple[str, History]], ax: "Axes | None" = None, *, ece: str = "eval_ece_classwise"
) -> "Axes":
    """One point per evaluated checkpoint, the last one ringed; good ones are low and to the right."""
    series = history_series(histories, ece, "eval_accuracy", longest=10**9)
    ax = line_plot(series, ax, x="accuracy", y=ECES.get(ece, ece))
    for points in list(ax.lines):
        points.set(linestyle="none", alpha=0.6, markersize=5, markevery=1)
        last = np.asarray(points.get_data())[:, -1:]
        ax.plot(*last, "o", markersize=11, markerfacecolor="none", markeredgecolor=points.get_color())
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


@dataclass(frozen=True)
class EnergyHistogram:
    """Common bin edges [B + 1] and, for each set of texts, the share of texts in each bin [B].

    A run stores it in the model's `ebmcal.json`, so that a new text can be placed among the known ones.
    """

    edges: np.ndarray
    shares: dict[str, np.ndarray]

    def to_json(self) -> dict[str, Any]:
        shares = {name: values.round(6).tolist() for name, values in self.shares.items()}
        return {"edges": self.edges.round(6).tolist(), "shares": shares}

    @classmethod
    def from_json(cls, data: Any) -> "EnergyHistogram":
        """Read what `to_json` wrote.

        >>> EnergyHistogram.from_json({"edges": [0, 1], "shares": {"test": [1]}}).shares
        {'test': array([1.])}
        """
        try:
            edges = np.array(data["edges"], dtype=np.float64)
            shares = {str(name): np.array(values, dtype=np.float64) for name, values in data["shares"].items()}
            if any(v.shape != (len(edges) - 1,) or not np.isfinite(v).all() for v in shares.values()):
                raise ValueError("expected one finite share per bin")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EbmcalError(f"The energy histograms of the model are not valid: {error}.") from error
        return cls(edges, shares)


def energy_histogram(named: Mapping[str, Predictions], n_bins: int = 30) -> EnergyHistogram | None:
    """Histograms over common bins, from the 0.5th to the 99.5th percentile; None if no predictions have energies.

    Energies outside the bins count in the first or last bin.

    >>> p = Predictions([0, 1], ("no", "yes"), logits=[[2.0, 0.0], [0.0, 1.0]], energies=[-2.0, -1.0])
    >>> energy_histogram({"test": p}, n_bins=2).shares["test"]
    array([0.5, 0.5])
    """
    found = {k: np.asarray(p.energies, dtype=np.float64) for k, p in named.items() if p.energies is not None}
    found = {name: values[np.isfinite(values)] for name, values in found.items() if np.isfinite(values).any()}
    if not found:
        return None
    low = min(float(np.percentile(values, 0.5)) for values in found.values())
    high = max(float(np.percentile(values, 99.5)) for values in found.values())
    edges = np.linspace(low, high if high > low else low + 1.0, n_bins + 1)
    shares = {name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0] / len(v) for name, v in found.items()}
    return EnergyHistogram(edges, shares)


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
    shown = np.random.default_rng(seed).permutation(len(energies))[:most]
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
