"""A run judged: rows, means over seeds, paired tests of each seed and of all together, and what tables make of them."""

import numpy as np
import pytest

from ebmcal import tables
from ebmcal.judging import Measures, judge_run
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder

QUICK = Measures(["accuracy", "ece_classwise", "nll"], ["accuracy", "ece_classwise", "nll"], n_resamples=100)


def rows(scale, seed, draw=0, n=400):
    """The same labels for every model; `scale` above 1 is overconfident; each seed sees texts a little otherwise."""
    rng = np.random.default_rng(draw)
    true = rng.normal(0, 2, n)
    labels = (rng.random(n) < 1 / (1 + np.exp(-true))).astype(int)
    seen = scale * (true + np.random.default_rng([seed, draw]).normal(0, 0.3, n))
    return Predictions(
        labels, ("no", "yes"), logits=np.stack([0 * seen, seen], axis=1), ids=[f"{draw}-{i}" for i in range(n)]
    )


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    cells = [
        Cell(method, seed) for seed in (1, 2, 3) for method in ("hidden", "baseline") if (method, seed) != ("hidden", 3)
    ]
    for cell in cells:
        for draw, split in enumerate(("test", "calibration", "train")):
            folder.predictions(cell, split).parent.mkdir(parents=True, exist_ok=True)
            rows({"baseline": 3.0, "hidden": 1.2}[cell.method], cell.seed, draw).write(folder.predictions(cell, split))
    return {"task": "mood", **judge_run(folder, cells, ["temperature"], QUICK)}


def test_means_over_seeds_have_their_interval(document):
    found = {(row["method"], row["posthoc"]): row for row in document["over_seeds"]}
    assert found["baseline", None]["n_seeds"] == 3
    assert found["hidden", "temperature (dev)"]["n_seeds"] == 2
    values = [
        row["metrics"]["nll"]["value"]
        for row in document["rows"]
        if (row["method"], row["posthoc"]) == ("hidden", None)
    ]
    figure = found["hidden", None]["metrics"]["nll"]
    assert figure["value"] == pytest.approx(np.mean(values))
    assert figure["low"] < min(values) < max(values) < figure["high"]
    assert "noise_floor" in found["hidden", None]["metrics"]["ece_classwise"]


def test_each_seed_and_all_seeds_are_compared_with_the_baseline(document):
    assert {test["seed"] for test in document["paired"]} == {1, 2}
    assert {test["n_seeds"] for test in document["paired_over_seeds"]} == {2}
    nll = next(test for test in document["paired_over_seeds"] if test["metric"] == "nll")
    assert nll["high"] < 0
    assert nll["p_value"] <= nll["p_holm"] < 0.05
    for test in [*document["paired"], *document["paired_over_seeds"]]:
        assert (test["p_value"] < 0.05) == (test["low"] > 0 or test["high"] < 0)


def test_tables_show_intervals_floors_and_all_seeds(document):
    table = tables.summary_table(document)
    assert "floor" in table.column("ece_classwise")[0].text()
    assert "[" in table.column("nll")[0].text()
    assert any("seeds and the rows together" in note for note in table.notes)
    short = tables.compact(table)
    assert "±" in short.column("nll")[0].text()
    assert any("perfectly calibrated model would show by chance: ECE class-wise 0.0" in note for note in short.notes)
    paired = tables.paired_table(document)
    assert {entry.text() for entry in paired.column("seed")} == {"all 2"}
    assert len(tables.paired_table(document, each_seed=True).rows) == 2 * len(paired.rows)
    assert "Holm" in paired.notes[0]


def test_calibrators_that_cannot_be_fitted_leave_the_rest(tmp_path):
    """Calibration rows of one class, and energies that are not there: said, and no figure is lost."""
    folder, cells = RunFolder(tmp_path), [Cell("baseline", 1), Cell("baseline", 2)]
    for cell in cells:
        for draw, split in enumerate(("test", "calibration", "train")):
            found = rows(2.0, cell.seed, draw)
            if split == "calibration":
                found = found.rows(np.flatnonzero(found.labels == 1))
            folder.predictions(cell, split).parent.mkdir(parents=True, exist_ok=True)
            found.write(folder.predictions(cell, split))
    document = judge_run(folder, cells, ["temperature", "energy-temperature"], QUICK)
    assert {row["posthoc"] for row in document["rows"]} == {None, "temperature (train)", "ensemble"}
    reasons = document["not_fitted"]
    assert set(reasons) == {"temperature (dev)", "energy-temperature (dev)", "energy-temperature (train)"}
    assert "calibration split: the labels are all of one class (yes)" in reasons["temperature (dev)"]
    assert "needs an energy" in reasons["energy-temperature (train)"]


def test_tasks_are_put_together(document):
    from ebmcal.benchmark.across_tasks import across_tasks_table, compare_across_tasks

    both = compare_across_tasks([document, {**document, "task": "other"}])
    nll = next(test for test in both if test["metric"] == "nll")
    single = next(test for test in document["paired_over_seeds"] if test["metric"] == "nll")
    assert nll["tasks"] == ["mood", "other"]
    assert nll["difference"] == pytest.approx(single["difference"])
    assert nll["high"] - nll["low"] < single["high"] - single["low"]
    assert len(across_tasks_table([document, {**document, "task": "other"}]).rows) == 3
    assert not across_tasks_table([document]).rows
