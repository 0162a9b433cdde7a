"""`ebmcal evaluate` on files as users write them: outputs, names, warnings, mistakes."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import ebmcal
from ebmcal import EbmcalError, Predictions, TemperatureScaling
from ebmcal.calibration import save_calibrator
from ebmcal.cli import build_app
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_json

QUICK = ["--resamples", "50"]
NAMES = ("neg", "neu", "pos")


def run(*arguments):
    return CliRunner().invoke(build_app("evaluate"), ["evaluate", *map(str, arguments)])


def output_of(*arguments):
    result = run(*arguments, *QUICK)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def error_of(*arguments):
    """The message of the `EbmcalError` that a call ends with; the main app prints it."""
    result = run(*arguments, *QUICK)
    assert isinstance(result.exception, EbmcalError), result.output
    return str(result.exception)


def values(document):
    """name → metric → record."""
    found = {}
    for record in document["results"]:
        name = f"{record['model']} + {record['calibrator']}" if record["calibrator"] else record["model"]
        found.setdefault(name, {})[record["metric"]] = record
    return found


def rows(n=600, seed=0, scale=1.0, prefix="row", shift=0.0, names=NAMES):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(names))) * 1.5
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions(y, names, logits=scale * logits + shift, ids=[f"{prefix}-{i}" for i in range(n)])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """An overconfident file, a better one with the same rows, and rows to calibrate the first."""
    monkeypatch.chdir(tmp_path)
    rows(scale=3.0).write("base.csv")
    rows(scale=1.1).write("ours.parquet")
    rows(seed=1, scale=3.0, prefix="cal").write("cal.jsonl")
    return tmp_path


def test_a_plain_csv(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text("label,prob_no,prob_yes\n" + "yes,0.1,0.9\nno,0.8,0.2\nyes,0.6,0.4\n" * 80)
    result = output_of("p.csv", "--json", "out.json")
    assert "0.667" in result.stdout
    verdict = result.stdout.splitlines()[-1]
    assert verdict.startswith("p.csv is overconfident by 10.0 ± 5.1 points: mean confidence 76.7%, accuracy 66.7%")
    found = values(json.loads((tmp_path / "out.json").read_text()))["p.csv"]
    assert found["accuracy"]["value"] == pytest.approx(2 / 3)
    for metric in ("accuracy", "nll", "brier"):
        assert found[metric]["low"] <= found[metric]["value"] <= found[metric]["high"]


def test_files_can_be_named(files):
    options = ["--calibrator", "temperature", "--calibrator", "scaling-binning:n_bins=5", "--reference", "b"]
    result = output_of("a=base.csv", "b=ours.parquet", "--fit", "a=cal.jsonl", *options, "--json", "out.json")
    found = json.loads((files / "out.json").read_text())
    assert list(values(found)) == ["a", "a + temperature", "a + scaling-binning:n_bins=5", "b"]
    assert {test["reference"] for test in found["comparisons"]} == {"b"}
    assert "a is overconfident by" in result.stdout
    assert "Warning" not in result.stderr


def test_a_file_with_an_equals_sign_in_its_name(files):
    rows(scale=1.1).write("seed=1.csv")
    assert list(values(json.loads(output_of("seed=1.csv", "--format", "json").stdout))) == ["seed=1.csv"]


def test_tables_fit_100_columns_and_show_intervals_on_request(files):
    plain, verbose = output_of("base.csv", "ours.parquet"), output_of("base.csv", "ours.parquet", "--verbose")
    assert "Paired tests" in plain.stdout
    table = plain.stdout.partition("Paired tests")[0]
    assert "[" not in table
    assert "[0." in verbose.stdout.partition("Paired tests")[0]
    tables = [line for line in plain.stdout.splitlines() if "confiden" not in line]
    assert max(map(len, tables)) <= 100


def test_warnings_are_printed_on_standard_error(files):
    rows(50).write("few.csv")
    partly = rows(400)
    partly.replace(labels=np.where(np.arange(400) < 300, partly.labels, -1)).write("partly.csv")
    assert "50 rows are few for 20 bins" in output_of("few.csv").stderr
    rows(1).write("one.csv")
    assert "no clear miscalibration on 1 row (" in output_of("one.csv").stdout
    assert "Warning: partly.csv: 100 of 400 rows have no label and are left out." in output_of("partly.csv").stderr
    assert "One fit (--fit) for 2 files" in output_of("base.csv", "ours.parquet", "--fit", "cal.jsonl").stderr
    leaked = output_of("base.csv", "--fit", "base.csv")
    assert "used to fit the calibrator" in leaked.stderr
    assert "used to fit" not in leaked.stdout


def test_markdown_and_latex(files):
    assert "| Model " in output_of("base.csv", "ours.parquet", "--format", "markdown").stdout
    assert r"\begin{tabular}" in output_of("base.csv", "ours.parquet", "--format", "latex").stdout


def test_the_seed_decides_the_intervals(files):
    printed = [output_of("base.csv", "--format", "json", "--seed", s).stdout for s in (1, 1, 2)]
    assert printed[0] == printed[1]
    assert printed[0] != printed[2]


def test_report_and_ood(files):
    rows(300, seed=5, prefix="other", shift=-3.0).write("labelled.csv")
    pd.read_csv("labelled.csv").drop(columns="label").to_csv("other.csv", index=False)
    result = output_of("base.csv", "--ood", "other.csv", "--report", "report.html")
    assert "OOD detection" in result.stdout
    assert "base.csv" in (files / "report.html").read_text()


def test_several_labels_per_text(tmp_path):
    lines = [{"label": ["a"] if i % 3 else ["a", "b"], "prob_a": 0.9, "prob_b": 0.3 + i / 400} for i in range(240)]
    lines += [{"label": [], "prob_a": 0.4, "prob_b": 0.2}] * 10
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = values(json.loads(output_of(path, "--multilabel", "--format", "json").stdout))
    assert list(found)[-1] == f"{path}: mean over 2 labels"
    assert "not defined with several labels" in error_of(path, "--multilabel", "--ensemble")


def test_other_rows_are_rejected_or_evaluated_separately(files):
    rows(500, prefix="else").write("else.csv")
    message = error_of("base.csv", "else.csv")
    assert "else.csv cannot be compared with base.csv" in message
    assert "--unpaired" in message
    result = output_of("base.csv", "else.csv", "--unpaired")
    assert "Paired tests" not in result.stdout


def test_other_classes_are_named(files):
    rows(500, names=("neg", "neu", "pos", "poss")).write("else.csv")
    message = error_of("base.csv", "else.csv")
    assert "their classes differ: only else.csv has poss. If two names mean the same class, rename" in message
    output_of("base.csv", "else.csv", "--unpaired")


def test_repeated_ids_are_rejected_only_if_files_are_compared(files):
    double = rows(scale=1.1).replace(ids=["same", "same", *(f"row-{i}" for i in range(598))])
    double.write("double.csv")
    assert "'same'" in error_of("base.csv", "double.csv")
    assert "double.csv" in output_of("double.csv").stdout


def test_other_labels_for_the_same_ids_are_rejected(files):
    other = rows(scale=1.1)
    other.replace(labels=(other.labels + 1) % 3).write("o.csv")
    assert "another label" in error_of("base.csv", "o.csv")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["base.csv", "base.csv"], "given twice"),
        (["a=base.csv", "a=ours.parquet"], "a is given twice"),
        (["base.csv", "--metrics", "accurcy"], "Did you mean 'accuracy'"),
        (["base.csv", "--metrics", ","], "metrics is empty"),
        (["base.csv", "--calibrator", "temperature"], "needs fit (--fit)"),
        (["base.csv", "--fit", "cal.jsonl", "--calibrator", "temprature"], "Did you mean 'temperature'"),
        (["base.csv", "--fit", "cal.jsonl", "--fit", "cal.jsonl"], "one for each of the 1 evaluated, got 2"),
        (["missing.csv"], "missing.csv does not exist"),
        (["a=missing.csv"], "missing.csv does not exist"),
        (["base.csv", "--fit", "two.csv"], "fit (--fit) of base.csv has the classes"),
        (["base.csv", "--json", "./base.csv"], "is also an input"),
        (["a=base.csv", "--json", "base.csv"], "is also an input"),
        (["base.csv", "--fit", "cal.jsonl", "--report", "cal.jsonl"], "is also an input"),
        (["base.csv", "--report", "report.pdf"], "--report report.pdf: expected an .html file"),
        (["base.csv", "--json", "."], "--json . is a directory"),
        (["cp1252.csv"], "cp1252.csv is not UTF-8. Save it as UTF-8 (Excel: CSV UTF-8), or convert it: iconv"),
        (["unlabelled.csv"], "unlabelled.csv: No row has a label"),
        (["base.csv", "--fit", "unlabelled.csv"], "fit (--fit) of base.csv: No row has a label"),
        (["base.csv", "--fit", "one.csv"], "fit (--fit) of base.csv: all labels are 'neu'"),
    ],
)
def test_mistakes_are_explained(files, arguments, words):
    rows(100, names=("no", "yes")).write("two.csv")
    (files / "cp1252.csv").write_bytes("text;label;prob_a;prob_b\nRückgabe;a;0.5;0.5\n".encode("cp1252"))
    Predictions(np.ones(50, int), NAMES, logits=rows(50).logits).write("one.csv")
    Predictions(np.full(50, -1), NAMES, logits=rows(50).logits).write("unlabelled.csv")
    assert words in error_of(*arguments)


def test_nothing_is_written_after_a_mistake(files):
    error_of("base.csv", "missing.csv", "--json", "out.json")
    assert not (files / "out.json").exists()


def test_the_command_line_and_the_library_agree_exactly(files):
    rows(200, seed=3, prefix="other").write("other.csv")
    names, fit, ood = ["base.csv", "ours.parquet"], ["cal.jsonl"] * 2, ["other.csv"] * 2
    printed = output_of(
        *names, "--fit", fit[0], "--fit", fit[1], "--calibrator", "platt", "--ood", ood[0], "--ood", ood[1],
        "--metrics", "nll,ece_top_label,aurc", "--n-bins", 15, "--seed", 3, "--format", "json", "--json", "out.json",
    ).stdout  # fmt: skip
    options = {"metrics": ["nll", "ece_top_label", "aurc"], "n_bins": 15, "n_resamples": 50, "seed": 3}
    found = ebmcal.evaluate(names, **options, fit=fit, calibrator=["platt"], ood=ood)
    assert json.loads(printed) == json.loads((files / "out.json").read_text()) == found.to_json()
    in_memory = {name: Predictions.read(name) for name in names}
    fits, others = (dict.fromkeys(names, Predictions.read(path)) for path in (fit[0], ood[0]))
    again = ebmcal.evaluate(in_memory, **options, fit=fits, calibrator="platt", ood=others)
    without_files = [{**one.to_json(), "verdicts": None, "fitted_on": None} for one in (again, found)]
    assert without_files[0] == without_files[1]


def test_a_run_directory_stands_for_its_models_with_the_recommended_one_calibrated(tmp_path):
    run = RunDir(tmp_path / "run")
    for trial, scale in ((Trial("baseline", 1), 3.0), (Trial("hidden", 1), 1.0)):
        rows(scale=scale).write(run.predictions(trial, "test"))
    run.config.touch()
    printed = output_of(run.root)
    shown = printed.stdout
    assert "is unfinished: it has test predictions of baseline-seed1, hidden-seed1 so far." in printed.stderr
    assert "baseline-seed1" in shown
    assert "hidden-seed1" in shown
    assert "temperature" not in shown
    model = run.model(Trial("baseline", 1))
    model.mkdir()
    write_json(model / "config.json", {"id2label": dict(enumerate(NAMES))})
    save_calibrator(model, TemperatureScaling().fit_predictions(rows(seed=1, scale=3.0, prefix="cal")))
    write_json(run.results, {"recommended": {"trial": "baseline-seed1", "calibrator": "temperature (dev)"}})
    printed = output_of(run.root, "--format", "json")
    assert "unfinished" not in printed.stderr
    found = values(json.loads(printed.stdout))
    assert list(found) == ["baseline-seed1 + temperature (T = 3.046)", "baseline-seed1", "hidden-seed1"]
    calibrated, plain, _ = found.values()
    assert calibrated["nll"]["value"] < plain["nll"]["value"] - 0.1
    for path in run.root.rglob("*.parquet"):
        path.unlink()
    assert "no test predictions yet" in error_of(run.root)
