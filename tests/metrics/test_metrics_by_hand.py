"""Scores, classification, ranking, OOD detection and the smooth error, worked by hand."""

import numpy as np
import pytest
from metric_cases import make_rows

from ebmcal import EbmcalError, metrics
from ebmcal.predictions import softmax


def test_nll_of_saturated_logits_is_exact_and_finite():
    assert metrics.nll([1], logits=[[100.0, 0.0]]) == pytest.approx(100.0)
    assert metrics.nll([1], logits=[[1e4, 0.0]]) == pytest.approx(708.396, abs=1e-3)
    assert metrics.nll([1], probs=[[1.0, 0.0]]) == pytest.approx(708.396, abs=1e-3)
    assert metrics.nll([0], probs=[[1.0, 0.0]]) == 0.0


def test_errors_count_separately():
    # Confidence .9 and .6 correct, .8 and 1 wrong.
    labels, probs = [0, 0, 1, 1], [[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [1.0, 0.0]]
    assert metrics.confidence_on_errors(labels, probs=probs) == pytest.approx(0.9)
    wrong, correct = (0.8**2 + 1) / 2, (0.1**2 + 0.4**2) / 2
    assert metrics.balanced_brier(labels, probs=probs) == pytest.approx((wrong + correct) / 2)
    # ECE and Brier hardly change with one confident error in many rows, the balanced score does.
    many, sure = [0] * 99 + [1], [[1.0, 0.0]] * 100
    assert metrics.brier(many, probs=sure) == pytest.approx(0.02)
    assert metrics.balanced_brier(many, probs=sure) == pytest.approx(0.5)


def test_scores_on_errors_are_undefined_without_errors():
    for labels in ([0, 0], [1, 1]):
        assert np.isnan(metrics.balanced_brier(labels, probs=[[0.9, 0.1]] * 2))
        assert np.isnan(metrics.error_auroc(labels, probs=[[0.9, 0.1], [0.8, 0.2]]))
    assert np.isnan(metrics.confidence_on_errors([0, 0], probs=[[0.9, 0.1]] * 2))
    assert metrics.confidence_on_errors([1, 1], probs=[[0.9, 0.1]] * 2) == pytest.approx(0.9)


@pytest.mark.parametrize("n_classes", [2, 20])  # few and many classes take different paths
def test_a_tie_goes_to_the_first_class(n_classes):
    probs = np.full((1, n_classes), 1 / n_classes)
    assert metrics.accuracy([0], probs=probs) == 1.0
    assert metrics.accuracy([n_classes - 1], probs=probs) == 0.0


def test_matthews_of_a_constant_is_zero():
    assert metrics.matthews([0, 1], probs=[[0.9, 0.1], [0.9, 0.1]]) == 0.0
    assert metrics.matthews([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]]) == 0.0
    assert metrics.matthews([0, 1], probs=[[0.1, 0.9], [0.9, 0.1]]) == -1.0


RANKED = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])  # confidence .9 .8 .7 .6, class 0 predicted
LABELS = [0, 1, 0, 1]


def test_risk_coverage():
    curve = metrics.risk_coverage(LABELS, probs=RANKED)
    np.testing.assert_allclose(curve.coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 2, 1 / 3, 2 / 4])
    np.testing.assert_allclose(curve.thresholds, [0.9, 0.8, 0.7, 0.6])
    assert metrics.aurc(LABELS, probs=RANKED) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert metrics.error_auroc(LABELS, probs=RANKED) == 0.75


def test_area_with_ties_is_the_mean_over_orders():
    labels, probs = [0, 1, 0, 1, 1], np.tile([0.7, 0.3], (5, 1))
    scores = np.array([2.0, 1.0, 1.0, 1.0, 0.0])
    rng = np.random.default_rng(0)
    orders = [metrics.aurc(labels, probs=probs, scores=scores + rng.random(5) * 1e-3) for _ in range(4000)]
    assert metrics.aurc(labels, probs=probs, scores=scores) == pytest.approx(np.mean(orders), abs=0.005)
    assert metrics.aurc(labels, probs=probs) == pytest.approx(3 / 5)  # no ranking: the risk of all rows


def test_the_series_of_harmonic_numbers_joins_the_table():
    labels, probs = make_rows(70_000)  # above the table
    curve = metrics.risk_coverage(labels, probs=probs)
    assert len(curve.risk) == 70_000
    assert metrics.aurc(labels, probs=probs) == pytest.approx(curve.risk.mean(), abs=1e-10)


@pytest.mark.parametrize(("coverage", "accuracy"), [(0.25, 1.0), (0.75, 2 / 3), (1.0, 0.5), (1e-9, 1.0)])
def test_accuracy_at_coverage(coverage, accuracy):
    assert metrics.accuracy_at_coverage(LABELS, probs=RANKED, coverage=coverage) == pytest.approx(accuracy)
    probs, labels = np.tile([0.7, 0.3], (10, 1)), [0] * 7 + [1] * 3  # no row too many: 0.7 · 10 is above 7 in floats
    assert metrics.accuracy_at_coverage(labels, probs=probs, scores=-np.arange(10), coverage=0.7) == 1.0


def test_coverage_at_risk():
    assert metrics.coverage_at_risk(LABELS, probs=RANKED, risk=0.0) == 0.25
    assert metrics.coverage_at_risk(LABELS, probs=RANKED, risk=0.34) == 0.75  # the curve falls again after .5
    assert metrics.coverage_at_risk([1, 1, 1, 1], probs=RANKED, risk=0.1) == 0.0


def test_invalid_coverage_risk_and_scores():
    with pytest.raises(EbmcalError, match="coverage is 0"):
        metrics.accuracy_at_coverage([0], probs=[[1.0]], coverage=0)
    with pytest.raises(EbmcalError, match="risk is 2"):
        metrics.coverage_at_risk([0], probs=[[1.0]], risk=2)
    with pytest.raises(EbmcalError, match="scores has 2 rows"):
        metrics.aurc([0], probs=[[1.0]], scores=[1, 2])


def test_ood_detection():
    found = metrics.ood_detection([3.0, 2.0], [2.0, 1.0])
    assert found["auroc"] == pytest.approx((2 + 1.5) / 4)
    assert found["aupr"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found["fpr95"] == 0.5
    assert metrics.ood_detection([1.0], [1.0]) == {"auroc": 0.5, "aupr": 0.5, "fpr95": 1.0}
    # 95% of twenty rows are nineteen: keeping 1..19 is enough.
    assert metrics.ood_detection(np.arange(20.0), [0.5])["fpr95"] == 0.0
    with pytest.raises(EbmcalError, match=r"in_scores\[0\] is nan"):
        metrics.ood_detection([np.nan], [1.0])


def test_ood_scores():
    logits = np.array([[2.0, 0.0], [0.1, 0.0]])
    probs = softmax(logits)
    np.testing.assert_allclose(metrics.ood_scores("energy", logits=logits), np.log(np.exp(logits).sum(axis=1)))
    np.testing.assert_allclose(metrics.ood_scores("energy", energies=[1.0, -1.0]), [-1.0, 1.0])
    np.testing.assert_allclose(metrics.ood_scores("entropy", probs=probs), (probs * np.log(probs)).sum(axis=1))
    for kind in metrics.OOD_SCORES:
        confident, unsure = metrics.ood_scores(kind, logits=logits)
        assert confident > unsure
    with pytest.raises(EbmcalError, match="Pass energies or logits"):
        metrics.ood_scores("energy", probs=probs)
    with pytest.raises(EbmcalError, match=r"Unknown OOD score 'enrgy'. Did you mean 'energy'"):
        metrics.ood_scores("enrgy", probs=probs)


def test_smooth_error_of_certain_forecasts_and_of_a_constant_gap():
    probs, labels = np.tile([0.8, 0.2], (100, 1)), [0] * 60 + [1] * 40
    assert metrics.smooth_ece(labels, probs=probs) == pytest.approx(0.2, abs=1e-9)
    assert metrics.smooth_ece([0, 1], probs=np.eye(2)) == pytest.approx(0.0, abs=1e-12)
    assert metrics.smooth_ece([1, 0], probs=np.eye(2)) == pytest.approx(1.0, abs=1e-6)
