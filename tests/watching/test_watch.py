"""`ebmcal watch` on logs of every kind, without torch: windows, labels that come later, pages, exit codes."""

import datetime
import json
from dataclasses import replace

import numpy as np
import pytest

import ebmcal
from ebmcal.calibrators import TemperatureScaling, attach
from ebmcal.calibrators.weights import model_fingerprint
from ebmcal.cli import main
from ebmcal.decisions import attach_rule, decide, fit_rule
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import write_json
from ebmcal.watching.log import read_log, windows_of

NAMES = ("no", "yes")

#: JSON lines cannot say which model wrote them.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not say which model wrote it")


def rows(n, seed=0, hard=False, labels=True, start=0, sharpness=1.0):
    """Calibrated at sharpness 1; hard texts have logits near 0 and high energies."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 2)) * (0.3 if hard else 2)
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1) if labels else np.full(n, -1)
    energies = -np.logaddexp.reduce(logits, axis=1) + (3 if hard else 0)
    ids = [f"r{start + i}" for i in range(n)]
    return Predictions(drawn, NAMES, logits=logits * sharpness, energies=energies, ids=ids)


@pytest.fixture
def model(tmp_path):
    """A model folder in a run, as far as watching needs it."""
    run = RunFolder(tmp_path / "run")
    rows(400, seed=1).write(run.predictions(Cell("hidden", 1), "calibration"))
    folder = run.model(Cell("hidden", 1))
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"id2label": dict(enumerate(NAMES))})
    return folder


def write_log(path, days=(False, False, True), n=120, labels=False):
    """A JSONL log: a day for each entry, hard texts where it is true."""
    lines = []
    for day, hard in enumerate(days):
        found = rows(n, seed=10 + day, hard=hard, start=day * n, labels=labels)
        for i in range(n):
            when = datetime.datetime(2026, 3, 1 + day, i % 24).isoformat()
            probs = dict(zip(("prob_no", "prob_yes"), map(float, found.probs[i]), strict=True))
            label = {"label": NAMES[found.labels[i]]} if labels and i % 2 else {}
            lines.append({"id": found.ids[i], "time": when, "energy": float(found.energies[i]), **probs, **label})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_days_and_an_alarm(model, tmp_path):
    seen = ebmcal.watch(model, write_log(tmp_path / "log.jsonl"))
    windows = seen.document["windows"]
    assert [window["name"] for window in windows] == ["2026-03-01", "2026-03-02", "2026-03-03"]
    assert [bool(window["drift"]) for window in windows] == [False, False, True]
    assert {"energy", "confidence"} <= set(windows[2]["drift"])
    assert windows[2]["unusual"] > 0.9 > 0.2 > windows[0]["unusual"]
    assert windows[2]["expected"]["confidence"]["high"] < windows[0]["expected"]["confidence"]["low"]
    assert len(seen.alarms) == 1
    assert windows[0]["labelled"] is None
    assert windows[0]["abstained"] is None
    assert "2026-03-03" in str(seen)


def test_quiet_and_planned_windows(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl", (False, False))
    assert ebmcal.watch(model, log).alarms == []
    assert ebmcal.watch(model, log, n_windows=365).alarms == []
    low = ebmcal.watch(model, log, least_accuracy=0.99)
    assert any("accuracy to expect" in line for line in low.alarms)


def test_labels_that_come_later(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl")
    truth = [rows(120, seed=10 + day, hard=day == 2, start=day * 120) for day in range(3)]
    lines = [f"{p.ids[i]},{NAMES[p.labels[i]]}" for p in truth for i in range(0, 120, 2)]
    (tmp_path / "labels.csv").write_text("id,label\n" + "\n".join(lines) + "\n")
    seen = ebmcal.watch(model, log, labels=tmp_path / "labels.csv")
    for window in seen.document["windows"]:
        found = window["labelled"]
        assert found["n_rows"] == 60
        assert found["accuracy"]["low"] < found["accuracy"]["value"] < found["accuracy"]["high"]
        assert "ece_top_label" in found
    beside = ebmcal.watch(model, write_log(tmp_path / "labelled.jsonl", labels=True))
    assert [w["labelled"]["n_rows"] for w in beside.document["windows"]] == [60, 60, 60]


def test_what_the_rule_says(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl", (False, True))
    calm, hard = ebmcal.watch(model, log).document["windows"]
    assert calm["abstained"] is None
    rule = decide(None, rows(400, seed=1), max_error=0.1, confidence=0.9, output=tmp_path / "rule.json")
    decided = rule.decide(read_log([log]).rows)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line, answer in zip(lines, decided.answers, strict=True):
        line |= {"decision": "answer" if answer else "abstain", "unusual": line["time"] > "2026-03-02"}
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    calm, hard = ebmcal.watch(model, log).document["windows"]
    assert calm["abstained"] < hard["abstained"] == 1
    assert (calm["unusual"], hard["unusual"]) == (0, 1)


def test_logits_get_the_calibrator_of_the_model(model, tmp_path):
    known = rows(400, seed=1, sharpness=3)
    run = RunFolder(tmp_path / "run")
    known.write(run.predictions(Cell("hidden", 1), "calibration"))
    attach(model, TemperatureScaling().fit_predictions(known))
    rows(300, seed=5, sharpness=3, labels=False).write(tmp_path / "log.parquet")
    seen = ebmcal.watch(model, tmp_path / "log.parquet", n_rows=150).document
    assert abs(seen["reference"]["confidence"] - seen["reference"]["accuracy"]) < 0.03
    assert abs(seen["windows"][0]["confidence"] - seen["reference"]["confidence"]) < 0.06
    assert [w["name"] for w in seen["windows"]] == ["rows 1–150", "rows 151–300"]


def test_files_are_joined_in_the_order_of_time(tmp_path):
    text = "id,time,energy,prob_no,prob_yes\n"
    (tmp_path / "b.csv").write_text(text + "late,2026-01-02T00:00:00Z,0,0.5,0.5\nearly,2026-01-01,0,0.5,0.5\n")
    (tmp_path / "a.csv").write_text(text + "between,1767268800,0,0.5,0.5\n")
    log = read_log([tmp_path / "b.csv", tmp_path / "a.csv"])
    assert log.rows.ids.tolist() == ["early", "between", "late"]
    names = [window.name for window in windows_of(log, every="12h")]
    assert names == ["2026-01-01 00:00", "2026-01-01 12:00", "2026-01-02 00:00"]


def test_error_rows_are_left_out(tmp_path):
    rows = [
        "id,predicted,prob_no,prob_yes,confidence,error",
        "a,no,0.9,0.1,0.9,",
        "b,,,,,no text",
        "c,yes,0.2,0.8,0.8,",
    ]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    with pytest.warns(UserWarning, match="1 row has an error and is left out"):
        assert read_log([tmp_path / "log.csv"]).rows.ids.tolist() == ["a", "c"]


def test_few_rows_are_not_tested(model, tmp_path):
    rows(510, seed=3, labels=False).write(tmp_path / "log.parquet")
    seen = ebmcal.watch(model, tmp_path / "log.parquet")
    assert [bool(w["p_values"]) for w in seen.document["windows"]] == [True, False]
    assert "too few rows" in str(seen)


def test_the_command_for_cron(model, tmp_path, capsys):
    log, page = write_log(tmp_path / "log.jsonl"), tmp_path / "watch.html"
    for days, code in (((False, False, True), 3), ((False,), 0)):
        write_log(log, days)
        with pytest.raises(SystemExit) as stop:
            main(["watch", str(model), str(log), "--report", str(page), "--json", str(tmp_path / "w.json")])
        assert stop.value.code == code
        html = page.read_text(encoding="utf-8")
        assert html.count("<svg") == 4
        assert ("Alarms" in html) == (code == 3)
        assert len(json.loads((tmp_path / "w.json").read_text())["windows"]) == len(days)
    assert "Alarm: 2026-03-03" in capsys.readouterr().err


def test_what_is_refused(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl")
    for options, words in (
        ({"every": "1y"}, "6h or 1d"), ({"every": "1d", "n_rows": 5}, "not both"), ({"time_column": "when"}, "'when'"),
        ({"false_alarms": 0}, "--false-alarms is 0"), ({"least_accuracy": 80}, "--least-accuracy is 80"),
        ({"n_windows": 0}, "--windows is 0"),
    ):  # fmt: skip
        with pytest.raises(EbmcalError, match=words):
            ebmcal.watch(model, log, **options)
    (tmp_path / "elsewhere").mkdir()
    write_json(tmp_path / "elsewhere" / "config.json", {})
    with pytest.raises(EbmcalError, match="--reference FILE"):
        ebmcal.watch(tmp_path / "elsewhere", log)
    rows(20).write(tmp_path / "few.parquet")
    with pytest.raises(EbmcalError, match="20 labelled rows; 30 are needed"):
        ebmcal.watch(model, log, reference=tmp_path / "few.parquet")
    (tmp_path / "labels.csv").write_text("id,label\nnobody,yes\n")
    with pytest.raises(EbmcalError, match="no id of it is in the log"):
        ebmcal.watch(model, log, labels=tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_text("id,label\nr1,maybe\n")
    with pytest.raises(EbmcalError, match="'maybe' is none of no, yes"):
        ebmcal.watch(model, log, labels=tmp_path / "labels.csv")
    log.write_text(log.read_text().replace("2026-03-01T05", "yesterday"))
    with pytest.raises(EbmcalError, match="yesterday"):
        ebmcal.watch(model, log)


def say_weights(folder, path, seed, **meta):
    """A log that says which weights wrote it, and a folder that has weights."""
    if not (folder / "model.safetensors").exists():
        header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    replace(rows(100, seed=seed), meta={"weights": model_fingerprint(folder)} | meta).write(path)
    return path


def test_a_log_of_another_model_is_refused(model, tmp_path):
    ours = say_weights(model, tmp_path / "ours.parquet", 5)
    assert ebmcal.watch(model, ours).document["windows"]
    theirs = say_weights(model, tmp_path / "theirs.parquet", 6, weights="others")
    several = say_weights(model, tmp_path / "mean.parquet", 6, ensemble=["a", "b"])
    for log, words in ((theirs, "weights are others"), (several, "they are an average")):
        with pytest.raises(EbmcalError, match=f"{log.name} was written by another model.*{words}"):
            ebmcal.watch(model, log)
        with pytest.raises(EbmcalError, match="written by another model"):
            ebmcal.watch(model, ours, reference=log)
    write_json(model / "ebmcal.json", {"task": "films", "method": "hidden", "seed": 1})
    replace(rows(100, seed=7), meta={"task": "films", "method": "hidden", "seed": 2}).write(theirs)
    with pytest.raises(EbmcalError, match="seed 2, not 1"):
        ebmcal.watch(model, theirs)


@pytest.mark.filterwarnings("default:.*does not say which model wrote it")
def test_a_log_that_says_nothing_is_taken_aloud(model, tmp_path):
    with pytest.warns(UserWarning, match=r"log\.jsonl does not say which model wrote it"):
        ebmcal.watch(model, write_log(tmp_path / "log.jsonl"))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_log_that_is_its_own_reference_is_refused(model, tmp_path, suffix):
    rows(100, seed=5).write(tmp_path / f"log{suffix}")
    rows(100, seed=5).write(tmp_path / f"copy{suffix}")
    for reference in ("log", "copy"):
        with pytest.raises(EbmcalError, match=r"is the reference .* itself"):
            ebmcal.watch(model, tmp_path / f"log{suffix}", reference=tmp_path / f"{reference}{suffix}")


def test_error_rows_are_left_out_aloud(model, tmp_path):
    lines = write_log(tmp_path / "log.jsonl").read_text().splitlines()
    lines.insert(3, json.dumps({"id": "bad", "time": "2026-03-01T01:00:00", "error": "no text"}))
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    with pytest.warns(UserWarning, match="1 row has an error and is left out"):
        seen = ebmcal.watch(model, tmp_path / "log.jsonl")
    assert [window["n_rows"] for window in seen.document["windows"]] == [120, 120, 120]


def test_a_log_by_distance(model, tmp_path):
    """Distances are taken where the log has them; without, nothing is called unusual by another score."""
    say_weights(model, tmp_path / "any.parquet", 1)
    far = replace(rows(200, seed=3), distances={"knn": np.arange(200.0)})
    attach_rule(model, replace(fit_rule(far, unusual_by="knn"), model=model_fingerprint(model)))
    replace(rows(50, seed=4, labels=False), distances={"knn": np.full(50, 500.0)}).write(tmp_path / "far.parquet")
    rows(50, seed=4, labels=False).write(tmp_path / "none.parquet")
    shares = [ebmcal.watch(model, tmp_path / f"{n}.parquet").document["windows"][0]["unusual"] for n in ("far", "none")]
    assert shares == [1.0, None]


def test_rounded_probabilities(model, tmp_path):
    lines = [json.dumps({"id": str(i), "prob_no": 0.33, "prob_yes": 0.66}) for i in range(40)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    with pytest.raises(EbmcalError, match="--normalize of evaluate, calibrate, decide and watch"):
        ebmcal.watch(model, tmp_path / "log.jsonl")
    assert ebmcal.watch(model, tmp_path / "log.jsonl", normalize=True).document["windows"][0]["n_rows"] == 40
