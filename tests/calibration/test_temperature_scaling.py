"""Temperature scaling against scikit-learn, scipy and cases with a known answer."""

import numpy as np
import pytest
from scipy.special import softmax

from ebmcal.calibration import EnsembleTemperature, TemperatureGrid, TemperatureScaling
from ebmcal.calibration.scaling import AUTHORS_GRID
from ebmcal.metrics import ece_top_label


def reference_temperature(logits, y):
    """T where the derivative of the NLL in 1/T changes sign, by bisection in float64: exact to rounding."""
    low, high = 1e-3, 1e3
    for _ in range(60):
        b = np.sqrt(low * high)
        p = softmax(b * logits, axis=1)
        slope = ((p * logits).sum(axis=1) - logits[np.arange(len(y)), y]).mean()
        low, high = (low, b) if slope > 0 else (b, high)
    return 1 / b


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("n", [150, 20000])
@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0, 50.0])
def test_the_optimum_is_exact(n, n_classes, scale, calibrated_rows):
    logits, y = calibrated_rows(n, n_classes, seed=n)
    fitted = TemperatureScaling().fit(scale * logits, y)
    assert fitted.converged_
    assert fitted.temperature_ == pytest.approx(reference_temperature(scale * logits, y), rel=1e-9)


def test_agrees_with_scikit_learn(calibrated_rows):
    calibration = pytest.importorskip("sklearn.calibration")
    if not hasattr(calibration, "_TemperatureScaling"):
        pytest.skip("this scikit-learn has no temperature scaling")
    logits, y = calibrated_rows(5000, 3)
    theirs = calibration._TemperatureScaling().fit(3 * logits, y)
    ours = TemperatureScaling().fit(3 * logits, y)
    assert ours.temperature_ == pytest.approx(1 / float(theirs.beta_), abs=1e-6)
    np.testing.assert_allclose(ours.predict_proba(logits), theirs.predict(logits), atol=1e-6)


def test_a_sample_that_misleads_does_not_mislead_the_fit():
    """Every 12th row, which the first steps see, is right; the others are not."""
    n = 100_000
    logits = np.tile([3.0, 0.0], (n, 1))
    y = np.ones(n, dtype=int)
    y[::3] = y[::2] = 0
    share = (y == 0).mean()  # 2/3
    expected = 3.0 / np.log(share / (1 - share))
    assert TemperatureScaling().fit(logits, y).temperature_ == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n_wrong", [1, 20])
@pytest.mark.parametrize("n", [1000, 50_000])
@pytest.mark.parametrize("gap", [0.3, 5.0])
def test_nearly_separable_rows_settle_in_few_steps(n, n_wrong, gap):
    logits = np.tile([gap, 0.0], (n, 1))
    y = np.zeros(n, dtype=int)
    y[:n_wrong] = 1
    fitted = TemperatureScaling().fit(logits, y)
    assert fitted.converged_
    assert fitted.temperature_ == pytest.approx(gap / np.log((n - n_wrong) / n_wrong), rel=1e-9)


@pytest.mark.parametrize(("sign", "bound", "why"), [(1, 0.01, "predicted correctly"), (-1, 100, "uninformative")])
def test_separable_rows_and_those_worse_than_chance_stop_at_a_bound(sign, bound, why):
    y = np.arange(300) % 3
    with pytest.warns(UserWarning, match=rf"T = {bound}.*{why}"):
        fitted = TemperatureScaling().fit(sign * 2.0 * np.eye(3)[y], y)
    assert fitted.temperature_ == pytest.approx(bound)
    assert not fitted.converged_
    assert "not converged" in fitted.note


def test_flat_rows_leave_the_temperature_at_one():
    fitted = TemperatureScaling().fit(np.full((200, 3), 7.0), np.arange(200) % 3)
    assert (fitted.temperature_, fitted.converged_) == (1.0, True)


def test_the_grid_takes_the_best_of_the_authors_thirteen(calibrated_rows):
    assert AUTHORS_GRID == (0.1, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 3)
    logits, y = calibrated_rows(3000, 3)
    fitted = TemperatureGrid().fit(2.9 * logits, y)
    assert fitted.temperature_ == min(AUTHORS_GRID, key=lambda t: ece_top_label(y, logits=2.9 * logits / t))


def test_a_mixture_never_changes_labels():
    """Not even where the labels contradict the logits, so that the uniform distribution fits best."""
    y = np.arange(200) % 2
    logits = -5.0 * np.eye(2)[y]
    assert (EnsembleTemperature().fit(logits, y).predict_proba(logits).argmax(axis=1) == logits.argmax(axis=1)).all()
