"""`ebmcal evaluate` on files as users write them, its outputs, and what it refuses."""

import json

import numpy as np
import pytest
import typer
from scipy.special import softmax
from typer.testing import CliRunner

import ebmcal
from ebmcal.cli.evaluate import evaluate
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions

QUICK = ["--resamples", "50"]


def run(*arguments):
    app = typer.Typer()
    app.command()(evaluate)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def output_of(*arguments):
    result = run(*arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments):
    """The message of the `EbmcalError` a call ends with; the main app prints it."""
    result = run(*arguments)
    assert isinstance(result.exception, EbmcalError), result.output
    return str(result.exception)


def read(path_or_text):
    """The document of an evaluation as name → metric → figure, with the paired tests and the detection beside them."""
    document = json.loads(path_or_text if isinstance(path_or_text, str) else path_or_text.read_text())
    found = {name_of(row): row["metrics"] for row in document["rows"]}
    for test in document["paired"]:
        found[name_of(test)][test["metric"]]["paired"] = test
    for name, scores in document["detection"].items():
        found[name] |= scores
    return found


def name_of(record):
    return f"{record['method']} + {record['posthoc']}" if record["posthoc"] else record["method"]


def rows(n=600, seed=0, scale=1.0, prefix="row", shift=0.0, energies=False, names=("neg", "neu", "pos")):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(names))) * 1.5
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    logits = scale * logits + shift
    return Predictions(
        labels=y,
        label_names=names,
        logits=logits,
        ids=np.array([f"{prefix}-{i}" for i in range(n)]),
        energies=-np.log(np.exp(logits).sum(axis=1)) if energies else None,
    )


@pytest.fixture
def files(tmp_path):
    """An overconfident file, a better one of the same rows, and calibration rows for the first."""
    rows(scale=3.0).write(tmp_path / "base.csv")
    rows(scale=1.1).write(tmp_path / "ours.parquet")
    rows(seed=1, scale=3.0, prefix="cal").write(tmp_path / "cal.jsonl")
    return tmp_path


def test_a_csv_as_the_readme_shows_it(tmp_path):
    (tmp_path / "p.csv").write_text("label,prob_no,prob_yes\n" + "yes,0.1,0.9\nno,0.8,0.2\nyes,0.6,0.4\n" * 80)
    result = output_of(tmp_path / "p.csv", "--json", tmp_path / "out.json", *QUICK)
    assert "accuracy" in result.stdout
    assert "0.667 [" in result.stdout
    figures = read(tmp_path / "out.json")[str(tmp_path / "p.csv")]
    for metric in ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier"):
        assert figures[metric]["low"] <= figures[metric]["value"] <= figures[metric]["high"]
    assert figures["accuracy"]["value"] == pytest.approx(2 / 3)
    assert figures["nll"]["value"] == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "npz"])
def test_every_kind_of_file_gives_the_same_figures(tmp_path, suffix):
    path = tmp_path / f"p.{suffix}"
    rows(300).write(path)
    output_of(path, "--json", tmp_path / "out.json", *QUICK)
    figures = read(tmp_path / "out.json")[str(path)]
    probs = softmax(rows(300).logits, axis=1)
    assert figures["nll"]["value"] == pytest.approx(-np.log(probs[np.arange(300), rows(300).labels]).mean())


def test_no_figure_is_called_just_ece(files):
    result = output_of(files / "base.csv", *QUICK)
    assert "ECE class-wise (20 bins)" in result.stdout
    assert "ECE top-label (20 bins)" in result.stdout


def test_several_files_get_the_paired_test(files):
    result = output_of(files / "base.csv", files / "ours.parquet", "--json", files / "out.json", *QUICK)
    assert f"Difference from {files / 'base.csv'}" in result.stdout
    data = read(files / "out.json")
    paired = data[str(files / "ours.parquet")]["nll"]["paired"]
    assert paired["against"] == str(files / "base.csv")
    difference = data[str(files / "ours.parquet")]["nll"]["value"] - data[str(files / "base.csv")]["nll"]["value"]
    assert paired["difference"] == pytest.approx(difference)
    assert paired["p_value"] < 0.05
    assert "paired" not in data[str(files / "base.csv")]["nll"]


def test_rows_and_columns_in_another_order_are_matched(files):
    shuffled = rows(scale=1.1)
    shuffled = shuffled.rows(np.random.default_rng(0).permutation(600))
    order = [2, 0, 1]
    turned = Predictions(
        labels=np.argsort(order)[shuffled.labels],
        label_names=[shuffled.label_names[i] for i in order],
        logits=shuffled.logits[:, order],
        ids=shuffled.ids,
    )
    turned.write(files / "turned.csv")
    output_of(files / "base.csv", files / "ours.parquet", files / "turned.csv", "--json", files / "o.json", *QUICK)
    data = read(files / "o.json")
    ours, other = data[str(files / "ours.parquet")], data[str(files / "turned.csv")]
    assert other["nll"]["value"] == pytest.approx(ours["nll"]["value"])
    assert other["nll"]["paired"]["difference"] == pytest.approx(ours["nll"]["paired"]["difference"])


def test_fit_adds_calibrated_rows(files):
    result = output_of(
        files / "base.csv", "--fit", files / "cal.jsonl", "--calibrator", "temperature", "--calibrator",
        "scaling-binning:n_bins=5", "--json", files / "out.json", *QUICK,
    )  # fmt: skip
    data = read(files / "out.json")
    base, tempered, binned = data.values()
    assert list(data)[1:] == [f"{files / 'base.csv'} + temperature", f"{files / 'base.csv'} + scaling-binning:n_bins=5"]
    assert tempered["accuracy"]["value"] == base["accuracy"]["value"]
    for better in (tempered, binned):
        assert better["nll"]["value"] < base["nll"]["value"] - 0.1
        assert better["ece_classwise"]["paired"]["difference"] < 0
    assert "Note:" not in result.stderr


def test_the_calibrated_row_of_one_file_stands_below_it(files):
    output_of(
        files / "base.csv", files / "ours.parquet", "--fit", files / "cal.jsonl", "--fit", files / "cal.jsonl",
        "--json", files / "out.json", *QUICK,
    )  # fmt: skip
    names = list(read(files / "out.json"))
    assert [name.removeprefix(str(files) + "/") for name in names] == [
        "base.csv", "base.csv + temperature", "ours.parquet", "ours.parquet + temperature",
    ]  # fmt: skip


def test_judging_the_fitting_rows_is_said(files):
    result = output_of(files / "base.csv", "--fit", files / "base.csv", *QUICK)
    assert "used to fit the calibrator" in result.stderr
    assert "used to fit" not in result.stdout


def test_one_fit_for_several_files_is_said(files):
    result = output_of(files / "base.csv", files / "ours.parquet", "--fit", files / "cal.jsonl", *QUICK)
    assert "One fit (--fit) for 2 files" in result.stderr


def test_chosen_metrics_and_bins(files):
    result = output_of(files / "base.csv", "--metrics", "smooth_ece, mce_top_label", "--n-bins", 7, *QUICK)
    assert "smooth ECE" in result.stdout
    assert "(7 bins)" in result.stdout
    assert "accuracy" not in result.stdout


def test_few_rows_are_said(tmp_path):
    rows(50).write(tmp_path / "p.csv")
    assert "50 rows are few for 20 bins" in output_of(tmp_path / "p.csv", *QUICK).stderr


def test_markdown_latex_and_json_formats(files):
    arguments = [files / "base.csv", files / "ours.parquet", *QUICK]
    assert "| File | Rows | accuracy |" in output_of(*arguments, "--format", "markdown").stdout
    assert r"\begin{tabular}" in output_of(*arguments, "--format", "latex").stdout
    data = read(output_of(*arguments, "--format", "json").stdout)
    assert data[str(files / "base.csv")]["accuracy"]["value"] > 0.5


def test_the_mean_of_the_files_is_judged_too(files):
    fits = ["--fit", files / "cal.jsonl", "--fit", files / "cal.jsonl"]
    output_of(files / "base.csv", files / "ours.parquet", "--ensemble", *fits, "--json", files / "out.json", *QUICK)
    data = read(files / "out.json")
    assert list(data)[-2:] == ["ensemble of 2", "ensemble of 2 + temperature"]
    mean = (softmax(rows(scale=3.0).logits, axis=1) + softmax(rows(scale=1.1).logits, axis=1)) / 2
    assert data["ensemble of 2"]["nll"]["value"] == pytest.approx(-np.log(mean[np.arange(600), rows().labels]).mean())
    assert data["ensemble of 2"]["nll"]["paired"]["against"] == str(files / "base.csv")
    for arguments in ([files / "base.csv"], [files / "base.csv", files / "cal.jsonl", "--unpaired"]):
        assert "of two files or more, of the same rows" in refused(*arguments, "--ensemble", *QUICK)


def test_the_seed_decides_the_intervals(files):
    printed = [output_of(files / "base.csv", "--format", "json", "--seed", s, *QUICK).stdout for s in (1, 1, 2)]
    assert printed[0] == printed[1]
    assert printed[0] != printed[2]


def test_no_resamples_no_intervals(files):
    result = output_of(files / "base.csv", files / "ours.parquet", "--resamples", 0, "--json", files / "out.json")
    assert "[" not in result.stdout
    assert read(files / "out.json")[str(files / "base.csv")]["nll"]["low"] is None


def test_energies_and_out_of_domain_rows(tmp_path):
    rows(energies=True).write(tmp_path / "p.csv")
    rows(300, seed=5, prefix="other", shift=-3.0, energies=True).write(tmp_path / "other.csv")
    result = output_of(tmp_path / "p.csv", "--ood", tmp_path / "other.csv", "--json", tmp_path / "out.json", *QUICK)
    assert "Out-of-domain detection" in result.stdout
    figures = read(tmp_path / "out.json")[str(tmp_path / "p.csv")]
    assert figures["ood by energy"]["auroc"] > 0.95
    assert 0.3 < figures["ood by max_prob"]["auroc"] < 0.7
    assert 0 <= figures["error_auroc_by_energy"]["value"] <= 1


def test_out_of_domain_rows_need_no_labels_and_no_energies(tmp_path):
    rows(200).write(tmp_path / "p.csv")
    other = rows(100, prefix="other")
    Predictions(np.full(100, -1), other.label_names, probs=softmax(other.logits, axis=1)).write(tmp_path / "other.csv")
    found = read(output_of(tmp_path / "p.csv", "--ood", tmp_path / "other.csv", "--format", "json", *QUICK).stdout)
    figures = found[str(tmp_path / "p.csv")]
    assert "aupr" in figures["ood by entropy"]
    assert "ood by energy" not in figures, "one side has probabilities only"


def test_report(files):
    output_of(files / "base.csv", "--fit", files / "cal.jsonl", "--report", files / "report.html", *QUICK)
    html = (files / "report.html").read_text()
    assert "base.csv + temperature" in html


def test_unlabelled_rows_are_left_out(tmp_path):
    all_rows = rows(400)
    partly = Predictions(
        np.where(np.arange(400) < 300, all_rows.labels, -1), all_rows.label_names, logits=all_rows.logits
    )
    partly.write(tmp_path / "p.csv")
    assert "  300  " in output_of(tmp_path / "p.csv", *QUICK).stdout


def test_different_rows_are_refused_or_judged_apart(files):
    rows(500, prefix="else").write(files / "else.csv")
    message = refused(files / "base.csv", files / "else.csv", *QUICK)
    assert "else.csv cannot be compared" in message
    assert "row-0" in message
    assert "--unpaired" in message
    result = output_of(files / "base.csv", files / "else.csv", "--unpaired", *QUICK)
    assert "Difference from" not in result.stdout
    assert "  500  " in result.stdout


def test_duplicate_ids_are_refused_when_files_are_compared(files):
    ids = np.array(["same", "same", *(f"row-{i}" for i in range(598))])
    double = rows(scale=1.1)
    Predictions(double.labels, double.label_names, logits=double.logits, ids=ids).write(files / "double.csv")
    message = refused(files / "base.csv", files / "double.csv", *QUICK)
    assert "'same'" in message
    assert "double.csv" in message
    output_of(files / "double.csv", "--fit", files / "cal.jsonl", *QUICK)  # alone they do no harm


def test_other_labels_for_the_same_ids_are_refused(files):
    other = rows(scale=1.1)
    Predictions((other.labels + 1) % 3, other.label_names, logits=other.logits, ids=other.ids).write(files / "o.csv")
    assert "another label" in refused(files / "base.csv", files / "o.csv", *QUICK)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["base.csv", "base.csv"], "given twice"),
        (["base.csv", "--metrics", "accurcy"], "Did you mean 'accuracy'"),
        (["base.csv", "--metrics", ","], "names no metric"),
        (["base.csv", "--calibrator", "temperature"], "needs fit (--fit)"),
        (["base.csv", "--fit", "cal.jsonl", "--calibrator", "temprature"], "Did you mean 'temperature'"),
        (["base.csv", "--fit", "cal.jsonl", "--fit", "cal.jsonl"], "2 times for 1 files"),
        (["missing.csv"], "missing.csv does not exist"),
        (["base.csv", "--fit", "two.csv"], "fit (--fit) of base.csv has the classes"),
        (["base.csv", "--json", "./base.csv"], "would write over the predictions"),
        (["base.csv", "--fit", "cal.jsonl", "--report", "cal.jsonl"], "would write over the predictions"),
        (["unlabelled.csv"], "No row has a label"),
        (["base.csv", "--fit", "unlabelled.csv"], "No row has a label"),
        (["base.csv", "--fit", "one.csv"], "fit (--fit) of base.csv: the labels are all of one class (neu)"),
    ],
)
def test_mistakes_are_refused(files, monkeypatch, arguments, words):
    monkeypatch.chdir(files)
    rows(100, names=("no", "yes")).write("two.csv")
    Predictions(np.ones(50, int), ("neg", "neu", "pos"), logits=rows(50).logits).write("one.csv")
    Predictions(np.full(50, -1), ("neg", "neu", "pos"), logits=rows(50).logits).write("unlabelled.csv")
    message = refused(*arguments, *QUICK)
    assert words in message
    if "unlabelled" in str(arguments):
        assert ".csv" in message


def test_nothing_is_written_when_something_is_wrong(files):
    refused(files / "base.csv", files / "missing.csv", "--json", files / "out.json", *QUICK)
    assert not (files / "out.json").exists()


def test_the_command_line_and_the_library_give_the_same_to_the_bit(files):
    rows(200, seed=3, prefix="other").write(files / "other.csv")
    names = [str(files / "base.csv"), str(files / "ours.parquet")]
    fit, ood = [files / "cal.jsonl"] * 2, [files / "other.csv"] * 2
    printed = output_of(
        *names, "--fit", fit[0], "--fit", fit[1], "--calibrator", "platt", "--ood", ood[0], "--ood", ood[1],
        "--metrics", "nll,ece_top_label,aurc", "--n-bins", 15, "--seed", 3, "--format", "json", "--json",
        files / "out.json", *QUICK,
    ).stdout  # fmt: skip
    options = {"metrics": ["nll", "ece_top_label", "aurc"], "n_bins": 15, "n_resamples": 50, "seed": 3}
    found = ebmcal.evaluate(names, **options, fit=fit, calibrator=["platt"], ood=ood)
    assert printed == (files / "out.json").read_text() == found.to_json() + "\n"
    in_memory = {name: Predictions.read(name) for name in names}
    calibration, other = Predictions.read(fit[0]), Predictions.read(ood[0])
    again = ebmcal.evaluate(
        in_memory, **options, fit=dict.fromkeys(names, calibration), calibrator="platt", ood=dict.fromkeys(names, other)
    )
    assert again.document == found.document


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_the_library_prints_what_the_command_line_prints(files, form):
    names = [str(files / "base.csv"), str(files / "ours.parquet")]
    sheet = ebmcal.evaluate(names, n_resamples=50).table()
    text = repr(sheet) if form == "table" else getattr(sheet, form)() + "\n"
    assert output_of(*names, "--format", form, *QUICK).stdout == text
