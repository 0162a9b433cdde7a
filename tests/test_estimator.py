"""The scikit-learn estimator: scikit-learn's own checks, and what people do with a text classifier there."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from ebmcal import EbmcalError, EnergyTextClassifier
from tiny_models import SENTENCES

QUICK = {"method": "baseline", "steps": 2, "batch_size": 8, "max_length": 32, "settings": {"precision": "fp32"}}
TEXTS = SENTENCES[:40]
LABELS = np.array(["joy" if "joy" in text or "worth" in text else "dull" for text in TEXTS])


def quick(encoder_folder, **changes):
    return EnergyTextClassifier(encoder=str(encoder_folder), **QUICK | changes)


@pytest.fixture(scope="module")
def fitted(encoder_folder):
    return quick(encoder_folder).fit(TEXTS, LABELS)


def test_fit_predict_score(fitted):
    assert fitted.classes_.tolist() == ["dull", "joy"]
    probs = fitted.predict_proba(TEXTS)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert fitted.predict(TEXTS).tolist() == fitted.classes_[probs.argmax(axis=1)].tolist()
    assert fitted.score(TEXTS, LABELS) == np.mean(fitted.predict(TEXTS) == LABELS)
    assert fitted.energy(TEXTS[:3]).shape == (3,)
    assert fitted.model_.label_names == ("dull", "joy")


def test_it_learns(encoder_folder):
    """Word order aside, the two kinds of text differ in one word."""
    classifier = quick(encoder_folder, steps=60, batch_size=16, learning_rate=5e-3).fit(TEXTS, LABELS)
    assert classifier.score(TEXTS, LABELS) > 0.9


def test_the_energy_is_trained_by_default(encoder_folder):
    classifier = quick(encoder_folder, method=EnergyTextClassifier().method, noise_ratio=1).fit(TEXTS, LABELS)
    assert classifier.model_.classifier.energy == "hidden"
    assert np.isfinite(classifier.energy(TEXTS)).all()


def test_classes_keep_their_type_and_their_columns(encoder_folder):
    for classes in ([10, 9], [1.0, -1.0], [True, False], ["1", "one"], ["b ", "b"], ["", "x"]):
        y = np.array(classes * 20)
        classifier = quick(encoder_folder, steps=1).fit(TEXTS, y)
        assert classifier.classes_.tolist() == sorted(classes)
        assert classifier.predict(TEXTS).dtype == y.dtype
        # the column of a class is that of the model's label for it
        names = classifier.model_.label_names
        raw = classifier.model_.predict_proba(TEXTS)
        np.testing.assert_array_equal(classifier.predict_proba(TEXTS), raw[:, [names.index(n) for n in named(classes)]])


def named(classes):
    """The names that stand for sorted classes in a model."""
    plain = sorted(classes)
    known = {("1", "one"), ("b", "b "), ("", "x")}
    return ["class 0", "class 1"] if tuple(plain) in known else [str(c).removesuffix(".0") for c in plain]


def test_the_same_seed_gives_the_same_model(fitted, encoder_folder):
    again = quick(encoder_folder).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    other = quick(encoder_folder, random_state=np.random.RandomState(3)).fit(TEXTS, LABELS)
    assert not np.allclose(other.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_clone_has_the_settings_and_nothing_learned(fitted):
    cloned = clone(fitted)
    assert cloned.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        cloned.predict(TEXTS)


def test_the_model_is_in_the_pickle(fitted, tmp_path, monkeypatch):
    data = pickle.dumps(fitted)
    folder = fitted.model_.folder
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for again in (pickle.loads(data), copy.deepcopy(fitted)):
        assert again.model_.folder != folder
        np.testing.assert_array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).energy(TEXTS[:2]), fitted.energy(TEXTS[:2]))
    assert pickle.loads(pickle.dumps(clone(fitted))).get_params() == fitted.get_params()


def test_a_pickle_writes_no_file_elsewhere(fitted):
    state = fitted.__getstate__()
    state["model_files"] = {"../escaped": b""}
    with pytest.raises(EbmcalError, match="leaves the folder"):
        EnergyTextClassifier().__setstate__(state)


def test_grid_search(encoder_folder):
    search = GridSearchCV(quick(encoder_folder), {"learning_rate": [1e-4, 1e-2]}, cv=2, scoring="neg_log_loss")
    search.fit(TEXTS, LABELS)
    assert set(search.best_params_) == {"learning_rate"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_scikit_learns_calibrator(fitted):
    calibrated = CalibratedClassifierCV(FrozenEstimator(fitted)).fit(TEXTS, LABELS)
    assert calibrated.predict_proba(TEXTS).shape == (40, 2)
    assert calibrated.classes_.tolist() == ["dull", "joy"]


def test_pipeline_and_cross_validation(encoder_folder):
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = make_pipeline(lower, quick(encoder_folder))
    probs = cross_val_predict(pipeline, np.array(TEXTS), LABELS, cv=2, method="predict_proba")
    assert probs.shape == (40, 2)


def test_frames_and_pairs(fitted, encoder_folder):
    import pandas as pd

    want = fitted.predict_proba(TEXTS)
    frame = pd.DataFrame({"text": TEXTS})
    for given in (frame, frame["text"], np.array(TEXTS), np.array(TEXTS, dtype=object)[:, None], tuple(TEXTS)):
        np.testing.assert_array_equal(fitted.predict_proba(given), want)
    pairs = quick(encoder_folder, steps=1).fit([(text, "so") for text in TEXTS], LABELS)
    assert pairs.predict_proba(pd.DataFrame({"a": TEXTS, "b": "so"})).shape == (40, 2)


def test_nothing_is_printed(encoder_folder, capfd):
    quick(encoder_folder, steps=1).fit(TEXTS, LABELS)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (TEXTS, ["a"] * 40, "of one class, a;"),
        (TEXTS, LABELS[:39], "inconsistent numbers of samples"),
        (TEXTS, None, "requires y"),
        ("a text", ["a"], "a string came"),
        ([1, 2] * 20, LABELS, "texts must be strings"),
        (TEXTS, np.linspace(0, 1, 40), "Unknown label type"),
    ],
)
def test_bad_input(encoder_folder, X, y, words):
    with pytest.raises(ValueError, match=words):
        quick(encoder_folder).fit(X, y)


def test_bad_settings(encoder_folder):
    with pytest.raises(EbmcalError, match="Did you mean 'hidden'"):
        quick(encoder_folder, method="hiden").fit(TEXTS, LABELS)
    with pytest.raises(EbmcalError, match="Unknown setting 'eval_step'"):
        quick(encoder_folder, settings={"eval_step": 3}).fit(TEXTS, LABELS)


class OfNumbers(EnergyTextClassifier):
    """The estimator on the numbers of scikit-learn's checks, which have no texts: each number becomes a word."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        return super().fit(words(X), y)

    def predict_proba(self, X):
        check_is_fitted(self)
        return super().predict_proba(words(validate_data(self, X, reset=False)))

    def energy(self, X):
        check_is_fitted(self)
        return super().energy(words(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = False, True, False
        tags.classifier_tags.poor_score = True  # after a step or two
        return tags


def words(X):
    return [" ".join(f"{value:.3g}" for value in row[:8]) for row in X]


@pytest.mark.slow
@parametrize_with_checks([OfNumbers(**QUICK)])  # none is expected to fail
def test_the_checks_of_scikit_learn(estimator, check, encoder_folder):
    check(estimator.set_params(encoder=str(encoder_folder)))
