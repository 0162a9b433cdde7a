"""The advice at the end of a run: from calibration rows, for models that are over-, under- and well confident."""

import numpy as np
import pytest

from ebmcal.advice import advise, candidates, cautions, choose, sentences
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder


def draw(scale, n=2000, seed=0, quality=1.0):
    """Rows of a two-class model that is calibrated when `scale` is 1 and overconfident above."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 2, n)
    labels = (rng.random(n) < 1 / (1 + np.exp(-true))).astype(int)
    seen = quality * true + (1 - quality) * rng.normal(0, 2, n)
    logits = np.stack([np.zeros(n), scale * seen], axis=1)
    return Predictions(labels, ("no", "yes"), logits=logits, ids=[f"r{i}" for i in range(n)])


def advice_for(**runs):
    found = [c for method, rows in runs.items() for c in candidates(method, [rows])]
    chosen = choose(found)
    return chosen, sentences(found, chosen, largest_class=0.5)


@pytest.mark.parametrize(
    ("scale", "words"), [(3.0, "is overconfident"), (0.3, "is underconfident"), (1.0, "neither over- nor under")]
)
def test_the_confidence_of_the_baseline_is_said(scale, words):
    _, said = advice_for(baseline=draw(scale))
    assert words in said[0]


def test_temperature_is_chosen_where_it_helps_and_the_better_model_wins():
    chosen, said = advice_for(baseline=draw(6.0, quality=0.7), hidden=draw(2.0))
    assert chosen.title == "hidden + temperature (dev)"
    assert chosen.temperature == pytest.approx(2.0, rel=0.15)
    assert "Use hidden + temperature (dev)" in said[1]
    assert said[2].startswith("hidden helped")


@pytest.mark.parametrize(
    ("runs", "is_said"),
    [
        ({"hidden-smoothing": 1.5}, True),
        ({"hidden-smoothing": 1.0}, False),
        ({"hidden-smoothing": 1.5, "hidden-entropy": 1.2}, False),
        ({"label-smoothing": 1.5}, False),
    ],
)
def test_what_calibrates_further_is_named_where_the_energy_was_not_enough(runs, is_said):
    _, said = advice_for(baseline=draw(4.0), **{method: draw(scale) for method, scale in runs.items()})
    assert any("try --methods hidden-entropy" in sentence for sentence in said) == is_said


def test_a_difference_within_the_noise_is_called_none():
    rows = draw(1.5)
    jitter = np.random.default_rng(1).normal(0, 0.3, rows.logits.shape)
    other = Predictions(rows.labels, rows.label_names, logits=rows.logits + jitter, ids=rows.ids)
    _, said = advice_for(baseline=rows, hidden=other)
    assert "made no difference that these rows can show" in said[2] or said[2].startswith("hidden hurt")
    chosen, said = advice_for(baseline=rows, hidden=rows)
    assert "made no difference that these rows can show" in said[2]
    assert chosen.method == "baseline"  # the simpler of two equals


def test_a_temperature_at_its_bound_is_not_advised():
    sure = draw(1.0, n=40)
    right = Predictions(sure.labels, ("no", "yes"), logits=np.eye(2)[sure.labels], ids=sure.ids)  # T runs to 0
    chosen, said = advice_for(baseline=right)
    assert chosen.title == "baseline"
    assert "ran to its bound" in said[0]


def test_nothing_learned_is_said_in_place_of_advice():
    rows = draw(1.0)
    flat = Predictions(rows.labels, ("no", "yes"), logits=np.zeros_like(rows.logits), ids=rows.ids)
    found = candidates("baseline", [flat])
    said = sentences(found, choose(found), largest_class=0.55)
    assert "nothing was learned yet" in said[0]
    assert not any(line.startswith("Use ") for line in said)


def test_advice_of_a_run_folder_reads_the_calibration_split_alone(tmp_path):
    folder = RunFolder(tmp_path)
    cells = [Cell("baseline", 1), Cell("baseline", 2), Cell("hidden", 1)]
    for cell, scale in zip(cells, (3.0, 2.5, 1.0), strict=True):
        path = folder.predictions(cell, "calibration")
        path.parent.mkdir(parents=True)
        draw(scale, n=300, seed=5).write(path)
    found = advise(folder, cells)
    assert found["n_rows"] == 300
    assert found["candidates"][0]["row"].startswith("hidden")
    assert found["chosen"].startswith("hidden")
    assert found["candidates"][-1]["row"] == "baseline"


def test_no_labels_no_advice(tmp_path):
    folder, cell = RunFolder(tmp_path), Cell("baseline", 1)
    path = folder.predictions(cell, "calibration")
    path.parent.mkdir(parents=True)
    rows = draw(1.0, n=4)
    rows.write(path)
    assert advise(folder, [cell]) is None


def test_rows_of_one_class_advise_nothing(tmp_path):
    folder, cell = RunFolder(tmp_path), Cell("baseline", 1)
    rows = draw(1.0, n=300)
    path = folder.predictions(cell, "calibration")
    path.parent.mkdir(parents=True)
    rows.rows(np.flatnonzero(rows.labels == 1)).write(path)
    found = advise(folder, [cell], not_fitted={"temperature (dev)": "why not", "isotonic (dev)": "why not"})
    assert found["chosen"] is None
    assert "All calibration rows are of one class (yes)" in found["sentences"][0]
    assert found["sentences"][1] == "temperature (dev), isotonic (dev) left out: why not"


def test_how_far_off_and_what_it_costs_are_said():
    _, said = advice_for(baseline=draw(6.0, quality=0.7), hidden=draw(2.0))
    assert "% sure on average and right in" in said[0]
    assert "against baseline)" in said[1]
    _, said = advice_for(baseline=draw(3.0))
    assert "as without it" in said[1]


def test_cautions_name_what_makes_the_figures_weak():
    rows = draw(1.0, n=60)
    found = candidates("baseline", [rows])
    assert cautions(found, rows.labels, rows.label_names, n_test=5000)[0].startswith("60 calibration rows are few")
    lacking = cautions(found, np.arange(400) % 2, ("no", "yes", "maybe"), n_test=5000)
    assert "the label maybe" in lacking[0]
    few = cautions(found, np.arange(400) % 2, ("no", "yes"), n_test=90)
    assert "90 test rows are few for 20 bins" in few[0]
    right = Predictions(rows.labels, ("no", "yes"), logits=np.eye(2)[rows.labels], ids=rows.ids)  # T runs to 0
    bound = cautions(candidates("hidden", [right]), np.arange(400) % 2, ("no", "yes"), None)
    assert "The temperature of hidden ran to its bound" in bound[0]


def test_seeds_that_disagree_are_no_evidence():
    runs = [draw(scale, seed=3) for scale in (1.0, 2.0, 4.0)]
    base = candidates("baseline", [draw(2.0, seed=3)] * 3)
    assert "made no difference" in sentences([*base, *candidates("hidden", runs)], base[0], 0.5)[2]
