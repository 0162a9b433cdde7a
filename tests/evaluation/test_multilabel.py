"""Texts with several labels: read, evaluated and calibrated label by label."""

import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_cases import LABELS, write_multilabel

import ebmcal
from ebmcal import EbmcalError
from ebmcal.evaluation import read_labels
from ebmcal.metrics import ece_classwise, nll


def evaluate(path, **options):
    return ebmcal.evaluate(path, multilabel=True, **{"n_resamples": 20, **options})


def values(found):
    """(model, calibrator, metric) → value."""
    records = found.results.to_dict("records")
    return {(r["model"].partition(": ")[2], r["calibrator"], r["metric"]): r["value"] for r in records}


def test_every_label_is_a_two_class_problem(tmp_path):
    path, applies, logits = write_multilabel(tmp_path / "p.jsonl")
    found = read_labels(path)
    assert list(found) == list(LABELS)
    for i, label in enumerate(LABELS):
        assert found[label].label_names == (f"not {label}", label)
        np.testing.assert_array_equal(found[label].labels, applies[:, i])
        np.testing.assert_allclose(found[label].probs[:, 1], 1 / (1 + np.exp(-logits[:, i])))


def test_labels_of_a_csv_are_separated_by_bars(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label,prob_food,prob_price\nfood|price,0.9,0.8\n,0.2,0.7\nprice,0.1,0.6\n")
    found = read_labels(path)
    assert found["food"].labels.tolist() == [1, 0, 0]
    assert found["price"].labels.tolist() == [1, 0, 1]
    np.testing.assert_allclose(found["price"].probs, [[0.2, 0.8], [0.3, 0.7], [0.4, 0.6]])


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_metrics_calibrators_means_and_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short name: tables wrap long ones
    path, applies, logits = write_multilabel(Path("p.jsonl"))
    fit, *_ = write_multilabel(Path("fit.jsonl"), seed=1)
    found = evaluate(path, fit=fit, calibrator=["platt", "isotonic", "beta"])
    assert not any("ebmcal calibrate" in text for text in found.verdicts()), "it expects one label per text"
    known, probs = values(found), 1 / (1 + np.exp(-logits))
    for i, label in enumerate(LABELS):
        pair, y = np.stack([1 - probs[:, i], probs[:, i]], axis=1), applies[:, i].astype(int)
        assert known[label, None, "nll"] == pytest.approx(nll(y, probs=pair))
        assert known[label, None, "ece_classwise"] == pytest.approx(ece_classwise(y, probs=pair))
        for name in ("platt", "isotonic", "beta"):
            assert known[label, name, "nll"] < known[label, None, "nll"]
    mean = np.mean([known[label, None, "nll"] for label in LABELS])
    assert known["mean over 2 labels", None, "nll"] == pytest.approx(mean)
    assert "mean over 2 labels + platt" in " ".join(str(found.table()).split())
    assert "price" in found.report(tmp_path / "r.html").read_text()


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_a_label_that_cannot_be_calibrated_does_not_stop_the_others(tmp_path):
    path, *_ = write_multilabel(tmp_path / "p.jsonl")
    fit, *_ = write_multilabel(tmp_path / "fit.jsonl", seed=1)
    lines = [json.loads(line) for line in fit.read_text().splitlines()]
    fit.write_text("\n".join(json.dumps(row | {"label": [x for x in row["label"] if x == "food"]}) for row in lines))
    with pytest.warns(UserWarning, match="Not calibrated: .*price: all labels are 'not price'"):
        found = evaluate(path, fit=fit)
    assert {model for model, calibrator, _ in values(found) if calibrator} == {"food", "mean over 1 label"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics": ["ece_top_label"]}, "Unknown metric for texts with several labels 'ece_top_label'"),
        ({"metrics": ["accurcy"]}, "Did you mean 'accuracy'"),
        ({"fit": "p.jsonl", "calibrator": "temperature"}, "Unknown calibrator for texts"),
        ({"fit": "p.jsonl", "calibrator": "plat"}, "Did you mean 'platt'"),
        ({"fit": ["p.jsonl", "x=p.jsonl"]}, "one file for each of 1 evaluated, got 2"),
        ({"normalize": True}, r"normalize .* not defined with several labels"),
    ],
)
def test_what_is_not_defined_is_rejected(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    write_multilabel(tmp_path / "p.jsonl", 20)
    with pytest.raises(EbmcalError, match=words):
        evaluate("p.jsonl", **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label": ["foood"]}, "line 4, column 'label': Unknown label 'foood'. Did you mean 'food'"),
        ({"label": None}, "line 4, column 'label' is missing"),
        ({"logit_food": "x"}, "line 4, column 'logit_food' is x"),
    ],
)
def test_bad_rows_are_named(tmp_path, changes, words):
    path, *_ = write_multilabel(tmp_path / "p.jsonl", 20, **changes)
    with pytest.raises(EbmcalError, match=words):
        read_labels(path)


def test_bad_columns_are_named(tmp_path):
    (tmp_path / "p.csv").write_text("label,prob_food\nfood,1.5\n")
    with pytest.raises(EbmcalError, match=r"line 2, column 'prob_food' is 1\.5: not a probability"):
        read_labels(tmp_path / "p.csv")
    (tmp_path / "q.csv").write_text("label,text\nfood,1.5\n")
    with pytest.raises(EbmcalError, match="Expected a column label and a column prob_<label>"):
        read_labels(tmp_path / "q.csv")
