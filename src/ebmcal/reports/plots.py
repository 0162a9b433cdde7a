"""Plots of predictions and training histories, by matplotlib without pyplot, as SVG whose colours follow the page.

Each plot accepts `ax` and returns the axes it drew on; without `ax` a new figure is created, available as `ax.figure`.
Colour never carries meaning alone: every series also has its own marker, dash and hatch (Okabe–Ito colours). A history
is the content of `history.jsonl`: a list of {"step": …, "loss": …} and {"step": …, "eval_…": …}.
"""

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ebmcal import metrics
from ebmcal.predictions import Predictions
from ebmcal.reports.page import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, Any]]

#: Keys of a history and their names: evaluations, mean energies of a batch.
ECES = {"eval_ece_classwise": "ECE class-wise", "eval_ece_top_label": "ECE top-label"}
ENERGIES = {"energy_data": "data", "energy_noise": "noise"}

#: Keys of a training step that are not terms of the loss.
_NOT_TERMS = ("step", "epoch", "loss", "grad_norm", "learning_rate", "energy_", "noise_auroc", "eval_", "train_")

#: How to read each picture of a report.
CAPTIONS = {
    "reliability": "Bars: how often the model is right at each level of confidence, with 95% intervals. The bars of a "
    "calibrated model end on the dashed diagonal. The hatched part is the difference between confidence and accuracy: "
    "above the bar the model is overconfident, inside it underconfident. Below: how many texts have that confidence; "
    "dotted line: mean confidence, solid line: accuracy.",
    "confusion": "Rows: true label. Columns: predicted label, by its number if names are long. Blue: right. Orange: "
    "mistaken. Numbers in cells are test texts.",
    "labels": "Of the texts that get this probability of the label, how many have it. The class-wise ECE averages the "
    "differences over labels.",
    "risk": "If only the texts with the highest confidence (or lowest energy) were answered: the share of errors among "
    "them. Lower is better; the right end is the error rate on all texts.",
    "energy": "Bars: energies of the test texts, and of noise and OOD texts if there are any. The less they overlap, "
    "the better. Points: one per text. If the energy works as the paper describes, texts of higher energy also "
    "get a less certain answer: the points rise to the right.",
    "over_steps": "Calibration error at each evaluation during training; lower is better.",
    "tradeoff": "One point per evaluation during training, the last one ringed. Right: more accurate. Down: better "
    "calibrated.",
    "noise_auroc": "How well the energy separates noise from data in a batch: 0.5 is guessing; near 1 the noise is too "
    "easy.",
    "loss": "Terms of the loss during training; the noise term is weighted by the number of noise texts per data text.",
}

PAPER, INK, MUTED, GRID = "#ffffff", "#1b1f24", "#6a737d", "#d5d9de"
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"

#: Colour → name of its CSS variable (`--fig-<name>`), which a page redefines for dark mode.
VARIABLES = {
    PAPER: "paper", INK: "ink", MUTED: "muted", GRID: "grid", BLUE: "blue", ORANGE: "orange", GREEN: "green",
    VERMILLION: "vermillion", PURPLE: "purple", SKY: "sky",
}  # fmt: skip

# Layout of a panel in inches: its size, margins around its axes.
PANEL = (4.4, 3.2)
LEFT, RIGHT, BOTTOM, TITLED, UNTITLED = 0.74, 0.16, 0.46, 0.32, 0.08

_QUARTERS = (0, 0.25, 0.5, 0.75, 1)
NO_LABELS, NO_ENERGIES = "No row has a label.", "These predictions have no energies."


class Style(NamedTuple):
    """Colour, dash, marker and hatch of one series."""

    color: str
    dash: str | tuple[Any, ...]
    marker: str
    hatch: str


STYLES = (
    Style(INK, "-", "o", ""),
    Style(BLUE, "--", "s", "///"),
    Style(ORANGE, "-.", "^", "\\\\\\"),
    Style(GREEN, ":", "D", "---"),
    Style(VERMILLION, (0, (5, 1)), "v", "|||"),
    Style(PURPLE, (0, (3, 1, 1, 1)), "P", "xx"),
    Style(SKY, (0, (1, 1)), "X", "++"),
)
_FIXED = {"baseline": 0, "sharp-hidden": 1, "poscal": 2, "hidden": 3, "scalar": 4}  # methods of the paper


def styles_for(names: Iterable[str]) -> dict[str, Style]:
    """A style per name: methods of the paper always have the same one, other names get the remaining ones.

    >>> styles_for(["hidden"])["hidden"] == styles_for(["baseline", "hidden"])["hidden"]
    True
    """
    names = list(dict.fromkeys(names))
    taken = {name: STYLES[_FIXED[name]] for name in names if name in _FIXED}
    free = itertools.cycle([style for style in STYLES if style not in taken.values()] or STYLES)
    return {name: taken.get(name) or next(free) for name in names}


def safe_label(text: str, longest: int = 28) -> str:
    """A name on one line, at most `longest` characters, that matplotlib does not interpret.

    >>> safe_label("a $b$ c"), safe_label("_x"), len(safe_label("long " * 20))
    ('a \\\\$b\\\\$ c', ' _x', 28)
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > longest:  # in the middle: names often share their beginning
        text = f"{text[: longest // 2]}…{text[longest // 2 - longest + 1 :]}"
    # matplotlib omits labels that start with an underscore from legends.
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def get_axes(ax: "Axes | None", size: tuple[float, float] = (4.2, 3.4)) -> "Axes":
    """The given axes, or those of a new figure that pyplot does not manage."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").subplots()


def format_axes(ax: "Axes", *, title: str = "", x: str = "", y: str = "") -> None:
    """Titles, a light grid in the background, two spines, one text colour."""
    # A fixed height of the title saves matplotlib from measuring every tick.
    ax.set_title(title, fontsize=10, color=INK, loc="left", y=1.0, pad=6)
    ax.set_xlabel(x, fontsize=9, color=INK)
    ax.set_ylabel(y, fontsize=9, color=INK)
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.locator_params(nbins=6)
    ax.tick_params(labelsize=8, colors=MUTED, labelcolor=INK)
    ax.set_facecolor("none")
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)


def add_legend(ax: "Axes", **options: object) -> None:
    """A small legend on the colour of the page, if any series has a name."""
    if ax.get_legend_handles_labels()[1]:
        frame = {"facecolor": PAPER, "edgecolor": "none", "framealpha": 0.8, "borderpad": 0.3}
        ax.legend(**{"fontsize": 8, "labelcolor": INK, "handlelength": 2.6, **frame, **options})


def show_message(ax: "Axes", message: str) -> "Axes":
    """Empty axes with the reason why nothing is drawn."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, message, ha="center", va="center", fontsize=9, color=MUTED, transform=ax.transAxes, wrap=True)
    return ax


def draw(
    key: str,
    title: str,
    caption: str,
    *panels: Callable[["Axes"], Any],
    size: tuple[float, float] = PANEL,
    below: float = 0.0,
    left: float = LEFT,
) -> Picture:
    """A picture with one figure per panel, side by side where there is room. A panel draws on the axes it gets.

    `key` is unique on a page; `below` and `left` are extra or other room around the axes, in inches.
    """
    from matplotlib.figure import Figure

    figures = [Figure(figsize=size) for _ in panels]
    axes = [figure.subplots() for figure in figures]
    for panel, ax in zip(panels, axes, strict=True):
        panel(ax)
    names = [ax.get_title(loc="left") for ax in axes]
    top = TITLED if any(names) else UNTITLED
    inner = size[0] - left - RIGHT, size[1] - BOTTOM - below - top
    svgs = []
    for number, (figure, ax, name) in enumerate(zip(figures, axes, names, strict=True)):
        # A layout engine would draw every figure twice.
        ax.set_position((left / size[0], (BOTTOM + below) / size[1], inner[0] / size[0], inner[1] / size[1]))
        svgs.append(to_svg(figure, f"{key}-{number}", ": ".join(filter(None, (title, name)))))
    return Picture(title, "".join(svgs), caption, len(panels))


def to_svg(figure: "Figure", key: str, description: str = "") -> str:
    """The `<svg>` element of a figure, deterministic, with selectable text. Ids are derived from `key`."""
    import matplotlib

    buffer = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": f"ebmcal {key}"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # the browser's fonts have it
        no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    return compact_svg(buffer.getvalue(), description)


def compact_svg(svg: str, description: str = "") -> str:
    """Map colours to CSS variables and drop the prologue, fonts and excess digits; add a description.

    >>> compact_svg('<svg><path style="fill: #0072b2"/></svg>')
    '<svg font-family="sans-serif"><path style="fill: var(--fig-blue,#0072b2)"/></svg>'
    """
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r"<[^<>]*>", _compact_tag, svg)
    label = f' role="img" aria-label="{escape(description, quote=True)}"' if description else ""
    svg = svg.replace("<svg", f'<svg{label} font-family="sans-serif"', 1)
    return re.sub(r">\s*\n\s*<", "><", svg).strip()


def _compact_tag(match: re.Match[str]) -> str:
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", match.group())
    tag = re.sub(r' id="[A-Za-z2.]+_\d+"| font-family: [^;"]*;| transform="rotate\(-0 [^"]*"', "", tag)
    tag = re.sub(r' fill="(#[0-9a-f]{6})"', r' style="fill: \1"', " ".join(tag.split()))
    for color, name in VARIABLES.items():  # in a style: an attribute cannot hold a variable
        tag = tag.replace(f": {color}", f": var(--fig-{name},{color})")
    return tag


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
    index = rows.label_names.index(label) if label else None
    options: dict[str, Any] = {} if index is None else {"class_index": index}
    bins = metrics.reliability_bins(rows.labels, probs=rows.probs, n_bins=n_bins, **options)
    forecast = rows.confidence if index is None else rows.probs[:, index]
    is_true = rows.labels == (rows.predicted if index is None else index)
    x, y, detail = "P(label | text)", "share with the label", f"{is_true.sum():,} texts"
    if index is None:
        ece = metrics.ece_top_label(rows.labels, probs=rows.probs)
        x, y, detail = "confidence", "accuracy", f"ECE top-label {ece:.3f}"
    title = ", ".join(filter(str.strip, (safe_label(name or label or "", 30), detail)))
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
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": 2, "borderaxespad": 0.3}
        add_legend(ax, **below, fontsize=7.5, handlelength=1.6)  # any corner may have bars
        ax.tick_params(labelbottom=False)
        _confidence_histogram(ax.inset_axes((0, -0.36, 1, 0.24)), forecast, is_true, n_bins, x)
    return ax


def _confidence_histogram(ax: "Axes", forecast: np.ndarray, is_true: np.ndarray, n_bins: int, x: str) -> None:
    """The share of texts per bin; lines mark the mean confidence (dotted) and the accuracy (solid)."""
    format_axes(ax, x=x, y="share")
    shares, edges = np.histogram(forecast, n_bins, (0, 1), weights=np.full(len(forecast), 1 / len(forecast)))
    ax.bar(edges[:-1], shares, np.diff(edges), align="edge", color=GRID, edgecolor=MUTED, linewidth=0.6)
    ax.vlines(is_true.mean(), 0, 1, color=BLUE, linewidth=1.4)
    ax.vlines(forecast.mean(), 0, 1, color=INK, linewidth=1.4, linestyle=":")
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=_QUARTERS, yticks=(0, 0.5, 1))


def confusion_matrix(predictions: Predictions, ax: "Axes | None" = None) -> "Axes":
    """True labels (rows) against predicted labels (columns): counts, shaded by the share of the row.

    Correct predictions are blue, errors vermillion. If names are long, columns have the numbers of the rows.

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
        alpha = 0.15 + 0.45 * shares[true, predicted]
        ax.bar(predicted, 0.96, 0.96, bottom=true - 0.48, color=color, alpha=alpha, linewidth=0)
        text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9 if n <= 6 else 7, "color": INK}
        ax.text(predicted, true, f"{counts[true, predicted]:,}", **text)
    names = matrix_names(rows.label_names)
    is_numbered = has_long_names(rows.label_names)
    ax.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5))
    ax.set_xticks(range(n), [str(i + 1) for i in range(n)] if is_numbered else names)
    ax.set_yticks(range(n), [f"{name}  {i + 1}" for i, name in enumerate(names)] if is_numbered else names)
    ax.tick_params(length=0)
    return ax


def matrix_names(names: Sequence[str]) -> list[str]:
    """The names of labels beside a confusion matrix."""
    return [safe_label(name, 34) for name in names]


def has_long_names(names: Sequence[str]) -> bool:
    """Whether the names of labels do not fit under a confusion matrix."""
    return len(names) * max(map(len, matrix_names(names))) > 42


class Series(NamedTuple):
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
        known = [e for e in entries if all(isinstance(v, int | float) and math.isfinite(v) for v in e)]
        if known:
            points = np.array(sorted(known), dtype=float)[:, 1:]
            parts = np.array_split(points, min(len(points), longest))
            found.append(Series(name, *np.array([part.mean(axis=0) for part in parts]).T))
    return found


def accuracy_against_ece(histories: Sequence[tuple[str, History]], ax: "Axes | None" = None) -> "Axes":
    """One point per evaluated checkpoint, the last one ringed; good ones are low and to the right."""
    series = history_series(histories, "eval_ece_classwise", "eval_accuracy", longest=10**9)
    ax = line_plot(series, ax, x="accuracy", y="ECE class-wise")
    for points in list(ax.lines):
        points.set(linestyle="none", alpha=0.6, markersize=5, markevery=1)
        last = np.asarray(points.get_data())[:, -1:]
        ax.plot(*last, "o", markersize=11, markerfacecolor="none", markeredgecolor=points.get_color())
    return ax


def loss_terms(history: History) -> dict[str, str]:
    """The terms of the loss in a history: key → name.

    >>> loss_terms([{"step": 1, "loss": 1.2, "cross_entropy": 0.7, "nce_data": 0.5, "energy_data": -1.0}])
    {'cross_entropy': 'cross entropy', 'nce_data': 'NCE, data'}
    """
    keys = dict.fromkeys(key for entry in history if "loss" in entry for key in entry)
    return {key: re.sub("^nce ", "NCE, ", key.replace("_", " ")) for key in keys if not key.startswith(_NOT_TERMS)}


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
    axes = {"x": "coverage: share of texts answered", "y": "risk: share of errors"}
    ax = line_plot(found, ax, title=f"by {'energy' if by_energy else 'confidence'}", **axes, markers=False)
    if found:
        ax.set(xlim=(0, 1.01), ylim=(0, None))
    return ax


def energy_histogram(named: Mapping[str, Predictions], n_bins: int = 30) -> dict[str, Any] | None:
    """Bin edges [B + 1] and, for each set of texts, the share of texts in each bin [B]; None without energies.

    Bins reach from the 0.5th to the 99.5th percentile; energies outside count in the first or last bin. A run stores it
    in the model's `ebmcal.json`, so that a new text can be placed among the known ones.

    >>> p = Predictions([0, 1], ("no", "yes"), logits=[[2.0, 0.0], [0.0, 1.0]], energies=[-2.0, -1.0])
    >>> energy_histogram({"test": p}, n_bins=2)["shares"]
    {'test': [0.5, 0.5]}
    """
    found = {k: np.asarray(p.energies, dtype=np.float64) for k, p in named.items() if p.energies is not None}
    found = {name: values[np.isfinite(values)] for name, values in found.items() if np.isfinite(values).any()}
    if not found:
        return None
    low = min(float(np.percentile(values, 0.5)) for values in found.values())
    high = max(float(np.percentile(values, 99.5)) for values in found.values())
    edges = np.linspace(low, high if high > low else low + 1.0, n_bins + 1)
    shares = {name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0] / len(v) for name, v in found.items()}
    return {"edges": edges.round(6).tolist(), "shares": {name: v.round(6).tolist() for name, v in shares.items()}}


def energy_histograms(named: Mapping[str, Predictions], ax: "Axes | None" = None) -> "Axes":
    """Histograms of the energies of several sets of texts, drawn over each other.

    energy_histograms({"test": test, "noise": noise}).figure.savefig("energies.png")
    """
    ax = get_axes(ax)
    found = energy_histogram(named)
    if found is None:
        return show_message(ax, NO_ENERGIES)
    format_axes(ax, x="energy Ê(x), low = looks like data", y="share of texts")
    for name, style in styles_for(found["shares"]).items():
        look: dict[str, Any] = {"edgecolor": style.color, "linestyle": style.dash, "hatch": style.hatch}
        look |= {"fill": bool(style.hatch), "facecolor": "none", "linewidth": 1.5, "label": safe_label(name)}
        ax.stairs(found["shares"][name], found["edges"], **look)
    # Room for the legend above the highest bar.
    ax.set_ylim(0, max(map(max, found["shares"].values())) / max(0.5, 0.96 - 0.08 * len(found["shares"])))
    add_legend(ax, loc="upper right")
    return ax


def entropy_against_energy(predictions: Predictions, ax: "Axes | None" = None, *, most: int = 500) -> "Axes":
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
    shown = np.random.default_rng(0).permutation(len(energies))[:most]
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
