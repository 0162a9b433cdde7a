"""What holds for every entry of CALIBRATORS."""

import json
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmcal import EbmcalError
from ebmcal.calibration import CALIBRATORS, FewRowsWarning, load_calibrator, make_calibrator
from ebmcal.metrics import ece_classwise, nll
from ebmcal.predictions import softmax

NAMES = sorted(CALIBRATORS)
#: Those that cannot tell labels apart.
BLIND = ("temperature", "ensemble-temperature", "temperature-grid")
every_calibrator = pytest.mark.parametrize("name", NAMES)


def fit(name, logits, y):
    """Fit without the warnings that small or degenerate rows rightly cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_calibrator(name).fit(logits, y)


def require_probabilities(probs, shape):
    assert probs.shape == shape
    assert probs.dtype == np.float64
    assert np.isfinite(probs).all()
    assert probs.min() >= 0
    assert probs.max() <= 1
    assert np.abs(probs.sum(axis=1) - 1).max() < 1e-12


@every_calibrator
@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_fixes_overconfidence(name, n_classes, calibrated_rows):
    logits, y = calibrated_rows(6000, n_classes, seed=1)
    calibrator = make_calibrator(name).fit(3 * logits[:3000], y[:3000])
    before, after = softmax(3 * logits[3000:]), calibrator.predict_proba(3 * logits[3000:])
    require_probabilities(after, (3000, n_classes))
    assert nll(y[3000:], probs=after) < nll(y[3000:], probs=before) - 0.1
    assert ece_classwise(y[3000:], probs=after) < 0.6 * ece_classwise(y[3000:], probs=before)


@every_calibrator
def test_fit_returns_itself_keeps_its_input_and_predicts_row_by_row(name, calibrated_rows):
    logits, y = calibrated_rows(2000, 3)
    kept_logits, kept_y = logits.copy(), y.copy()
    calibrator = make_calibrator(name)
    assert calibrator.fit(logits, y) is calibrator
    together = calibrator.predict_proba(logits)[:50]
    alone = np.concatenate([calibrator.predict_proba(row[None]) for row in logits[:50]])
    np.testing.assert_allclose(alone, together, rtol=1e-14)
    np.testing.assert_array_equal(logits, kept_logits)
    np.testing.assert_array_equal(y, kept_y)


@every_calibrator
@pytest.mark.parametrize("n_classes", [2, 3])
def test_json_and_pickle_give_the_same_bits(name, n_classes, calibrated_rows, tmp_path):
    logits, y = calibrated_rows(2000, n_classes)
    calibrator = make_calibrator(name).fit(logits, y)
    calibrator.save(tmp_path / "calibrator.json")
    loaded = load_calibrator(tmp_path / "calibrator.json")
    pickled = pickle.loads(pickle.dumps(calibrator))
    for other in (loaded, pickled):
        assert type(other) is type(calibrator)
        assert other.get_params() == calibrator.get_params()
        np.testing.assert_array_equal(other.predict_proba(logits), calibrator.predict_proba(logits))
        assert other.to_json() == calibrator.to_json()


@every_calibrator
@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_class_absent_from_the_fit_stays_small_and_finite(name, n_classes, calibrated_rows):
    logits, y = calibrated_rows(3000, n_classes)
    present = y != n_classes - 1
    probs = fit(name, logits[present], y[present]).predict_proba(logits)
    require_probabilities(probs, logits.shape)
    assert probs[:, -1].min() > 0
    if name not in BLIND:
        assert probs[:, -1].mean() < 0.5 / n_classes


@every_calibrator
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("scale", [50.0, 1e4, 1e300])
def test_saturated_logits(name, n_classes, scale, calibrated_rows):
    logits, y = calibrated_rows(2000, n_classes)
    calibrator = fit(name, scale * logits, y)
    require_probabilities(calibrator.predict_proba(scale * logits), logits.shape)
    json.dumps(calibrator.to_json(), allow_nan=False)


@every_calibrator
def test_logits_times_50_are_calibrated_as_well_as_the_logits_themselves(name, calibrated_rows):
    if name == "temperature-grid":
        pytest.skip("its largest temperature is 3")
    logits, y = calibrated_rows(4000, 3)
    probs = fit(name, 50 * logits, y).predict_proba(50 * logits)
    plain = make_calibrator(name).fit(logits, y).predict_proba(logits)
    assert nll(y, probs=probs) < nll(y, probs=plain) + 0.06


@every_calibrator
@pytest.mark.parametrize("n_classes", [2, 3])
def test_separable_rows(name, n_classes):
    y = np.arange(900) % n_classes
    logits = 8.0 * np.eye(n_classes)[y]
    probs = fit(name, logits, y).predict_proba(logits)
    require_probabilities(probs, logits.shape)
    np.testing.assert_array_equal(probs.argmax(axis=1), y)


@every_calibrator
@pytest.mark.parametrize("n_classes", [2, 3])
def test_equal_logits_give_the_frequencies_or_stay(name, n_classes):
    y = np.repeat([0, 1], [900, 600])
    probs = fit(name, np.zeros((1500, n_classes)), y).predict_proba(np.zeros((1, n_classes)))
    require_probabilities(probs, (1, n_classes))
    expected = 1 / n_classes if name in BLIND else 0.6
    assert probs[0, 0] == pytest.approx(expected, abs=0.01)


@every_calibrator
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_other_number_types_are_computed_in_float64(name, dtype, calibrated_rows):
    logits, y = calibrated_rows(2000, 3)
    logits = (4 * logits).astype(dtype)
    narrow = make_calibrator(name).fit(logits, y).predict_proba(logits)
    wide = make_calibrator(name).fit(logits.astype(np.float64), y).predict_proba(logits.astype(np.float64))
    np.testing.assert_allclose(narrow, wide, rtol=1e-9, atol=1e-12)


@every_calibrator
def test_a_shift_of_each_row_changes_nothing(name, calibrated_rows):
    logits, y = calibrated_rows(2000, 3)
    shifted = logits + np.linspace(-5, 5, 2000)[:, None]
    np.testing.assert_allclose(
        make_calibrator(name).fit(shifted, y).predict_proba(shifted),
        make_calibrator(name).fit(logits, y).predict_proba(logits),
        atol=1e-5,
    )


@every_calibrator
def test_fitting_again_forgets_the_first_fit(name, calibrated_rows):
    logits, y = calibrated_rows(1500, 3)
    other, other_y = calibrated_rows(1500, 2, seed=5)
    again = make_calibrator(name).fit(other, other_y).fit(logits, y)
    assert again.to_json() == make_calibrator(name).fit(logits, y).to_json()


@every_calibrator
@pytest.mark.parametrize(
    ("logits", "y", "words"),
    [
        ([[1.0, np.nan], [0.0, 1.0]], [0, 1], "finite"),
        ([[1.0, np.inf], [0.0, 1.0]], [0, 1], "finite"),
        ([[1.0, 2.0], [0.0, 1.0]], [0, 2], "label"),
        ([[1.0, 2.0], [0.0, 1.0]], [0, -1], "label"),
        ([[1.0, 2.0], [0.0, 1.0]], [0, 1, 1], "rows"),
        ([[1.0], [0.0]], [0, 0], "two columns"),
        ([1.0, 2.0], [0, 1], "logits"),
        (np.empty((0, 2)), [], "row"),
        ([[1.0, 2.0], [0.0, 1.0]], [0.5, 1.0], "label"),
    ],
)
def test_bad_fitting_rows_are_refused(name, logits, y, words):
    with pytest.raises(EbmcalError, match=words):
        fit(name, logits, y)


@every_calibrator
def test_bad_rows_to_predict_are_refused(name, calibrated_rows):
    calibrator = fit(name, *calibrated_rows(200, 3))
    with pytest.raises(EbmcalError, match="finite"):
        calibrator.predict_proba([[0.0, np.nan, 0.0]])
    with pytest.raises(EbmcalError, match=r"3 classes.*2 columns"):
        calibrator.predict_proba([[0.0, 1.0]])


@every_calibrator
def test_use_before_fit_is_refused(name):
    for use in (lambda c: c.predict_proba([[0.0, 1.0]]), lambda c: c.to_json(), lambda c: c.save("nowhere.json")):
        with pytest.raises(EbmcalError, match="not fitted"):
            use(make_calibrator(name))


@every_calibrator
def test_few_rows_warn_with_advice(name, calibrated_rows):
    calibrator = make_calibrator(name)
    wanted = calibrator.min_rows(3)
    with pytest.warns(FewRowsWarning, match=f"at least {wanted} recommended"):
        calibrator.fit(*calibrated_rows(wanted - 1, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator.fit(*calibrated_rows(wanted, 3))


@every_calibrator
def test_settings_follow_scikit_learn(name):
    sklearn_base = pytest.importorskip("sklearn.base")
    calibrator = make_calibrator(name)
    params = calibrator.get_params()
    assert vars(calibrator) == params, "the constructor only stores its settings"
    assert calibrator.set_params(**params) is calibrator
    assert sklearn_base.clone(calibrator).get_params() == params
    assert repr(calibrator).startswith(type(calibrator).__name__)
    with pytest.raises(EbmcalError, match="setting"):
        calibrator.set_params(nonsense=1)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("temprature", "Did you mean 'temperature'"),
        ("platt:n_bins=3", "Unknown setting of Platt 'n_bins'"),
        ("scaling-binning:n_bins", "no value for 'n_bins'"),
    ],
)
def test_names_and_their_settings_are_checked(spec, words):
    with pytest.raises(EbmcalError, match=words):
        make_calibrator(spec)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    n=st.integers(1, 40),
    n_classes=st.integers(2, 5),
    n_levels=st.integers(1, 6),
    scale=st.sampled_from([1e-6, 1.0, 50.0, 1e5]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    seed=st.integers(0, 1000),
)
def test_any_rows_give_probabilities(name, n, n_classes, n_levels, scale, dtype, seed):
    rng = np.random.default_rng(seed)
    scale = min(scale, 1e3) if dtype is np.float16 else scale
    logits = (scale * rng.integers(0, n_levels, (n, n_classes))).astype(dtype)  # many ties
    y = rng.integers(0, n_classes, n)
    calibrator = fit(name, logits, y)
    require_probabilities(calibrator.predict_proba(logits), logits.shape)
    require_probabilities(calibrator.predict_proba(rng.normal(size=(5, n_classes)) * 100), (5, n_classes))
