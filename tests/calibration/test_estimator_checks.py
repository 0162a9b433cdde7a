"""scikit-learn's own checks of one calibrator of each family; what cannot pass is named, with the reason."""

import warnings

import pytest

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import parametrize_with_checks

from ebmcal.calibration import make_calibrator

_COLUMNS = "three labels come with two columns, and a calibrator has a column for each label"
_WORDS = "it is refused as it should be, in words of our own: scikit-learn looks for its own"
EXPECTED_FAILURES = {
    "check_estimators_overwrite_params": _COLUMNS,
    "check_estimators_fit_returns_self": _COLUMNS,
    "check_readonly_memmap_input": _COLUMNS,
    "check_estimators_unfitted": "EbmcalError is raised, not NotFittedError",
    "check_dtype_object": "an array of objects is refused, also when they are numbers",
    "check_n_features_in_after_fitting": _WORDS,
    "check_complex_data": _WORDS,
    "check_estimators_empty_data_messages": _WORDS,
    "check_estimators_nan_inf": _WORDS,
    "check_estimator_sparse_tag": _WORDS,
    "check_estimator_sparse_array": _WORDS,
    "check_estimator_sparse_matrix": _WORDS,
    "check_fit2d_1feature": _WORDS,
    "check_fit2d_predict1d": _WORDS,
    "check_requires_y_none": _WORDS,
}


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*does not inherit from")  # it would make scikit-learn a requirement
    every_check = parametrize_with_checks(
        [make_calibrator(name) for name in ("temperature", "vector", "platt", "histogram-binning")],
        expected_failed_checks=lambda _: EXPECTED_FAILURES,
        xfail_strict=True,
    )


@pytest.mark.filterwarnings("ignore:.*rows are few", "ignore:.*did not converge")
@every_check
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
