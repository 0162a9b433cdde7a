"""Several predictions as one: what is averaged, what must agree, and the rows of a run's seeds."""

import numpy as np
import pytest

from ebmcal.ensembles import ensembles_of
from ebmcal.errors import EbmcalError
from ebmcal.judging import Measures, judge_run
from ebmcal.predictions import Predictions, ensemble
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.tables import summary_table


def member(seed, n=300, noise=1.0, split="test", **changes):
    """Logits of one seed: what all share and what is its own."""
    shared, own = np.random.default_rng([n, len(split)]), np.random.default_rng(seed)
    logits = 2 * shared.normal(size=(n, 3))
    labels = (logits + shared.gumbel(size=logits.shape)).argmax(axis=1)
    given = {
        "labels": labels,
        "label_names": ("a", "b", "c"),
        "logits": 2 * (logits + noise * own.normal(size=logits.shape)),
        "energies": own.normal(size=n),
        "ids": [f"{split}-{i}" for i in range(n)],
        "meta": {"method": "hidden", "seed": seed, "split": split},
    }
    return Predictions(**given | changes)


def test_probabilities_and_energies_are_averaged_over_matched_rows():
    one, other = member(1), member(2)
    mixed = ensemble([one, other.rows(np.random.default_rng(0).permutation(300)).in_order(("c", "a", "b"))])
    np.testing.assert_allclose(mixed.probs, (one.probabilities() + other.probabilities()) / 2)
    np.testing.assert_allclose(mixed.energies, (one.energies + other.energies) / 2)
    assert mixed.logits is None
    assert mixed.meta["method"] == "hidden"
    assert "seed" not in mixed.meta
    assert [meta["seed"] for meta in mixed.meta["ensemble"]] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": [f"other-{i}" for i in range(300)]}, "only in"),
        ({"labels": np.zeros(300, dtype=int)}, "another label"),
        ({"label_names": ("a", "b", "x")}, "Classes differ"),
    ],
)
def test_what_does_not_match_is_refused(changes, words):
    with pytest.raises(EbmcalError, match=words):
        ensemble([member(1), member(2, **changes)])


def test_one_model_is_no_ensemble():
    with pytest.raises(EbmcalError, match="two models at least; 1 came"):
        ensemble([member(1)])


def test_energies_that_one_lacks_are_left_out():
    assert ensemble([member(1), member(2, energies=None)]).energies is None


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    for cell in (Cell("baseline", 1), Cell("hidden", 1), Cell("hidden", 2)):
        for split in ("train", "calibration", "test"):
            member(cell.seed, split=split).write(folder.predictions(cell, split))
    return folder


def test_a_run_has_a_row_for_the_seeds_of_a_method_together(folder):
    cells = folder.cells()
    document = judge_run(folder, cells, ["temperature"], Measures(n_resamples=5))
    together = {row["posthoc"]: row for row in document["rows"] if row.get("n_members")}
    assert list(together) == ["ensemble", "ensemble + temperature (dev)"]
    assert all(row["method"] == "hidden" and row["seed"] is None for row in together.values())
    single = [row["metrics"]["nll"]["value"] for row in document["rows"] if row["method"] == "hidden" and row["seed"]]
    assert together["ensemble"]["metrics"]["nll"]["value"] < min(single[:1])
    assert together["ensemble"]["note"] == "2 seeds"
    assert "T = " in together["ensemble + temperature (dev)"]["note"]
    names = [row.entries[0].text() for row in summary_table(document).rows]
    assert names[-2:] == ["hidden + ensemble", "hidden + ensemble + temperature (dev)"]


def test_one_seed_has_no_ensemble(folder):
    assert list(ensembles_of(folder, [Cell("baseline", 1), Cell("hidden", 1)], ["temperature"])) == []
