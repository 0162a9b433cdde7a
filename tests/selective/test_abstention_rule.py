"""An abstention rule by itself: what it decides, what is refused, its file."""

import json

import numpy as np
import pytest

from ebmcal import AbstentionRule, EbmcalError, Predictions, TemperatureScaling, fit_abstention
from ebmcal.selective import SCORES
from ebmcal.selective.ood import cut_offs, p_values, rank_texts
from ebmcal.selective.risk_control import counts, find_threshold, least_rows, split_rows
from ebmcal.selective.rule import LabelSets

NAMES = ("bad", "good")


def rows(n=400, seed=0, **changes):
    """Predictions that are wrong where they are unsure, with weakly informative energies."""
    rng = np.random.default_rng(seed)
    strength = rng.exponential(2.0, n)
    labels = rng.integers(0, 2, n)
    right = rng.random(n) < 1 / (1 + np.exp(-2 * strength))
    predicted = np.where(right, labels, 1 - labels)
    logits = np.eye(2)[predicted] * (2 * strength)[:, None]
    given = {"logits": logits, "energies": rng.normal(size=n) - strength, "meta": {"split": "calibration"}} | changes
    return Predictions(labels, NAMES, **given)


def test_the_tests_end_at_the_first_failure():
    for max_error, n_test in ((0.05, 45), (0.1, 22)):  # 0.95^45 = 0.0994, 0.95^44 = 0.1047
        n = least_rows(max_error, 0.9)
        assert [len(split_rows(m)[1]) for m in (n - 1, n)] == [n_test - 1, n_test]
    scores = np.repeat([3.0, 2.0, 1.0], 100)
    wrong = np.concatenate([np.zeros(100), np.arange(100) < 40, np.zeros(100)]).astype(bool)
    levels, sample = np.array([3.0, 2.0, 1.0, -np.inf]), [(scores, wrong)]
    found = find_threshold(sample, levels, max_error=0.05, confidence=0.9)
    assert (found.threshold, found.n_answered, found.n_wrong) == (3.0, 100, 0)
    assert found.bound == pytest.approx(1 - 0.1 ** (1 / 100))  # Clopper-Pearson of no error
    assert find_threshold(sample, levels[1:], max_error=0.05, confidence=0.9) is None
    assert find_threshold(sample, levels, max_error=0.3, confidence=0.9).threshold is None  # all of them


def test_counts_keep_ties_together():
    answered, errors = counts(
        np.array([1.0, 2.0, 2.0, 3.0]), np.array([1, 0, 1, 0], dtype=bool), np.array([2.0, -np.inf])
    )
    assert answered.tolist() == [3, 4]
    assert errors.tolist() == [1, 2]


@pytest.mark.parametrize("score", SCORES)
def test_a_rule_answers_what_it_is_sure_of(score):
    rule, new = fit_abstention(rows(), max_error=0.1, score=score), rows(2000, seed=1)
    found = rule.apply(new)
    wrong = new.predicted != new.labels
    assert 0.2 < found.answered.mean() < 1
    assert wrong[found.answered].mean() < wrong[~found.answered].mean()
    assert all(bool(reason) != answer for reason, answer in zip(found.reason, found.answered, strict=True))
    columns = found.columns()
    assert set(columns) == {"decision", "reason", "is_ood", "ood_p_value"}
    assert columns["decision"].count("answer") == found.answered.sum()


def test_ood_texts_are_not_answered_unless_asked_for():
    new = rows(2000, seed=1)
    for answer_ood in (False, True):
        rule = fit_abstention(rows(), max_error=0.1, answer_ood=answer_ood)
        found = rule.apply(new)
        sure = found.score >= rule.guarantee.threshold
        assert (found.is_ood & sure).any()
        np.testing.assert_array_equal(found.answered, sure if answer_ood else sure & ~found.is_ood)
        flagged = found.reason[int(np.flatnonzero(found.is_ood & sure)[0])]
        assert flagged == "" if answer_ood else flagged.startswith("out-of-distribution by the energy (p = 0.0")
        assert ("They are answered" if answer_ood else "The rule abstains") in " ".join(rule.describe())
    least = found.p_values.argmin()
    reason = fit_abstention(rows(), ood=0.1).apply(new).reason[least]
    assert reason == "out-of-distribution by the energy (p ≤ 0.0025, the least with 400 held-out texts)"
    only_ood = fit_abstention(rows(), ood=0.1).apply(new)
    np.testing.assert_array_equal(only_ood.answered, ~only_ood.is_ood)


def test_p_values_and_sets_by_hand():
    assert p_values(np.array([[1.0]]), (np.array([1.0, 1.0, 2.0]),))[0].tolist() == [1.0]  # ties count against
    rule = AbstentionRule(("a", "b", "c"), 99, sets=LabelSets("split", 0.9, (0.4, 0.75, 0.75)))
    found = rule.apply(Predictions([-1], ("a", "b", "c"), probs=[[0.5, 0.3, 0.2]]))
    assert found.label_sets == [("a", "b")]  # the most probable label always is in the set


@pytest.mark.parametrize("n", [19, 20, 57, 1000])
def test_the_cut_off_is_where_p_values_reach_the_rate(n):
    stored = np.sort(np.random.default_rng(n).normal(size=n))
    [(cut, rank)] = cut_offs((stored,), 0.05)
    new = np.concatenate([stored, [np.nextafter(cut, np.inf), cut]])
    np.testing.assert_array_equal(p_values(new[None], (stored,))[0] <= 0.05, new > cut)
    assert stored[-rank] == cut


def test_two_scores_take_turns():
    """Five texts: the highest of the first score (d), of the second (a), then of the first again (c) are removed."""
    ranking = rank_texts(np.array([[1.0, 2, 3, 4, 0], [9, 5, 8, 7, 1]]), ood=0.5)
    assert [values.tolist() for values in ranking] == [[0.0, 3.0, 4.0], [5.0, 9.0]]
    p, which = p_values(np.array([[5.0, 0, 3.5, -1], [0.0, 10, 6, 0]]), ranking)
    np.testing.assert_allclose(p, np.array([1, 2, 3, 6]) / 6)
    assert which.tolist()[:3] == [0, 1, 0]
    assert cut_offs(ranking, 0.5) == [(3.0, 2), (9.0, 1)]
    assert cut_offs(ranking, 0.17) == [(4.0, 1), (np.inf, 0)]


def test_rows_that_test_the_threshold_are_below_the_cut_off():
    test = fit_abstention(rows(), max_error=0.1).ood
    energies = rows().energies
    allowed = test.below_cut_off(energies[None])
    np.testing.assert_array_equal(allowed, energies < cut_offs(test.ranking, 0.05)[0][0])
    tied = fit_abstention(rows(energies=np.round(energies)), ood=0.05).ood  # some rows define the cut-off, not all
    rank = cut_offs(tied.ranking, 0.05)[0][1]
    assert (~tied.below_cut_off(np.round(energies)[None])).sum() == rank


def test_sets_name_labels_most_probable_first():
    rule = fit_abstention(rows(), coverage=0.99, sets="class-conditional", ood=0)
    new = rows(50, seed=2)
    found = rule.apply(new)
    assert all(names[0] == best for names, best in zip(found.label_sets, new.predicted_labels, strict=True))
    assert {len(names) for names in found.label_sets} == {1, 2}
    assert found.answered.all()
    assert found.score is None


@pytest.mark.parametrize(
    ("settings", "n", "words"),
    [
        ({"max_error": 0.05}, 50, "at least 56 labelled rows are needed"),
        ({"max_error": 0.001}, 400, "labelled rows are needed"),
        ({"max_error": 0.01, "confidence": 0.6}, 400, "do not support an error of at most 0.01"),
        ({"coverage": 0.99}, 50, "at least 99 labelled rows"),
        ({"coverage": 0.95, "sets": "class-conditional"}, 30, "of every class"),
        ({"ood": 0.01}, 50, "at least 99 are needed"),
        ({"max_error": 1.5}, 400, r"max_error \(--max-error\): expected a share between 0 and 1"),
        ({"coverage": 0}, 400, "--coverage"),
        ({"max_error": 0.1, "score": "energie"}, 400, "Did you mean 'energy'"),
        ({"coverage": 0.9, "sets": "whole"}, 400, "kind of sets 'whole'"),
        ({"ood_score": "kn"}, 400, "Did you mean 'knn'"),
        ({"ood_score": "knn"}, 400, "distance_knn"),
        ({"training": ["a text"]}, 400, "needs a model"),
        ({}, 10, "No guarantee requested"),
    ],
)
def test_what_is_refused(settings, n, words):
    with pytest.raises(EbmcalError, match=words):
        fit_abstention(rows(n), **settings)


@pytest.mark.parametrize("settings", [{"max_error": 0.1}, {"coverage": 0.9}, {"max_error": 0.1, "ood": 0.05}])
def test_training_rows_and_out_of_fold_rows_guarantee_nothing(settings):
    with pytest.raises(EbmcalError, match="predictions for training rows"):
        fit_abstention(rows(meta={"split": "train"}), **settings)
    with pytest.raises(EbmcalError, match=r"of the models of the folds, not of this.*--calibration holdout"):
        fit_abstention(rows(meta={"split": "out_of_fold"}), **settings)


def test_the_ood_threshold_may_use_out_of_fold_rows_approximately(tmp_path):
    out_of_fold = rows(meta={"split": "out_of_fold"})
    with pytest.raises(EbmcalError, match="distance of 0 to themselves, so knn cannot use them"):
        fit_abstention(out_of_fold.replace(distances={"knn": np.ones(400)}), ood=0.05, ood_score="knn")
    for score, name in ((None, "energy"), ("max_prob", "max_prob")):
        rule = fit_abstention(out_of_fold, ood=0.05, ood_score=score)
        rule.write(tmp_path / "rule.json")
        again = AbstentionRule.read(tmp_path / "rule.json")
        assert (again.ood.score, again.ood.is_approximate) == (name, True)
        assert "about 5.0% of texts like the held-out rows reach it (not guaranteed" in again.describe()[0]
    assert "at most 5.0%" in fit_abstention(rows(), ood=0.05).describe()[0]


def test_rows_without_labels_or_energies():
    unlabelled = Predictions(np.full(9, -1), NAMES, logits=np.zeros((9, 2)))
    with pytest.raises(EbmcalError, match="No row has a label"):
        fit_abstention(unlabelled, max_error=0.1)
    only_probs = Predictions(rows().labels, NAMES, probs=rows().probs)
    with pytest.raises(EbmcalError, match="Pass energies or logits"):
        fit_abstention(only_probs, max_error=0.1, score="energy")
    assert fit_abstention(only_probs, max_error=0.1).ood is None
    assert fit_abstention(only_probs, max_error=0.1, ood_score="max_prob").ood.score == "max_prob"


@pytest.mark.parametrize("repeat", [2, 10])
def test_duplicated_rows_give_no_stronger_guarantee(repeat):
    few = rows(60)
    with pytest.raises(EbmcalError, match="These 57 rows .*do not support|at least"):
        fit_abstention(few, max_error=0.05)
    copies = few.rows(np.tile(np.arange(60), repeat)).replace(ids=[f"new-{i}" for i in range(60 * repeat)])
    with (
        pytest.warns(UserWarning, match=rf"{60 * repeat} rows contain {60 * (repeat - 1)} exact duplicates"),
        pytest.raises(EbmcalError, match="do not support an error of at most 0.05"),
    ):
        fit_abstention(copies, max_error=0.05)


def test_a_file_is_read_as_it_was_written(tmp_path):
    rule = fit_abstention(rows(), max_error=0.1, score="energy", coverage=0.9)
    rule.write(tmp_path / "rule.json")
    again, new = AbstentionRule.read(tmp_path / "rule.json"), rows(100, seed=4)
    assert again.apply(new).columns() == rule.apply(new).columns()
    assert again.to_json() == rule.to_json()
    assert again.describe() == rule.describe()


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["abstention"]["guarantee"].update(threshold=0.5),
        lambda v: v["abstention"]["guarantee"].update(max_error=0.01),
        lambda v: v["abstention"].pop("checksum"),
        lambda v: v["abstention"].update(ood=3),
        lambda v: v.update(npz="AAAA"),
        lambda v: v.update(abstention=[1]),
    ],
)
def test_a_file_that_was_edited_is_refused(tmp_path, change):
    path = tmp_path / "rule.json"
    fit_abstention(rows(), max_error=0.1).write(path)
    edit(path, change)
    with pytest.raises(EbmcalError, match=r"rule\.json is damaged"):
        AbstentionRule.read(path)
    path.write_text("{}")
    with pytest.raises(EbmcalError, match="does not contain an abstention rule"):
        AbstentionRule.read(path)


def test_predictions_that_the_rule_is_not_for():
    rule = fit_abstention(rows(), max_error=0.1)
    with pytest.raises(EbmcalError, match="is for the classes bad, good"):
        rule.apply(Predictions([0], ("no", "yes"), logits=[[0.0, 1.0]]))
    calibrated = TemperatureScaling().fit_predictions(rows(seed=5)).apply(rows(9, seed=6))
    with pytest.raises(EbmcalError, match="fitted on predictions without a calibrator; these are calibrated by temp"):
        rule.apply(calibrated)


def test_a_rule_for_a_file_alone(tmp_path):
    rows().write(tmp_path / "held_out.parquet")
    rule = fit_abstention(tmp_path / "held_out.parquet", max_error=0.1)
    assert rule.model is None
    assert "of the answers are wrong" in rule.evaluate(rows(500, seed=8))[0]
