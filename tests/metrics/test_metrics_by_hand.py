"""Scores, classification, ranking, out-of-domain detection and the smooth error, worked by hand."""

import numpy as np
import pytest
from cases import made

from ebmcal.errors import EbmcalError
from ebmcal.metrics import (
    accuracy,
    accuracy_at_coverage,
    aurc,
    brier,
    brier_decomposition,
    coverage_at_risk,
    ece_top_label,
    error_auroc,
    macro_f1,
    matthews,
    nll,
    ood_detection,
    ood_scores,
    risk_coverage,
    smooth_ece,
)
from ebmcal.predictions.arrays import softmax


def test_nll_and_brier():
    probs = [[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]
    assert nll([1, 1], probs=probs) == pytest.approx(-(np.log(0.25) + np.log(0.8)) / 2)
    assert brier([1, 1], probs=probs) == pytest.approx((0.25 + 0.5625 + 0.0625 + 0.01 + 0.04 + 0.01) / 2)
    assert brier([0], probs=[[0.0, 1.0]]) == 2.0
    assert brier([1], probs=[[0.0, 1.0]]) == 0.0


def test_nll_of_saturated_logits_is_exact_and_finite():
    assert nll([1], logits=[[100.0, 0.0]]) == pytest.approx(100.0)
    assert nll([1], logits=[[1e4, 0.0]]) == pytest.approx(708.396, abs=1e-3)
    assert nll([1], probs=[[1.0, 0.0]]) == pytest.approx(708.396, abs=1e-3)
    assert nll([0], probs=[[1.0, 0.0]]) == 0.0


def test_brier_parts_add_up():
    labels, probs = made(1000)
    parts = brier_decomposition(labels, probs=probs, n_bins=20)
    assert parts["brier"] == pytest.approx(brier(labels, probs=probs))
    assert parts["calibration"] + parts["refinement"] == pytest.approx(parts["binned_brier"], abs=1e-15)
    assert parts["uncertainty"] - parts["resolution"] == pytest.approx(parts["refinement"], abs=1e-15)
    binned = np.empty_like(probs)
    for y in range(3):
        codes = (probs[:, y] * 20).astype(int)
        means = np.bincount(codes, probs[:, y]) / np.maximum(np.bincount(codes), 1)
        binned[:, y] = means[codes]
    assert ((binned - np.eye(3)[labels]) ** 2).sum(axis=1).mean() == pytest.approx(parts["binned_brier"], abs=1e-12)


def test_brier_parts_of_a_calibrated_constant_forecast():
    parts = brier_decomposition([0, 0, 0, 1], probs=np.tile([0.75, 0.25], (4, 1)))
    assert parts["calibration"] == pytest.approx(0.0, abs=1e-15)
    assert parts["resolution"] == pytest.approx(0.0, abs=1e-15)
    assert parts["refinement"] == pytest.approx(2 * 0.75 * 0.25)


def test_classification():
    probs = np.eye(3)[[0, 0, 1, 2, 2, 2]]
    labels = [0, 1, 1, 2, 2, 0]
    assert accuracy(labels, probs=probs) == pytest.approx(4 / 6)
    assert macro_f1(labels, probs=probs) == pytest.approx((2 / 4 + 2 / 3 + 4 / 5) / 3)


def test_a_tie_goes_to_the_first_class():
    assert accuracy([0, 1], probs=[[0.5, 0.5], [0.5, 0.5]]) == 0.5
    many = np.full((1, 20), 0.05)  # the path for many classes
    assert accuracy([0], probs=many) == 1.0
    assert accuracy([19], probs=many) == 0.0


def test_matthews_of_a_constant_is_zero():
    assert matthews([0, 1], probs=[[0.9, 0.1], [0.9, 0.1]]) == 0.0
    assert matthews([0, 0], probs=[[0.9, 0.1], [0.1, 0.9]]) == 0.0
    assert matthews([0, 1], probs=[[0.1, 0.9], [0.9, 0.1]]) == -1.0


RANKED = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])  # confidence .9 .8 .7 .6, class 0 said


def test_risk_coverage_by_hand():
    curve = risk_coverage([0, 1, 0, 1], probs=RANKED)
    np.testing.assert_allclose(curve.coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 2, 1 / 3, 2 / 4])
    np.testing.assert_allclose(curve.thresholds, [0.9, 0.8, 0.7, 0.6])
    assert aurc([0, 1, 0, 1], probs=RANKED) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert error_auroc([0, 1, 0, 1], probs=RANKED) == 0.75


def test_ranking_by_energy():
    energies = np.array([0.0, 3.0, -1.0, 2.0])  # the wrong rows have the high energies
    assert error_auroc([0, 1, 0, 1], probs=RANKED, scores=-energies) == 1.0
    assert error_auroc([0, 1, 0, 1], probs=RANKED, scores=energies) == 0.0


def test_area_under_ties_is_the_mean_over_orders():
    labels, probs = [0, 1, 0, 1, 1], np.tile([0.7, 0.3], (5, 1))
    scores = np.array([2.0, 1.0, 1.0, 1.0, 0.0])
    rng = np.random.default_rng(0)
    orders = [aurc(labels, probs=probs, scores=scores + rng.random(5) * 1e-3) for _ in range(4000)]
    assert aurc(labels, probs=probs, scores=scores) == pytest.approx(np.mean(orders), abs=0.005)
    all_tied = aurc(labels, probs=probs)
    assert all_tied == pytest.approx(3 / 5)  # no ranking: the risk of all


def test_coverage_and_accuracy_at_a_point():
    labels = [0, 1, 0, 1]
    assert accuracy_at_coverage(labels, probs=RANKED, coverage=0.25) == 1.0
    assert accuracy_at_coverage(labels, probs=RANKED, coverage=0.75) == pytest.approx(2 / 3)
    assert accuracy_at_coverage(labels, probs=RANKED, coverage=1.0) == 0.5
    assert accuracy_at_coverage(labels, probs=RANKED, coverage=1e-9) == 1.0  # at least one row
    assert coverage_at_risk(labels, probs=RANKED, risk=0.0) == 0.25
    assert coverage_at_risk(labels, probs=RANKED, risk=0.34) == 0.75  # the curve falls again after .5
    assert coverage_at_risk([1, 1, 1, 1], probs=RANKED, risk=0.1) == 0.0


def test_accuracy_at_coverage_takes_no_row_too_many():
    probs = np.tile([0.7, 0.3], (10, 1))
    scores = np.arange(10)[::-1]
    labels = np.array([0] * 7 + [1] * 3)
    assert accuracy_at_coverage(labels, probs=probs, scores=scores, coverage=0.7) == 1.0


def test_bad_coverage_risk_and_scores():
    with pytest.raises(EbmcalError, match="coverage is 0"):
        accuracy_at_coverage([0], probs=[[1.0]], coverage=0)
    with pytest.raises(EbmcalError, match="risk is 2"):
        coverage_at_risk([0], probs=[[1.0]], risk=2)
    with pytest.raises(EbmcalError, match="scores has 2 rows"):
        aurc([0], probs=[[1.0]], scores=[1, 2])


def test_error_auroc_without_errors_is_not_a_number():
    assert np.isnan(error_auroc([0, 0], probs=RANKED[:2]))
    assert np.isnan(error_auroc([1, 1], probs=RANKED[:2]))


def test_out_of_domain_by_hand():
    found = ood_detection([3.0, 2.0], [2.0, 1.0])
    assert found["auroc"] == pytest.approx((2 + 1.5) / 4)
    assert found["aupr"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found["fpr_at_95_recall"] == 0.5
    assert ood_detection([1.0], [1.0]) == {"auroc": 0.5, "aupr": 0.5, "fpr_at_95_recall": 1.0}


def test_ninety_five_percent_of_twenty_is_nineteen():
    inside = np.arange(20.0)
    assert ood_detection(inside, [0.5])["fpr_at_95_recall"] == 0.0  # keeping 1..19 is enough


def test_out_of_domain_scores():
    logits = np.array([[2.0, 0.0], [0.1, 0.0]])
    np.testing.assert_allclose(ood_scores("energy", logits=logits), np.log(np.exp(logits).sum(axis=1)))
    np.testing.assert_allclose(ood_scores("energy", energies=[1.0, -1.0]), [-1.0, 1.0])
    probs = softmax(logits)
    np.testing.assert_allclose(ood_scores("entropy", probs=probs), (probs * np.log(probs)).sum(axis=1))
    for kind in ("energy", "max_prob", "entropy"):
        sure, unsure = ood_scores(kind, logits=logits)
        assert sure > unsure
    with pytest.raises(EbmcalError, match="need energies= or logits="):
        ood_scores("energy", probs=probs)
    with pytest.raises(EbmcalError, match=r"Unknown out-of-domain score 'enrgy'. Did you mean 'energy'"):
        ood_scores("enrgy", probs=probs)
    with pytest.raises(EbmcalError, match=r"in_scores\[0\] is nan"):
        ood_detection([np.nan], [1.0])


def test_smooth_error_of_sure_forecasts():
    assert smooth_ece([0, 1], probs=np.eye(2)) == pytest.approx(0.0, abs=1e-12)
    assert smooth_ece([1, 0], probs=np.eye(2)) == pytest.approx(1.0, abs=1e-6)


def test_smooth_error_of_a_constant_gap_is_the_gap():
    probs = np.tile([0.8, 0.2], (100, 1))
    labels = [0] * 60 + [1] * 40
    assert smooth_ece(labels, probs=probs) == pytest.approx(0.2, abs=1e-9)
    assert smooth_ece(labels, probs=probs) == pytest.approx(ece_top_label(labels, probs=probs), abs=1e-9)


def test_smooth_error_has_no_bin_edges():
    labels = [0, 1] * 50
    beside = [np.tile([0.55 + d, 0.45 - d], (100, 1)) for d in (-1e-9, 1e-9)]
    assert abs(smooth_ece(labels, probs=beside[0]) - smooth_ece(labels, probs=beside[1])) < 1e-6
