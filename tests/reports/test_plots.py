"""Plots: drawn data against hand-worked numbers, drawing on given axes, odd names, small and deterministic SVG."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from ebmcal.metrics import ece_top_label
from ebmcal.predictions import Predictions
from ebmcal.reports import plots
from ebmcal.reports.plots import STYLES, energy_histogram, safe_label, styles_for, to_svg
from synthetic_run import LABELS, make_history, make_predictions

ODD_NAMES = (
    "a $b$ c_1^2",
    "one $",
    "\\alpha",
    "<script>",
    "_hidden",
    "😀 é שלום",
    "x" * 200,
    "two\nlines",
    "%s {0}",
    "\x00",
)
ROWS = make_predictions(60)
HISTORIES = [("hidden", make_history("hidden", 1)), ("baseline", make_history("baseline", 1))]
DRAWINGS = {
    "reliability": lambda ax: plots.reliability_diagram(ROWS, ax, name="a $b$"),
    "label": lambda ax: plots.reliability_diagram(ROWS, ax, label=LABELS[1]),
    "confusion": lambda ax: plots.confusion_matrix(ROWS, ax),
    "tradeoff": lambda ax: plots.accuracy_against_ece(HISTORIES, ax),
    "terms": lambda ax: plots.history_terms(HISTORIES[0][1], plots.loss_terms(HISTORIES[0][1]), ax, y="loss"),
    "entropy": lambda ax: plots.entropy_against_energy(ROWS, ax),
    "histogram": lambda ax: plots.energy_histograms({"test": ROWS, "noise": ROWS}, ax),
    "risk": lambda ax: plots.risk_coverage_curves({"a": ROWS, "b": ROWS}, ax),
}
NOTHING = {
    "reliability": lambda: plots.reliability_diagram(make_predictions(5, labels=False)),
    "confusion": lambda: plots.confusion_matrix(make_predictions(5, labels=False)),
    "lines": lambda: plots.line_plot([]),
    "tradeoff": lambda: plots.accuracy_against_ece([("a", [])]),
    "entropy": lambda: plots.entropy_against_energy(make_predictions(5, energies=False)),
    "histogram": lambda: plots.energy_histograms({}),
    "risk": lambda: plots.risk_coverage_curves({"a": make_predictions(5, labels=False)}),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_uses_the_given_axes_or_a_new_figure(name):
    ax = Figure().subplots()
    assert DRAWINGS[name](ax) is ax
    assert DRAWINGS[name](None).figure is not ax.figure
    assert to_svg(ax.figure, name).startswith("<svg")


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_to_draw_is_explained(name):
    svg = to_svg(NOTHING[name]().figure, name)
    assert re.search("No row has a label|Nothing was measured|no energies", svg)


def test_reliability_bars_intervals_gaps_and_title():
    probs = np.array([[0.95, 0.05]] * 10 + [[0.65, 0.35]] * 10)
    rows = Predictions([0] * 8 + [1] * 2 + [0] * 7 + [1] * 3, ("a", "b"), probs=probs)
    ax = plots.reliability_diagram(rows, name="mine", histogram=False)
    heights = sorted((round(p.get_y(), 3), round(p.get_height(), 3)) for p in ax.patches)
    assert heights == [(0.0, 0.7), (0.0, 0.8), (0.7, -0.05), (0.8, 0.15)], "accuracy from 0, gap up to confidence"
    (whiskers,) = [c for c in ax.collections if len(c.get_segments()) == 2]
    low, high = np.array(whiskers.get_segments())[:, :, 1].T
    assert (low < [0.7, 0.8]).all()
    assert (high > [0.7, 0.8]).all()
    assert ax.get_title(loc="left") == f"mine, ECE top-label {ece_top_label(rows.labels, probs=probs):.3f}"


def test_reliability_has_the_histogram_below_and_ignores_unlabelled_rows():
    rows = make_predictions(40)
    half = rows.replace(labels=np.where(np.arange(40) < 20, rows.labels, -1))
    (below,) = plots.reliability_diagram(half).child_axes
    assert sum(p.get_height() for p in below.patches) == pytest.approx(1)
    shown = plots.reliability_diagram(rows.rows(np.arange(20))).child_axes[0]
    assert [p.get_height() for p in below.patches] == [p.get_height() for p in shown.patches]


def test_confusion_matrix_counts_every_pair_once():
    rows = make_predictions(200)
    numbers = [int(text.get_text()) for text in plots.confusion_matrix(rows).texts]
    assert sum(numbers) == 200
    assert max(numbers) == max(((rows.labels == i) & (rows.predicted == j)).sum() for i in range(3) for j in range(3))


def test_long_names_of_labels_are_beside_the_confusion_matrix_and_numbered_below():
    names = tuple(f"card_payment_{end}" for end in ("fee_charged", "not_recognised_after_a_very_long_time", "declined"))
    ax = plots.confusion_matrix(make_predictions(200, 2.0, label_names=names))
    rows, columns = ([t.get_text() for t in labels] for labels in (ax.get_yticklabels(), ax.get_xticklabels()))
    assert rows[0] == "card_payment_fee_charged  1"
    assert rows[1] == "card_payment_not_…a_very_long_time  2", "the ends of names differ"
    assert columns == ["1", "2", "3"]


def test_panels_of_a_picture_are_figures_of_their_own():
    panels = [lambda ax: plots.line_plot([plots.Series("a", np.arange(3), np.arange(3))], ax)] * 2
    picture = plots.draw("key", "title", "", *panels)
    assert picture.svg.count("<svg") == picture.panels == 2
    ids = re.findall(r' id="(\w+)"', picture.svg)
    assert len(ids) == len(set(ids))


def test_the_legend_is_above_the_energies():
    rows = {name: make_predictions(200, 2.0, seed) for seed, name in enumerate(("test", "noise", "OOD: other"))}
    ax = plots.energy_histograms(rows)
    ax.figure.draw_without_rendering()
    bottom = ax.transData.inverted().transform(ax.get_legend().get_window_extent())[0, 1]
    assert max(max(shares) for shares in energy_histogram(rows)["shares"].values()) < bottom


def test_series_take_entries_with_the_key_in_the_order_of_steps():
    history = [{"step": 2, "eval_nll": 1.0}, {"step": 1, "eval_nll": 3.0}, {"step": 3, "loss": 0.0}]
    history += [{"step": 4, "eval_nll": float("nan")}, {"step": 5, "eval_nll": None}, {"eval_nll": 1.0}]
    (series,) = plots.history_series([("a", history), ("b", [])], "eval_nll")
    assert (series.x.tolist(), series.y.tolist()) == ([1, 2], [3, 1])
    long = [{"step": i, "loss": float(i % 2)} for i in range(1000)]
    (averaged,) = plots.history_series([("a", long)], "loss", longest=100)
    np.testing.assert_allclose(averaged.y, 0.5)
    assert len(averaged.x) == 100


def test_seeds_share_a_style_and_one_legend_entry():
    histories = [("hidden", make_history("hidden", s)) for s in (1, 2)]
    ax = plots.line_plot(plots.history_series(histories, "eval_ece_classwise"))
    assert len(ax.lines) == 2
    assert len({line.get_color() for line in ax.lines}) == 1
    assert len(ax.get_legend().get_texts()) == 1


def test_intervals_are_drawn_as_error_bars():
    y = np.array([0.5, 0.6])
    ax = plots.line_plot([plots.Series("a", np.array([1, 2]), y, y - 0.1, np.array([0.7, np.nan]))])
    segments = np.array(ax.collections[0].get_segments())[:, :, 1]
    np.testing.assert_allclose(segments, [[0.4, 0.7], [0.5, 0.6]])


def test_entropy_points_are_sampled_but_the_correlation_is_not():
    rows = make_predictions(2000)
    ax = plots.entropy_against_energy(rows, most=100)
    assert sum(len(line.get_xdata()) for line in ax.lines) == 100
    expected = spearmanr(rows.energies, rows.entropy).statistic
    assert ax.get_title(loc="left") == f"rank correlation {expected:.2f}"
    assert plots.entropy_against_energy(rows.rows([0])).get_title(loc="left") == ""


def test_energy_histogram_counts_every_text_once_and_is_json():
    energies = np.r_[np.linspace(-3, 0, 1000), 1e6]
    rows = Predictions(None, ("a", "b"), probs=np.full((1001, 2), 0.5), energies=energies)
    data = energy_histogram({"test": rows, "none": make_predictions(3, energies=False)})
    assert list(data["shares"]) == ["test"]
    assert sum(data["shares"]["test"]) == pytest.approx(1, abs=1e-4), "an outlier counts in the last bin"
    assert data["edges"][-1] < 1
    assert json.loads(json.dumps(data)) == data
    assert sum(energy_histogram({"a": rows.rows([3, 3])})["shares"]["a"]) == 1


def test_risk_coverage_ends_at_the_error_rate():
    rows = make_predictions(500)
    for by_energy in (False, True):
        (line,) = plots.risk_coverage_curves({"a": rows}, by_energy=by_energy).lines
        assert line.get_xdata()[-1] == pytest.approx(1)
        assert line.get_ydata()[-1] == pytest.approx((rows.predicted != rows.labels).mean())
        assert len(line.get_xdata()) <= 150
    three = Predictions([0, 1, 1], ("a", "b"), probs=[[0.6, 0.4], [0.9, 0.1], [0.8, 0.2]], energies=[-5.0, 1.0, 2.0])
    (line,) = plots.risk_coverage_curves({"a": three}, by_energy=True).lines
    np.testing.assert_allclose(line.get_ydata(), [0, 1 / 2, 2 / 3])


def test_methods_keep_their_style_and_no_two_styles_share_anything():
    names = ["baseline", "poscal", "scalar", "hidden", "sharp-hidden", "mine", "other"]
    chosen = styles_for(names)
    assert len(set(chosen.values())) == len(names)
    assert styles_for(["mine", "hidden"])["hidden"] == chosen["hidden"]
    for part in ("color", "dash", "marker", "hatch"):
        assert len({getattr(style, part) for style in STYLES}) == len(STYLES)
    assert len(styles_for([f"n{i}" for i in range(20)])) == 20


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_drawn_as_they_are(name):
    ax = plots.risk_coverage_curves({name: ROWS, "other": ROWS})
    ax.set_title(safe_label(name))
    root = ET.fromstring(to_svg(ax.figure, "k"))
    shown = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    expected = safe_label(name).replace(r"\$", "$").strip()
    assert sum((text or "").strip() == expected for text in shown) >= (2 if expected else 0), shown


def test_svg_is_deterministic_and_small():
    def svg(key):
        return to_svg(plots.entropy_against_energy(make_predictions(5000)).figure, key, "d")

    first = svg("a")
    assert first == svg("a")
    ids = re.findall(r' id="(\w+)"', first)
    assert len(ids) == len(set(ids))
    assert not set(ids) & set(re.findall(r' id="(\w+)"', svg("b"))), "two figures of a page must not share ids"
    assert len(first) < 100_000


def test_svg_needs_no_network_and_follows_the_colours_of_the_page():
    svg = to_svg(DRAWINGS["histogram"](None).figure, "k", 'a "b" <c>')
    assert ET.fromstring(svg).get("aria-label") == 'a "b" <c>'
    assert "<style" not in svg
    assert set(re.findall(r"https?://[^\"]*", svg)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "var(--fig-ink,#1b1f24)" in svg
    used = set(re.findall(r"url\(#(\w+)\)", svg)) | set(re.findall(r'href="#(\w+)"', svg))
    assert used <= set(re.findall(r' id="(\w+)"', svg)), "nothing that is referenced may be stripped"


def test_tradeoff_has_a_point_per_checkpoint_and_rings_the_last():
    ax = plots.accuracy_against_ece([("a", make_history("hidden", 1, 200))])
    points, ring = ax.lines
    assert len(points.get_xdata()) == 4
    assert ring.get_xdata().tolist() == [points.get_xdata()[-1]]


def test_reliability_of_a_label_is_class_wise():
    rows = make_predictions(200)
    ax = plots.reliability_diagram(rows, label=LABELS[0], histogram=False)
    assert ax.get_title(loc="left").endswith(f"{(rows.labels == 0).sum()} texts")
    lowest = rows.probs[:, 0] < 0.1
    assert ax.patches[0].get_height() == pytest.approx((rows.labels[lowest] == 0).mean())
