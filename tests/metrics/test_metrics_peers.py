"""Metrics compared with independent libraries, on data where these are right (float64, no value on a bin edge)."""

import warnings

import numpy as np
import pytest
import sklearn.metrics
from metric_cases import make_rows

from ebmcal import metrics

LABELS, PROBS = make_rows(2000, 3)
CONFIDENCE, CORRECT = PROBS.max(axis=1), PROBS.argmax(axis=1) == LABELS


@pytest.mark.parametrize("n_bins", [10, 20])
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_ece_of_uncertainty_calibration(n_bins, binning):
    calibration = pytest.importorskip("calibration")
    function = calibration.get_ece if binning == "width" else calibration.utils.get_ece_em
    for mode, ours in (("top-label", metrics.ece_top_label), ("marginal", metrics.ece_classwise)):
        theirs = function(PROBS, LABELS, num_bins=n_bins, mode=mode)
        assert ours(LABELS, probs=PROBS, n_bins=n_bins, binning=binning) == pytest.approx(theirs, abs=1e-12)


def test_debiased_ece_of_uncertainty_calibration_up_to_its_random_draws():
    calibration = pytest.importorskip("calibration")
    np.random.seed(0)
    for mode, ours in (("top-label", metrics.ece_top_label_debiased), ("marginal", metrics.ece_classwise_debiased)):
        theirs = calibration.utils.get_ece_em(PROBS, LABELS, debias=True, num_bins=20, mode=mode)
        assert ours(LABELS, probs=PROBS, n_bins=20, binning="mass") == pytest.approx(theirs, abs=1e-3)


def test_top_label_errors_of_netcal():
    netcal = pytest.importorskip("netcal.metrics")
    for theirs, ours in ((netcal.ECE, metrics.ece_top_label), (netcal.MCE, metrics.mce_top_label)):
        assert ours(LABELS, probs=PROBS) == pytest.approx(theirs(bins=20).measure(PROBS, LABELS), abs=1e-12)


def test_top_label_ece_of_torchmetrics():
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    theirs = functional.multiclass_calibration_error(torch.tensor(PROBS), torch.tensor(LABELS), 3, n_bins=20)
    assert metrics.ece_top_label(LABELS, probs=PROBS) == pytest.approx(theirs.item(), abs=1e-6)  # float32 there


@pytest.mark.parametrize("noise", [0.7, 1.0, 2.0])
def test_smooth_ece_of_relplot(noise):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        relplot = pytest.importorskip("relplot")
    labels, probs = make_rows(1000, noise=noise)
    theirs = relplot.smECE(probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(float))
    assert metrics.smooth_ece(labels, probs=probs) == pytest.approx(theirs, abs=5e-4)  # it searches σ to 1e-3


@pytest.mark.parametrize("case", [(2000, 3, 0), *((6, 5, seed) for seed in range(5))])  # some classes are absent
def test_classification_of_sklearn(case):
    n_rows, n_classes, seed = case
    labels, probs = make_rows(n_rows, n_classes, seed=seed)
    predicted = probs.argmax(axis=1)
    assert metrics.accuracy(labels, probs=probs) == pytest.approx(sklearn.metrics.accuracy_score(labels, predicted))
    f1 = sklearn.metrics.f1_score(labels, predicted, average="macro", zero_division=0)
    assert metrics.macro_f1(labels, probs=probs) == pytest.approx(f1)
    assert metrics.matthews(labels, probs=probs) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predicted))


def test_scores_of_sklearn():
    assert metrics.nll(LABELS, probs=PROBS) == pytest.approx(sklearn.metrics.log_loss(LABELS, PROBS))
    theirs = sklearn.metrics.brier_score_loss(LABELS, PROBS, labels=[0, 1, 2], scale_by_half=False)
    assert metrics.brier(LABELS, probs=PROBS) == pytest.approx(theirs)


def test_scores_on_errors_of_sklearn():
    balanced = np.where(CORRECT, 1 / CORRECT.sum(), 1 / (~CORRECT).sum())
    theirs = sklearn.metrics.brier_score_loss(CORRECT, CONFIDENCE, sample_weight=balanced)
    assert metrics.balanced_brier(LABELS, probs=PROBS) == pytest.approx(theirs)
    assert metrics.confidence_on_errors(LABELS, probs=PROBS) == pytest.approx(CONFIDENCE[~CORRECT].mean())


@pytest.mark.parametrize("digits", [12, 1])  # with one digit there are many ties
def test_error_ranking_of_sklearn(digits):
    scores = CONFIDENCE.round(digits)
    theirs = sklearn.metrics.roc_auc_score(CORRECT, scores)
    assert metrics.error_auroc(LABELS, probs=PROBS, scores=scores) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("digits", [12, 1])
def test_ood_detection_of_sklearn(digits):
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 300).round(digits), rng.normal(0, 1, 200).round(digits)
    truth, scores = np.r_[np.ones(300), np.zeros(200)], np.r_[inside, outside]
    found = metrics.ood_detection(inside, outside)
    assert found["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(truth, scores), abs=1e-12)
    assert found["aupr"] == pytest.approx(sklearn.metrics.average_precision_score(truth, scores), abs=1e-12)
    fpr, tpr, _ = sklearn.metrics.roc_curve(truth, scores, drop_intermediate=False)
    assert found["fpr95"] == pytest.approx(fpr[tpr >= 0.95 - 1e-12][0])
