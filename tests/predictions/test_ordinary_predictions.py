"""Prediction files as people have them: other separators, rounded probabilities, JSON, a pipe, labels as numbers."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

from ebmcal.errors import EbmcalError
from ebmcal.evaluation import evaluate
from ebmcal.predictions import Predictions

PROBS = [[0.93, 0.07], [0.4, 0.6]]


def check(predictions):
    assert predictions.label_names == ("ham", "spam")
    assert predictions.labels.tolist() == [0, 1]
    np.testing.assert_allclose(predictions.probs, PROBS)


@pytest.mark.parametrize(
    "content",
    [
        "label;prob_ham;prob_spam\nham;0.93;0.07\nspam;0.40;0.60\n",
        "label;prob_ham;prob_spam\nham;0,93;0,07\nspam;0,40;0,60\n",
        "label\tprob_ham\tprob_spam\nham\t0.93\t0.07\nspam\t0.40\t0.60\n",
    ],
)
def test_other_separators(content, tmp_path, monkeypatch):
    path = tmp_path / "p.csv"
    path.write_text(content)
    check(Predictions.read(path))
    check(Predictions.read(path.rename(tmp_path / "p.tsv")))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
    check(Predictions.read("-"))


@pytest.mark.parametrize(
    "content",
    [
        [{"label": "ham", "prob_ham": 0.93, "prob_spam": 0.07}, {"label": "spam", "prob_ham": 0.4, "prob_spam": 0.6}],
        {"label": ["ham", "spam"], "prob_ham": [0.93, 0.4], "prob_spam": [0.07, 0.6]},
    ],
)
def test_json(content, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    check(Predictions.read(path))
    path.write_text("".join(json.dumps(row) + "\n" for row in content) if isinstance(content, list) else "[1]")
    if isinstance(content, list):
        check(Predictions.read(path))
    else:
        with pytest.raises(EbmcalError, match="neither a list of JSON objects nor columns"):
            Predictions.read(path)


def test_rounded_probabilities(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label,prob_a,prob_b,prob_c\n" + "a,0.33,0.33,0.33\nb,0.1,0.5,0.4\n" * 10)
    with pytest.raises(EbmcalError, match=r"sums to 0.99.*--normalize"):
        evaluate(path)
    rows = Predictions.read(path, normalize=True)
    np.testing.assert_allclose(rows.probs.sum(axis=1), 1)
    with pytest.raises(EbmcalError, match="n_resamples must be a whole number from 0 to 100,000; 99999999999 came"):
        evaluate(path, normalize=True, n_resamples=99999999999)
    found = evaluate(path, normalize=True, metrics=["accuracy"], n_resamples=0)
    assert found.document["rows"][0]["metrics"]["accuracy"]["value"] == 1.0
    path.write_text("label,prob_a,prob_b,prob_c\na,0.9,0.8,0.33\n")
    with pytest.raises(EbmcalError, match=r"sums to 2.03; rounding moves the sum of 3 classes by 0.03 at most"):
        Predictions.read(path, normalize=True)


def test_numbers_beside_named_classes_are_said_or_refused(tmp_path):
    """0 may be the first column or the first name: where these are the same it is said, else it is not guessed."""
    path = tmp_path / "p.csv"
    path.write_text("label,logit_no,logit_yes\n0,2,-2\n1,-2,2\n")
    with pytest.warns(UserWarning, match="read as 0 = no, 1 = yes"):
        assert Predictions.read(path).labels.tolist() == [0, 1]
    path.write_text("label,logit_yes,logit_no\n1,2,-2\n0,-2,2\n")
    with pytest.raises(EbmcalError, match=r"0 may be 'yes', the first column, or 'no'.*Write the names"):
        Predictions.read(path)


def test_one_class_column_is_named(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label,prob_1\n1,0.9\n0,0.2\n")
    with pytest.raises(EbmcalError, match=r"row 1 is 0, and there is one class column only \(1\)"):
        Predictions.read(path)
