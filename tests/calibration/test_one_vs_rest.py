"""One-vs-rest calibrators against scikit-learn, uncertainty-calibration, netcal and cases worked by hand."""

import numpy as np
import pytest
from scipy.special import expit, log_expit, logsumexp, softmax

from ebmcal import EbmcalError
from ebmcal.calibration import HistogramBinning, Isotonic, Platt, ScalingBinning, VectorScaling, logits_of
from ebmcal.calibration.curves import BetaCurve, BinCurve, edges_at, equal_mass_stops, fit_logistic, smoothed_targets
from ebmcal.calibration.scaling import log_odds


@pytest.mark.parametrize("scale", [1.0, 50.0, 1000.0])
@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_log_odds_are_exact_even_when_saturated(scale, n_classes, calibrated_rows):
    logits = scale * calibrated_rows(2000, n_classes)[0]
    logits[:3] = 0.0
    logits[3:6, :2] = 5 * scale  # ties at the top
    others = [logsumexp(np.delete(logits, c, axis=1), axis=1) for c in range(n_classes)]
    np.testing.assert_allclose(log_odds(logits), logits.T - others, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [300, 60000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_logistic_fit_agrees_with_scikit_learn(n, scale):
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x = scale * rng.normal(size=(1, n))
    hits = rng.random(n) < expit(1.3 * x[0] / scale - 0.7)
    theirs = linear_model.LogisticRegression(C=np.inf, tol=1e-10, solver="newton-cholesky").fit(x.T, hits)
    slope, intercept = fit_logistic(x, hits.astype(float))
    assert slope == pytest.approx(theirs.coef_[0, 0], rel=1e-6)
    assert intercept == pytest.approx(theirs.intercept_[0], rel=1e-6)


def test_platt_agrees_with_scikit_learn(calibrated_rows):
    calibration = pytest.importorskip("sklearn.calibration")
    logits, y = calibrated_rows(3000, 2)
    theirs = calibration._SigmoidCalibration().fit(3 * (logits[:, 1] - logits[:, 0]), y)
    ours = Platt().fit(3 * logits, y).curves_[0]
    assert ours.slope == pytest.approx(-theirs.a_, rel=1e-4)
    assert ours.intercept == pytest.approx(-theirs.b_, abs=1e-4)


def test_isotonic_agrees_with_scikit_learn(calibrated_rows):
    isotonic = pytest.importorskip("sklearn.isotonic")
    logits, y = calibrated_rows(3000, 2)
    logits = (8 * logits).round() / 8  # ties, in numbers that subtract exactly
    odds = logits[:, 1] - logits[:, 0]
    theirs = isotonic.IsotonicRegression(y_min=1 / 3002, y_max=1 - 1 / 3002, out_of_bounds="clip").fit(odds, y == 1)
    ours = Isotonic().fit(logits, y)
    grid = np.linspace(-8, 8, 500)
    probs = ours.predict_proba(np.stack([np.zeros(500), grid], axis=1))[:, 1]
    np.testing.assert_allclose(probs, theirs.predict(grid), atol=1e-12)


def test_beta_agrees_with_an_unpenalised_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(1)
    odds = rng.normal(size=50_000) * 2
    hits = rng.random(50_000) < expit(odds)
    x = np.stack([log_expit(odds), -log_expit(-odds)])
    theirs = linear_model.LogisticRegression(C=np.inf, tol=1e-10, solver="newton-cholesky").fit(x.T, hits)
    found = BetaCurve.fit(odds, hits)
    assert (found.a, found.b) == pytest.approx(tuple(theirs.coef_[0]), rel=1e-3)  # Platt's targets are not 0 and 1


@pytest.mark.parametrize(("slope", "expected"), [(-1.0, (0.0, 0.0)), (1.0, None)])
def test_beta_never_turns_the_order_round(slope, expected):
    rng = np.random.default_rng(0)
    odds = rng.normal(size=5000)
    found = BetaCurve.fit(odds, rng.random(5000) < expit(slope * odds))
    assert found.a >= 0
    assert found.b >= 0
    if expected:
        assert (found.a, found.b) == expected


def test_beta_with_one_negative_weight_fits_the_rest_again():
    """Labels follow log(1 - p) alone, with a small share of the opposite of log p."""
    rng = np.random.default_rng(0)
    odds = rng.normal(size=20_000) * 2
    hits = rng.random(20_000) < BetaCurve(-0.5, 1.5, 0.0)(odds)
    found = BetaCurve.fit(odds, hits)
    (b, c) = fit_logistic(-log_expit(-odds)[None], smoothed_targets(hits))
    assert (found.a, found.b, found.c) == pytest.approx((0.0, b, c))


def test_equal_mass_bins_by_hand():
    ordered = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    stops = equal_mass_stops(ordered, 3)
    assert stops.tolist() == [2, 4]
    assert edges_at(ordered, stops).tolist() == [1.5, 3.5]
    assert equal_mass_stops(np.array([1.0]), 5).tolist() == []
    assert equal_mass_stops(np.ones(10), 5).tolist() == []
    assert equal_mass_stops(np.array([1.0, 2.0]), 10).tolist() == [1]


def test_neighbouring_floats_stay_in_their_bins():
    low = 1.0
    high = np.nextafter(low, 2.0)
    curve = BinCurve(edges_at(np.array([low, high]), np.array([1])), np.array([0.1, 0.9]))
    assert curve(np.array([low, high])).tolist() == [0.1, 0.9]


def test_histogram_binning_by_hand():
    """Two bins of width 1/2: P(1) below holds 1 hit of 4, above 3 hits of 4."""
    p = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
    y = np.array([0, 0, 0, 1, 1, 1, 1, 0])
    logits = logits_of(np.stack([1 - p, p], axis=1))
    textbook = HistogramBinning(n_bins=2, binning="width", pseudo_rows=0)
    with pytest.warns(UserWarning, match="few"):
        textbook.fit(logits, y)
    np.testing.assert_allclose(textbook.curves_[0].values, [0.25, 0.75])
    with pytest.warns(UserWarning, match="few"):
        shrunk = HistogramBinning(n_bins=2, binning="width").fit(logits, y)
    np.testing.assert_allclose(shrunk.curves_[0].values, [(1 + 0.25) / 5, (3 + 0.75) / 5])


@pytest.mark.parametrize("pseudo_rows", [0, 1.0])
def test_an_empty_bin_keeps_the_middle_of_its_range(pseudo_rows):
    p = np.repeat([0.05, 0.95], 200)
    calibrator = HistogramBinning(n_bins=4, binning="width", pseudo_rows=pseudo_rows)
    with pytest.warns(UserWarning, match="few"):
        calibrator.set_params(n_bins=10).fit(logits_of(np.stack([1 - p, p], axis=1)), np.arange(400) % 2)
    np.testing.assert_allclose(calibrator.curves_[0].values[1:-1], np.arange(1, 9) / 10 + 0.05, atol=1e-12)


def test_histogram_binning_agrees_with_netcal(calibrated_rows):
    binning = pytest.importorskip("netcal.binning", exc_type=ImportError)
    logits, y = calibrated_rows(5000, 2)
    p = softmax(logits, axis=1)[:, 1]
    theirs = binning.HistogramBinning(bins=10).fit(p, y).transform(p)
    ours = HistogramBinning(n_bins=10, binning="width", pseudo_rows=0).fit(logits, y).predict_proba(logits)[:, 1]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_scaling_binning_agrees_with_uncertainty_calibration(calibrated_rows):
    calibration = pytest.importorskip("calibration")
    if not hasattr(calibration, "PlattBinnerMarginalCalibrator"):
        pytest.skip("this `calibration` is not uncertainty-calibration")
    logits, y = calibrated_rows(20_000, 3)
    probs = softmax(2 * logits, axis=1)
    theirs = calibration.PlattBinnerMarginalCalibrator(20_000, 10)
    theirs.train_calibration(probs, y)
    expected = theirs.calibrate(probs)
    ours = ScalingBinning(n_bins=10).fit(2 * logits, y).predict_proba(2 * logits)
    np.testing.assert_allclose(ours, expected / expected.sum(axis=1, keepdims=True), atol=1e-3)


def test_scaling_binning_has_few_values_each_the_mean_of_its_bin(calibrated_rows):
    logits, y = calibrated_rows(1000, 2)
    curve = ScalingBinning(n_bins=5).fit(logits, y).curves_[0]
    platt = Platt().fit(logits, y).curves_[0]
    odds = logits[:, 1] - logits[:, 0]
    bins = np.searchsorted(curve.edges, odds)
    assert np.bincount(bins).tolist() == [200] * 5
    np.testing.assert_allclose(curve.values, [platt(odds[bins == b]).mean() for b in range(5)], rtol=1e-12)


@pytest.mark.parametrize(
    ("calibrator", "words"),
    [
        (ScalingBinning(n_bins=0), "n_bins: expected a whole number"),
        (HistogramBinning(n_bins="x"), "n_bins: expected a whole number"),
        (HistogramBinning(binning="mas"), "mass, width"),
        (HistogramBinning(pseudo_rows=-1), "pseudo_rows"),
        (VectorScaling(penalty="small"), "penalty"),
    ],
)
def test_bad_settings_are_refused(calibrator, words, calibrated_rows):
    with pytest.raises(EbmcalError, match=words):
        calibrator.fit(*calibrated_rows(3000, 2))
