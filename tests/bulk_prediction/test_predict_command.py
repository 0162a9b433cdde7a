"""`ebmcal predict` with abstention rules, ensembles, pipes and exit codes."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from prediction_helpers import N_ROWS, TEXTS, fitted_temperature, read, save_model

import ebmcal
from ebmcal import Predictions, predict_file
from ebmcal.calibration import save_calibrator
from ebmcal.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*rows are few")


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command; returns exit code, standard output and standard error."""

    def run(*arguments, stdin=None):
        import io

        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((stdin or "").encode())))
        with pytest.raises(SystemExit) as stopped:
            main(["predict", *map(str, arguments)])
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return run


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_decisions_are_written(suffix, table, ruled):
    model = ebmcal.load(ruled)
    done = predict_file(model, table / "new.csv", table / f"out{suffix}")
    rows, expected = read(table / f"out{suffix}"), model.predict(TEXTS)
    decisions = model.abstention_rule.apply(expected)
    assert [row["decision"] == "answer" for row in rows] == decisions.answered.tolist()
    assert [row["reason"] or "" for row in rows] == decisions.reason
    assert [str(row["is_ood"]).lower() for row in rows] == [str(x).lower() for x in decisions.is_ood]
    np.testing.assert_allclose([float(row["ood_p_value"]) for row in rows], decisions.p_values)
    sets = [json.loads(row["label_set"]) if suffix == ".csv" else row["label_set"] for row in rows]
    assert [tuple(labels) for labels in sets] == decisions.label_sets
    assert done.n_abstained == (~decisions.answered).sum() > 0
    assert done.n_ood == decisions.is_ood.sum()
    if suffix == ".parquet":  # the rule applies to the file as well
        again = Predictions.read(table / "out.parquet", labels_required=False)
        assert model.abstention_rule.apply(again).answered.tolist() == decisions.answered.tolist()


def test_a_file_and_a_pipe(table, ruled, run):
    code, out, _ = run(ruled, table / "new.csv", "-o", table / "out.csv")
    assert code == 0
    assert f"{N_ROWS} rows, calibrated by temperature" in out
    assert "abstained" in out
    code, out, err = run(ruled, stdin="a fine film\n\n")
    first, second = map(json.loads, out.splitlines())
    assert (code, first["text"], second["text"]) == (0, "a fine film", "")
    assert first["decision"] in ("answer", "abstain")
    assert "is empty" in second["error"]
    assert "1 with errors, the first: line 2" in err
    code, out, _ = run(ruled, table / "new.csv", "--no-rule")
    assert out.startswith("id,key,text,input_energy,predicted,prob_bad,prob_fair,prob_good,confidence,energy,error\n")


def test_rules_hold_for_one_model(table, ruled, folder, run, tmp_path):
    other = save_model(tmp_path / "other", seed=1)
    code, out, err = run(ruled, other, "-", stdin="fine\n")
    assert code == 0
    assert "disagreement" in json.loads(out)
    assert "decision" not in json.loads(out)
    assert "does not hold for the average and is not applied" in err
    assert "Warning" not in run(ruled, other, "-", "--no-rule", stdin="fine\n")[2]
    ebmcal.load(ruled).abstention_rule.write(table / "rule.json")
    code, _, err = run(ruled, other, "-", "--rule", table / "rule.json", stdin="fine\n")
    assert code == 1
    assert "guarantee does not hold for an average" in err
    code, _, err = run(other, "-", "--rule", table / "rule.json", stdin="fine\n")
    assert code == 1
    assert "fitted for another model" in err
    assert run(folder, "-", "--rule", table / "rule.json", stdin="fine\n")[0] == 0  # the same weights
    assert "given twice" in run(ruled, ruled / ".." / ruled.name, "-", stdin="fine\n")[2]


def test_a_rule_for_another_calibrator_is_refused_unless_ignored(ruled, run, tmp_path):
    copy = shutil.copytree(ruled, tmp_path / "copy")
    card = json.loads((copy / "ebmcal.json").read_text())
    save_calibrator(copy, fitted_temperature(seed=7))
    current = json.loads((copy / "ebmcal.json").read_text())
    (copy / "ebmcal.json").write_text(json.dumps(current | {"abstention": card["abstention"]}))
    shutil.copy(ruled / "abstention.npz", copy)
    code, _, err = run(copy, "-", stdin="fine\n")
    assert code == 1
    assert "another calibrator" in err
    assert run(copy, "-", "--no-rule", stdin="fine\n")[0] == 0


def test_options(table, folder, run):
    (table / "in.csv").write_text("ticket,text\n7,=fine\n8,dull\n")
    code, out, _ = run(
        folder, table / "in.csv", "--id-column", "ticket", "--escape-formulas", "--raw", "--format", "csv"
    )
    assert code == 0
    header, first, _ = out.splitlines()
    assert header.startswith("id,ticket,text,predicted,logit_bad")
    assert first.startswith("7,7,'=fine,")
    code, out, err = run(folder, "-", "--mc-dropout", "2", stdin="fine\n")
    assert "disagreement" in json.loads(out)
    assert "standard output: 1 row, averaged" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new.csv", "-o", "out.csv", "--rule", "absent.json"], "does not exist"),
        (["new.csv", "-o", "there.csv"], "--overwrite"),
        (["new.csv", "-o", "out.xlsx"], "xlsx"),
        (["new.csv", "--encoding", "martian"], "martian"),
        (["new.csv", "--engine", "spark"], "Unknown engine"),
        (["absent.csv", "-o", "out.csv"], "does not exist"),
        (["a lovely film"], "echo 'a lovely film' | ebmcal predict"),
        (["lovely " * 100], "echo 'a text' | ebmcal predict"),
    ],
)
def test_mistakes_are_reported_before_a_model_is_loaded(arguments, words, table, folder, run, monkeypatch):
    monkeypatch.setattr("ebmcal.model.load", lambda *_, **__: pytest.fail("loaded"))
    (table / "there.csv").write_text("mine")
    paths = [table / a if "." in a and not a.startswith("-") else a for a in arguments]
    code, _, err = run(folder, *paths)
    assert code == 1
    assert words in err
    assert (table / "there.csv").read_text() == "mine"


@pytest.mark.slow
def test_a_pipe_that_is_closed_early(folder, table):
    command = f"{sys.executable} -m ebmcal predict {folder} {table / 'new.csv'} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
