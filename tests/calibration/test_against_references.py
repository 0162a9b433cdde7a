"""Ensemble temperature, spline, structured matrix and Venn–Abers against probmetrics, venn-abers and brute force."""

import warnings

import numpy as np
import pytest
from scipy.optimize import check_grad, isotonic_regression
from scipy.special import log_softmax, softmax

from ebmcal.calibration import EnsembleTemperature, MatrixScaling, Spline, TemperatureScaling, VectorScaling, VennAbers
from ebmcal.calibration.curves import MAX_POINTS, values_with_a_hit
from ebmcal.calibration.scaling import fit_mixture_weights, matrix_objective, vector_objective


@pytest.fixture(scope="module")
def probmetrics():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba's and torch's own
        return pytest.importorskip("probmetrics.calibrators", exc_type=ImportError)


@pytest.fixture(scope="module")
def venn_abers():
    kept = np.geterr()
    module = pytest.importorskip("venn_abers.venn_abers", exc_type=ImportError)
    np.seterr(**kept)  # it silences numpy for everybody
    return module


def test_ensemble_temperature_agrees_with_probmetrics(probmetrics, calibrated_rows):
    logits, y = calibrated_rows(3000, 3)
    lot = np.random.default_rng(1).random(3000) < 0.2
    y = np.where(lot, np.random.default_rng(2).integers(0, 3, 3000), y)
    ours = EnsembleTemperature().fit(3 * logits, y)
    probs = softmax(3 * logits, axis=1)
    theirs = probmetrics.ETSCalibrator(loss="ce").fit(probs, y)
    assert ours.temperature_ == pytest.approx(theirs.t_, rel=1e-3)
    np.testing.assert_allclose(ours.predict_proba(3 * logits), theirs.predict_proba(probs), atol=2e-3)
    assert ours.weights_[2] > 0.05


def test_mixture_weights_are_the_likeliest():
    likely = np.random.default_rng(0).random((3, 500))
    found = fit_mixture_weights(likely)
    assert found.sum() == pytest.approx(1)
    best = np.log(found @ likely).mean()
    for other in np.random.default_rng(1).dirichlet(np.ones(3), 2000):
        assert np.log(other @ likely).mean() <= best + 1e-9


@pytest.mark.parametrize(("n", "tolerance"), [(MAX_POINTS, 1e-5), (8000, 2e-3)])
def test_spline_agrees_with_probmetrics(n, tolerance, probmetrics, calibrated_rows):
    logits, y = calibrated_rows(n, 2)
    logits = 3 * logits + [0.0, 0.5]
    ours = Spline().fit(logits, y)
    probs = softmax(logits / TemperatureScaling().fit(logits, y).temperature_, axis=1)
    theirs = probmetrics.CDFSplineCalibrator().fit(probs, y).predict_proba(probs)
    np.testing.assert_allclose(
        ours.predict_proba(logits), np.clip(theirs, 1 / (n + 2), 1 - 1 / (n + 2)), atol=tolerance
    )
    assert len(ours.curves_[0].odds) <= MAX_POINTS


def test_structured_matrix_agrees_with_probmetrics(probmetrics, calibrated_rows):
    logits, y = calibrated_rows(1000, 3)
    mixed = 2 * logits @ np.array([[1.0, 0.2, 0.0], [0.0, 1.0, 0.3], [0.1, 0.0, 1.0]]) + [0.0, 0.5, -0.5]
    theirs = probmetrics.SMSCalibrator().fit(softmax(mixed, axis=1), y)
    ours = MatrixScaling().fit(mixed, y)
    assert ours.converged_
    np.testing.assert_allclose(ours.predict_proba(mixed), theirs.predict_proba(softmax(mixed, axis=1)), atol=1e-3)
    z = np.ascontiguousarray(ours._log_probs(mixed, 1000).T)
    prices = 3 / 1000 * np.hstack([np.where(np.eye(3) > 0, 1.0, 2.0), np.ones((3, 1))])
    found = np.column_stack([ours.matrix_, ours.bias_]) - np.eye(3, 4)
    loss, their_loss = (matrix_objective(d.ravel(), z, y, prices)[0] for d in (found, theirs.W_ - np.eye(3, 4)))
    assert their_loss - 1e-4 < loss <= their_loss  # theirs stops earlier, in float32


@pytest.mark.parametrize(
    ("objective", "size", "price"), [(vector_objective, 6, 0.7), (matrix_objective, 12, np.full((3, 4), 0.3))]
)
def test_penalised_scaling_has_the_gradient_of_its_loss(objective, size, price, calibrated_rows):
    logits, y = calibrated_rows(300, 3)
    z, theta = np.ascontiguousarray(log_softmax(logits, axis=1).T), np.random.default_rng(0).normal(size=size) / 3
    f = lambda t: objective(t, z, y, price)  # noqa: E731
    assert check_grad(lambda t: f(t)[0], lambda t: f(t)[1], theta) < 1e-5


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_scaling_with_a_high_penalty_is_temperature(kind, calibrated_rows):
    logits, y = calibrated_rows(1000, 3)
    held = kind(penalty=1e9).fit(3 * logits, y).predict_proba(logits)
    np.testing.assert_allclose(held, TemperatureScaling().fit(3 * logits, y).predict_proba(logits), atol=2e-3)


@pytest.mark.parametrize("rounded", [False, True])
def test_venn_abers_agrees_with_the_package(venn_abers, calibrated_rows, rounded):
    (logits, y), (new, _) = calibrated_rows(800, 2), calibrated_rows(300, 2, seed=1)
    if rounded:  # ties, within the fitting rows and with new ones
        logits, new = (2 * logits).round() / 2, (2 * new).round() / 2
    va = venn_abers.VennAbers()
    with np.errstate(all="ignore"):
        va.fit(softmax(logits, axis=1).round(12), y)
        theirs, _ = va.predict_proba(softmax(new, axis=1).round(12))
    ours = VennAbers().fit(logits, y)
    np.testing.assert_allclose(ours.predict_proba(new), theirs, atol=1e-9)


def test_venn_abers_of_three_labels_agrees_with_the_package(venn_abers, calibrated_rows):
    (logits, y), (new, _) = calibrated_rows(1200, 3), calibrated_rows(200, 3, seed=1)
    probs, new_probs = softmax(logits, axis=1), softmax(new, axis=1)
    with np.errstate(all="ignore"):
        theirs, _ = venn_abers.predict_proba_prefitted_va(probs, y, new_probs, va_tpe="one_vs_rest")
    np.testing.assert_allclose(VennAbers().fit(logits, y).predict_proba(new), theirs, atol=1e-9)


def test_venn_abers_is_isotonic_regression_with_one_row_more():
    rng = np.random.default_rng(0)
    for _ in range(30):
        counts = rng.integers(1, 4, 8)
        n_hits = np.array([rng.integers(0, c + 1) for c in counts])
        expected = []
        for i in range(9):
            y, w = np.insert(n_hits / counts, i, 1.0), np.insert(counts, i, 1)
            expected.append(isotonic_regression(y, weights=w).x[i])
        np.testing.assert_allclose(values_with_a_hit(counts, n_hits), expected, atol=1e-12)
