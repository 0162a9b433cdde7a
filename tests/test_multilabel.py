"""Texts with several labels: read, judged and calibrated label by label; what is not defined there says so."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ebmcal.cli.evaluate import evaluate
from ebmcal.errors import EbmcalError
from ebmcal.metrics import ece_classwise, nll
from ebmcal.multilabel import evaluate_labels, read_labels

LABELS = ("food", "price")


def write(path, n=400, seed=0, scale=3.0, **changes):
    """Overconfident logits of two labels that may both hold."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 2)) * 1.5
    has = rng.random((n, 2)) < 1 / (1 + np.exp(-logits))
    lines = [
        {"label": [x for x, there in zip(LABELS, row, strict=True) if there]}
        | {f"logit_{x}": scale * z for x, z in zip(LABELS, zs, strict=True)}
        for row, zs in zip(has, logits, strict=True)
    ]
    lines[3] |= changes
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path, has, scale * logits


def test_every_label_is_a_problem_of_two_classes(tmp_path):
    path, has, logits = write(tmp_path / "p.jsonl")
    found = read_labels(path)
    assert list(found) == list(LABELS)
    for i, label in enumerate(LABELS):
        assert found[label].label_names == (f"not {label}", label)
        np.testing.assert_array_equal(found[label].labels, has[:, i])
        np.testing.assert_allclose(found[label].probs[:, 1], 1 / (1 + np.exp(-logits[:, i])))


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_a_label_that_the_fitting_rows_lack_does_not_stop_the_others(tmp_path):
    path, *_ = write(tmp_path / "p.jsonl")
    fit, *_ = write(tmp_path / "fit.jsonl", seed=1)
    lines = [json.loads(line) for line in fit.read_text().splitlines()]
    fit.write_text("\n".join(json.dumps(row | {"label": [x for x in row["label"] if x == "food"]}) for row in lines))
    with pytest.warns(UserWarning, match=r"Not calibrated: .*price: the labels are all of one class \(not price\)"):
        found = evaluate_labels(path, fit=fit, n_resamples=20)
    calibrated = [row["method"] for row in found.document["rows"] if row["posthoc"] and row["method"] != str(path)]
    assert calibrated[0] == f"{path}: food"
    assert not any("price" in name for name in calibrated)


def test_csv_has_labels_between_bars(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label,prob_food,prob_price\nfood|price,0.9,0.8\n,0.2,0.7\nprice,0.1,0.6\n")
    found = read_labels(path)
    assert found["food"].labels.tolist() == [1, 0, 0]
    assert found["price"].labels.tolist() == [1, 0, 1]
    np.testing.assert_allclose(found["price"].probs, [[0.2, 0.8], [0.3, 0.7], [0.4, 0.6]])


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_figures_calibrators_means_and_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short name: tables break long ones into lines
    path, has, logits = write(Path("p.jsonl"))
    fit, *_ = write(Path("fit.jsonl"), seed=1)
    found = evaluate_labels(path, fit=fit, calibrator=["platt", "isotonic", "beta"], n_resamples=20)
    rows = {(row["method"].removeprefix(f"{path}: "), row["posthoc"]): row["metrics"] for row in found.document["rows"]}
    probs = 1 / (1 + np.exp(-logits))
    for i, label in enumerate(LABELS):
        pair = np.stack([1 - probs[:, i], probs[:, i]], axis=1)
        assert rows[label, None]["nll"]["value"] == pytest.approx(nll(has[:, i].astype(int), probs=pair))
        assert rows[label, None]["ece_classwise"]["value"] == pytest.approx(
            ece_classwise(has[:, i].astype(int), probs=pair)
        )
        for name in ("platt", "isotonic", "beta"):
            assert rows[label, name]["nll"]["value"] < rows[label, None]["nll"]["value"]
    mean = rows["mean over 2 labels", None]["nll"]["value"]
    assert mean == pytest.approx(np.mean([rows[label, None]["nll"]["value"] for label in LABELS]))
    assert "mean over 2 labels + platt" in str(found.table())
    assert "price" in found.report(tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics": ["ece_top_label"]}, "ece_top_label needs one right class a row, and is not defined"),
        ({"metrics": ["accurcy"]}, "Did you mean 'accuracy'"),
        ({"fit": "p.jsonl", "calibrator": "temperature"}, "temperature is learned over classes .* not defined"),
        ({"fit": "p.jsonl", "calibrator": "plat"}, "Did you mean 'platt'"),
        ({"fit": ["p.jsonl", "p.jsonl"]}, "2 times for 1 files"),
    ],
)
def test_what_is_not_defined_is_refused(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "p.jsonl", 20)
    with pytest.raises(EbmcalError, match=words):
        evaluate_labels("p.jsonl", n_resamples=0, **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label": ["foood"]}, "row 3: Unknown label 'foood'. Did you mean 'food'"),
        ({"label": None}, "row 3 is missing"),
        ({"logit_food": "x"}, "column 'logit_food', row 3"),
    ],
)
def test_bad_rows_are_named(tmp_path, changes, words):
    path, *_ = write(tmp_path / "p.jsonl", 20, **changes)
    with pytest.raises(EbmcalError, match=words):
        read_labels(path)


def test_what_is_no_probability_is_refused(tmp_path):
    (tmp_path / "p.csv").write_text("label,prob_food\nfood,1.5\n")
    with pytest.raises(EbmcalError, match=r"row 0 is 1\.5, which is no probability"):
        read_labels(tmp_path / "p.csv")
    (tmp_path / "q.csv").write_text("label,text\nfood,1.5\n")
    with pytest.raises(EbmcalError, match="for each label are needed"):
        read_labels(tmp_path / "q.csv")


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_the_command_line(tmp_path):
    path, *_ = write(tmp_path / "p.jsonl", 100)
    app = typer.Typer()
    app.command()(evaluate)
    result = CliRunner().invoke(app, [str(path), "--multi-label", "--resamples", "10", "--format", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"][-1]["method"].endswith("mean over 2 labels")
    refused = CliRunner().invoke(app, [str(path), "--multi-label", "--ensemble"])
    assert "not defined with --multi-label" in str(refused.exception)
