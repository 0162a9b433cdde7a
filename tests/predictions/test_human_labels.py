"""Several human labels a row: how files spell them, and the distance of a model from what people said."""

import json

import numpy as np
import pytest

import ebmcal
from ebmcal.errors import EbmcalError
from ebmcal.metrics.human import human_kl, human_tv
from ebmcal.predictions import Predictions

SHARES = [[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]


def rows(**changes):
    given = {"labels": [1, 0, 0], "probs": [[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]], "human": np.array(SHARES) * 4}
    return Predictions(label_names=("no", "yes"), **given | changes)


def write(path, column):
    probs = [{"prob_no": 0.5, "prob_yes": 0.5}, {"prob_no": 0.9, "prob_yes": 0.1}, {"prob_no": 0.5, "prob_yes": 0.5}]
    path.write_text("\n".join(json.dumps(p | {"labels": c}) for p, c in zip(probs, column, strict=True)))
    return path


@pytest.mark.parametrize(
    "column",
    [
        [["yes", "yes", "yes", "no"], ["no"], ["no", "yes"]],
        [{"yes": 3, "no": 1}, {"no": 5}, {"no": 0.5, "yes": 0.5}],
    ],
)
def test_votes_in_a_column_make_shares_and_a_majority(tmp_path, column):
    found = Predictions.read(write(tmp_path / "p.jsonl", column))
    np.testing.assert_allclose(found.human, SHARES)
    assert found.labels.tolist() == [1, 0, 0]  # of a tie the first class


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "npz"])
def test_every_kind_of_file_keeps_them(tmp_path, suffix):
    rows().write(tmp_path / f"p.{suffix}")
    found = Predictions.read(tmp_path / f"p.{suffix}")
    np.testing.assert_allclose(found.human, SHARES)
    np.testing.assert_allclose(found.in_order(("yes", "no")).rows([2, 0]).human, [[0.5, 0.5], [0.75, 0.25]])
    assert found.labels.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("human", "words"),
    [
        ([[1, 1], [0, 0], [1, 0]], "every row needs a human label"),
        ([[1, 1], [2, -1], [1, 0]], "counts are 0 or more"),
        ([[1, 1]], r"human must be \[n, C\] = \[3, 2\]"),
    ],
)
def test_what_is_no_distribution_is_refused(human, words):
    with pytest.raises(EbmcalError, match=words):
        rows(human=human)


def test_unknown_classes_and_missing_columns_are_named(tmp_path):
    with pytest.raises(EbmcalError, match=r"column 'labels', row 1: Unknown class 'nein'"):
        Predictions.read(write(tmp_path / "p.jsonl", [["no"], ["nein"], ["no"]]))
    (tmp_path / "p.csv").write_text("label,prob_no,prob_yes,human_no\nno,0.5,0.5,1\n")
    with pytest.raises(EbmcalError, match="'human_no' and none 'human_yes'"):
        Predictions.read(tmp_path / "p.csv")


def test_distances_by_hand():
    known = {"probs": rows().probs, "human": SHARES}
    assert human_tv([1, 0, 0], **known) == pytest.approx((0.25 + 0.1 + 0.0) / 3)
    kl = [0.25 * np.log(0.5) + 0.75 * np.log(1.5), np.log(1 / 0.9), 0.0]
    assert human_kl([1, 0, 0], **known) == pytest.approx(np.mean(kl))
    assert human_kl([0], probs=[[0.0, 1.0]], human=[[1.0, 0.0]]) == pytest.approx(708.4, abs=0.1)
    with pytest.raises(EbmcalError, match="human is"):
        human_tv([1], probs=[[0.5, 0.5]], human=SHARES)


def test_they_are_judged_beside_the_majority(tmp_path):
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([1, 1, 1], 300)
    people = Predictions(shares.argmax(axis=1), ("a", "b", "c"), probs=shares, human=rng.multinomial(20, shares))
    sure = people.with_probs(np.eye(3)[shares.argmax(axis=1)] * 0.97 + 0.01)
    found = ebmcal.evaluate({"people": people, "sure": sure}, n_resamples=50)
    figures = {row["method"]: row["metrics"] for row in found.document["rows"]}
    for name in ("human_kl", "human_tv"):
        best, other = figures["people"][name], figures["sure"][name]
        assert best["low"] <= best["value"] <= best["high"] < other["low"]
    assert figures["sure"]["nll"]["value"] < figures["people"]["nll"]["value"]  # the majority alone says otherwise
    assert "KL from human labels" in str(found.table())
    people.write(tmp_path / "p.parquet")
    assert "human_tv" in ebmcal.evaluate(tmp_path / "p.parquet", n_resamples=0).document["rows"][0]["metrics"]
