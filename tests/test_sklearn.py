"""`EnergyTextClassifier` in scikit-learn."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from ebmcal import EnergyTextClassifier, load
from ebmcal.errors import EbmcalError
from ebmcal.sklearn import class_names, labelled_rows
from small_runs import rows

TEXTS, LABELS = [text for text, _ in rows(60)], np.array([label for _, label in rows(60)])


def make(encoder_dir, **changes):
    settings = {"steps": 4, "precision": "fp32"}
    return EnergyTextClassifier(str(encoder_dir), batch_size=8, max_length=32, settings=settings, **changes)


@pytest.fixture(scope="module")
def fitted(encoder_dir):
    return make(encoder_dir).fit(TEXTS, LABELS)


def test_predictions_have_the_classes_of_y(fitted):
    probs = fitted.predict_proba(TEXTS[:7])
    assert probs.shape == (7, 3)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    assert fitted.classes_.tolist() == ["bad", "fair", "good"]
    assert set(fitted.predict(TEXTS[:7])) <= set(LABELS)
    assert fitted.energy(TEXTS[:7]).shape == (7,)


def test_the_model_has_the_names_of_the_classes(fitted, tmp_path):
    model = load(fitted.model_.save(tmp_path / "model"))
    assert model.label_names == ("bad", "fair", "good")
    predictions = model.predict((TEXTS, LABELS.tolist()), label_column="label")
    assert predictions.predicted_labels.tolist() == fitted.predict(TEXTS).tolist()
    assert [predictions.label_names[label] for label in predictions.labels] == LABELS.tolist()


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (["10", "2", "a"], ["10", "2", "a"]),  # the order of classes_, and a mixture that a file may not have
        ([2, 10], ["2", "10"]),
        ([False, True], ["false", "true"]),
        ([0.0, 1.0], ["0", "1"]),
        (["-", "x "], ["-", "x"]),
        (["x", "x "], ["class_000000", "class_000001"]),  # the same in a file
        (["", "x"], ["class_000000", "class_000001"]),  # no label in a file
    ],
)
def test_class_names(classes, names):
    assert class_names(np.array(classes)) == names
    rows = labelled_rows([("a", "b")] * 3, np.array([1, 0, 1]), names)
    assert rows["label"][:] == [1, 0, 1]
    assert rows.features["label"].names == names
    assert rows["text_pair"][:] == ["b"] * 3


@pytest.mark.parametrize(("bad", "other", "classes"), [("10", "2", ["10", "2"]), (10, 2, [2, 10])])
def test_labels_of_any_type_keep_the_order_of_classes(encoder_dir, bad, other, classes):
    labels, pairs = np.where(LABELS == "bad", bad, other), [(text, "and more") for text in TEXTS]
    fitted = make(encoder_dir, method="baseline").fit(pairs, labels)
    assert fitted.classes_.tolist() == classes
    assert fitted.model_.label_names == tuple(map(str, classes))
    assert set(fitted.predict(pairs)) <= set(classes)


def test_empty_and_missing_texts_are_left_out_of_training_and_predicted_with_a_warning(encoder_dir):
    texts = ["", None, float("nan"), *TEXTS[3:]]
    with pytest.warns(UserWarning, match="3 rows with an empty text, the first is row 0 .*: left out"):
        fitted = make(encoder_dir, method="baseline").fit(pd.Series(texts), LABELS)
    with pytest.warns(UserWarning, match="3 empty texts: their predictions mean nothing"):
        probs = fitted.predict_proba(texts[:4])
    np.testing.assert_allclose(probs[0], probs[2], atol=1e-6)


def test_it_pickles_with_its_model(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(TEXTS[:5]), fitted.predict_proba(TEXTS[:5]), atol=1e-6)


def test_it_clones_and_works_in_cross_validation(encoder_dir):
    scores = cross_val_score(clone(make(encoder_dir, method="baseline")), TEXTS, LABELS, cv=2)
    assert scores.shape == (2,)
    assert np.isfinite(scores).all()


def test_cross_fitting_attaches_a_temperature(encoder_dir):
    with pytest.warns(UserWarning, match="60 rows are few"):
        fitted = make(encoder_dir, method="baseline", calibration="cross-fit").fit(TEXTS, LABELS)
    assert fitted.model_.calibrator is not None


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("one text", ["a"], "got a string"),
        (TEXTS, None, "requires y"),
        (TEXTS, ["a"] * 60, "at least two classes"),
    ],
)
def test_wrong_input(encoder_dir, X, y, message):
    with pytest.raises(EbmcalError, match=message):
        make(encoder_dir).fit(X, y)
    with pytest.raises(EbmcalError, match="Replace the labels in y"):
        make(encoder_dir).set_params(settings={"merge_labels": {"bad": "good"}}).fit(TEXTS, LABELS)
    with pytest.raises(EbmcalError, match="None or 'cross-fit'"):
        make(encoder_dir, calibration="magic").fit(TEXTS, LABELS)
