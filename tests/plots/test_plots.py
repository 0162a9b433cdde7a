"""Plots: the data against hand-worked figures, drawing on given axes, odd names, SVG that is small and repeatable."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from ebmcal import plots
from ebmcal.metrics import ece_top_label, reliability_bins
from ebmcal.plots.style import LOOKS, label_text, looks
from ebmcal.plots.svg import compact
from ebmcal.predictions import Predictions
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


def axes():
    return Figure().subplots()


def all_drawings():
    """Every draw function with data of its own."""
    rows, histories = (
        make_predictions(60),
        [("hidden", make_history("hidden", 1)), ("baseline", make_history("baseline", 1))],
    )
    reliability = plots.prepare_reliability(rows, "a $b$")
    terms = plots.prepare_terms([histories[0][1]], plots.LOSS_TERMS)
    return {
        "reliability": (plots.draw_reliability, reliability),
        "confidence": (plots.draw_confidence_histogram, reliability),
        "class": (plots.draw_reliability, plots.prepare_class_reliability(rows)[0]),
        "ece": (plots.draw_ece_over_steps, plots.prepare_over_steps(histories, "eval_ece_classwise")),
        "tradeoff": (plots.draw_tradeoff, plots.prepare_tradeoff(histories)),
        "noise": (plots.draw_noise_accuracy, plots.prepare_over_steps(histories, "noise_accuracy")),
        "terms": (lambda data, ax=None: plots.draw_terms(data, ax, title="t", y="loss"), terms),
        "entropy": (plots.draw_entropy_energy, plots.prepare_entropy_energy(rows)),
        "histogram": (plots.draw_energy_histogram, plots.prepare_energy_histogram({"test": rows, "noise": rows})),
        "risk": (plots.draw_risk_coverage, plots.prepare_risk_coverage({"a": rows, "b": rows})),
    }


DRAWINGS = all_drawings()
NOTHING = {
    "reliability": (plots.draw_reliability, plots.prepare_reliability(make_predictions(5, labels=False))),
    "ece": (plots.draw_ece_over_steps, []),
    "tradeoff": (plots.draw_tradeoff, []),
    "noise": (plots.draw_noise_accuracy, []),
    "entropy": (plots.draw_entropy_energy, None),
    "histogram": (plots.draw_energy_histogram, None),
    "risk": (plots.draw_risk_coverage, []),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_uses_the_given_axes_or_makes_its_own(name):
    draw, data = DRAWINGS[name]
    ax = axes()
    assert draw(data, ax) is ax
    assert draw(data).figure is not ax.figure
    assert plots.to_svg(ax.figure, name).startswith("<svg")


@pytest.mark.parametrize("name", NOTHING)
def test_drawing_nothing_says_so(name):
    draw, data = NOTHING[name]
    svg = plots.to_svg(draw(data).figure, name)
    assert re.search("No row has a label|No evaluations|no energies", svg)


def test_no_pyplot_and_no_torch_are_loaded():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from synthetic_run import make_predictions; from ebmcal import plots;"
        "plots.to_svg(plots.draw_reliability(plots.prepare_reliability(make_predictions(9))).figure, 'k');"
        "print([m for m in ('matplotlib.pyplot', 'torch', 'pandas', 'scipy.stats') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, Path(__file__).parents[1]], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_reliability_data_are_the_bins_and_the_title_names_the_ece():
    rows = make_predictions(300, 3.0)
    data = plots.prepare_reliability(rows, "baseline")
    bins = reliability_bins(rows.labels, probs=rows.probabilities(), n_bins=10)
    np.testing.assert_array_equal(data.bins.accuracy, bins.accuracy)
    assert data.shares.sum() == pytest.approx(1)
    assert data.accuracy == pytest.approx((rows.predicted() == rows.labels).mean())
    ece = ece_top_label(rows.labels, probs=rows.probabilities())
    assert plots.draw_reliability(data).get_title(loc="left") == f"baseline, ECE top-label {ece:.3f}"


def test_reliability_bars_intervals_and_gaps():
    probs = np.array([[0.95, 0.05]] * 10 + [[0.65, 0.35]] * 10)
    labels = [0] * 8 + [1] * 2 + [0] * 7 + [1] * 3
    data = plots.prepare_reliability(Predictions(labels, ("a", "b"), probs=probs))
    ax = plots.draw_reliability(data, histogram=False)
    heights = sorted((round(p.get_y(), 3), round(p.get_height(), 3)) for p in ax.patches)
    assert heights == [(0.0, 0.7), (0.0, 0.8), (0.7, -0.05), (0.8, 0.15)], (
        "accuracy from zero, gap up to the confidence"
    )
    (whiskers,) = [c for c in ax.collections if len(c.get_segments()) == 2]
    low, high = np.array(whiskers.get_segments())[:, :, 1].T
    assert (low < [0.7, 0.8]).all()
    assert (high > [0.7, 0.8]).all()


def test_reliability_puts_the_histogram_under_the_bars():
    ax = plots.draw_reliability(plots.prepare_reliability(make_predictions(50)))
    (below,) = ax.child_axes
    assert below.get_position().y1 <= ax.get_position().y1
    assert sum(p.get_height() for p in below.patches) == pytest.approx(1)


def test_rows_without_a_label_do_not_count():
    rows = make_predictions(40)
    mixed = Predictions(np.where(np.arange(40) < 20, rows.labels, -1), LABELS, logits=rows.logits)
    assert plots.prepare_reliability(mixed).bins.counts.sum() == 20


def test_class_reliability_is_class_wise_and_keeps_the_most_frequent():
    rows = make_predictions(200)
    first = plots.prepare_class_reliability(rows)[0]
    assert first.name == LABELS[0]
    assert first.accuracy == pytest.approx((rows.labels == 0).mean())
    assert first.bins.counts.sum() == 200
    names = tuple(f"c{i}" for i in range(9))
    labels = np.repeat(np.arange(9), np.arange(1, 10))
    many = plots.prepare_class_reliability(Predictions(labels, names, probs=np.full((45, 9), 1 / 9)), most=3)
    assert [data.name for data in many] == ["c6", "c7", "c8"]


def test_curves_take_only_lines_that_have_the_key_in_the_order_of_steps():
    history = [{"step": 2, "eval_nll": 1.0}, {"step": 1, "eval_nll": 3.0}, {"step": 3, "loss": 0.0}]
    history += [{"step": 4, "eval_nll": float("nan")}, {"step": 5, "eval_nll": None}, {"eval_nll": 1.0}]
    (series,) = plots.prepare_over_steps([("a", history), ("b", [])], "eval_nll")
    assert (series.x.tolist(), series.y.tolist()) == ([1, 2], [3, 1])


def test_long_curves_are_means_of_equal_stretches():
    history = [{"step": i, "loss": float(i % 2)} for i in range(1000)]
    (series,) = plots.prepare_over_steps([("a", history)], "loss", longest=100)
    np.testing.assert_allclose(series.y, 0.5)
    assert len(series.x) == 100


def test_tradeoff_has_a_point_for_each_checkpoint():
    (series,) = plots.prepare_tradeoff([("a", make_history("hidden", 1, 200))])
    assert len(series.x) == 4
    assert (np.diff(series.x) > 0).all()


def test_seeds_share_a_look_and_one_legend_entry():
    data = plots.prepare_over_steps([("hidden", make_history("hidden", s)) for s in (1, 2)], "eval_ece_classwise")
    ax = plots.draw_ece_over_steps(data)
    assert len(ax.lines) == 2
    assert len({line.get_color() for line in ax.lines}) == 1
    assert len(ax.get_legend().get_texts()) == 1


def test_entropy_energy_is_thinned_but_its_correlation_is_not():
    rows = make_predictions(2000)
    data = plots.prepare_entropy_energy(rows, most=100)
    assert len(data.energies) == 100
    assert data.n_rows == 2000
    assert data.correlation == pytest.approx(spearmanr(rows.energies, rows.entropies()).statistic)
    np.testing.assert_array_equal(data.energies, plots.prepare_entropy_energy(rows, most=100).energies)
    tied = Predictions([0, 0, 0], ("a", "b"), probs=[[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]], energies=[1.0, 2.0, 2.0])
    assert plots.prepare_entropy_energy(tied).correlation == pytest.approx(0.5)
    assert np.isnan(plots.prepare_entropy_energy(tied.rows([1, 2])).correlation)


def test_energy_histogram_counts_every_text_once():
    energies = np.r_[np.linspace(-3, 0, 1000), 1e6]
    rows = Predictions(np.full(1001, -1), ("a", "b"), probs=np.full((1001, 2), 0.5), energies=energies)
    data = plots.prepare_energy_histogram({"test": rows, "none": make_predictions(3, energies=False)})
    assert list(data.shares) == ["test"]
    assert data.shares["test"].sum() == pytest.approx(1), "an outlier counts in the end bin"
    assert data.edges[-1] < 1
    same = Predictions([0, 0], ("a", "b"), probs=np.full((2, 2), 0.5), energies=[2.0, 2.0])
    assert plots.prepare_energy_histogram({"a": same}).shares["a"].sum() == 1


def test_risk_coverage_ends_at_the_error_of_all_texts():
    rows = make_predictions(500)
    by_confidence, by_energy = (plots.prepare_risk_coverage({"a": rows}, by=by)[0] for by in ("confidence", "energy"))
    error = (rows.predicted() != rows.labels).mean()
    for series in (by_confidence, by_energy):
        assert series.x[-1] == pytest.approx(1)
        assert series.y[-1] == pytest.approx(error)
        assert len(series.x) <= 150
    assert plots.prepare_risk_coverage({"a": make_predictions(5, labels=False)}) == []
    assert plots.prepare_risk_coverage({"a": make_predictions(5, energies=False)}, by="energy") == []


def test_risk_by_energy_answers_low_energies_first():
    rows = Predictions([0, 1, 1], ("a", "b"), probs=[[0.6, 0.4], [0.9, 0.1], [0.8, 0.2]], energies=[-5.0, 1.0, 2.0])
    (series,) = plots.prepare_risk_coverage({"a": rows}, by="energy")
    np.testing.assert_allclose(series.y, [0, 1 / 2, 2 / 3])


def test_methods_keep_their_look_and_no_two_look_alike():
    names = ["baseline", "poscal", "scalar", "hidden", "sharp-hidden", "mine", "other"]
    chosen = looks(names)
    assert len(set(chosen.values())) == len(names)
    assert looks(["mine", "hidden"])["hidden"] == chosen["hidden"]
    for part in ("color", "line", "marker", "hatch"):
        assert len({getattr(look, part) for look in LOOKS}) == len(LOOKS), f"{part} alone must tell them apart"
    assert len(looks([f"n{i}" for i in range(20)])) == 20


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_drawn_as_they_are(name):
    rows = make_predictions(20)
    ax = plots.draw_risk_coverage(plots.prepare_risk_coverage({name: rows, "other": rows}))
    ax.set_title(label_text(name))
    svg = plots.to_svg(ax.figure, "k")
    root = ET.fromstring(svg)
    shown = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    expected = label_text(name).replace(r"\$", "$").strip()
    assert sum((text or "").strip() == expected for text in shown) >= (2 if expected else 0), shown


def test_svg_is_repeatable_and_small():
    def svg(key):
        return plots.to_svg(
            plots.draw_entropy_energy(plots.prepare_entropy_energy(make_predictions(5000))).figure, key, "d"
        )

    assert svg("a") == svg("a")
    ids = re.findall(r' id="(\w+)"', svg("a"))
    assert len(ids) == len(set(ids))
    assert not set(ids) & set(re.findall(r' id="(\w+)"', svg("b"))), "two figures of a page must not share ids"
    assert len(svg("a")) < 60_000


def test_svg_needs_nothing_from_outside_and_follows_the_page():
    ax = plots.draw_energy_histogram(
        plots.prepare_energy_histogram({"test": make_predictions(50), "b": make_predictions(9)})
    )
    svg = plots.to_svg(ax.figure, "k", 'a "b" <c>')
    root = ET.fromstring(svg)
    assert root.get("aria-label") == 'a "b" <c>'
    assert "DOCTYPE" not in svg
    assert "<style" not in svg
    assert set(re.findall(r"https?://[^\"]*", svg)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "var(--fig-ink,#1b1f24)" in svg
    used = set(re.findall(r"url\(#(\w+)\)", svg)) | set(re.findall(r'href="#(\w+)"', svg))
    assert used <= set(re.findall(r' id="(\w+)"', svg)), "nothing that is referred to may be stripped"


def test_compact_leaves_text_alone():
    raw = (
        '<?xml?>\n<svg xmlns="http://www.w3.org/2000/svg"><text x="1.23456"> id="text_1" 0.123456 #0072b2</text></svg>'
    )
    assert compact(raw).endswith('<text x="1.23"> id="text_1" 0.123456 #0072b2</text></svg>')
