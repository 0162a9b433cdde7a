"""`ebmcal monitor` without torch: windows, drift, withheld estimates, labels, rules, the page, exit codes."""

import datetime
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import ebmcal
from ebmcal import EbmcalError, Predictions, TemperatureScaling
from ebmcal.calibration import read_calibrator, save_calibrator
from ebmcal.calibration.persistence import calibrator_fingerprint
from ebmcal.run_dir import RunDir, Trial, update_card, weights_fingerprint
from ebmcal.selective import save_rule
from ebmcal.storage import write_json
from synthetic_run import write_model

NAMES = ("no", "yes")
TRIAL = Trial("hidden", 1)

#: JSON lines cannot state which model wrote them.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not state which model wrote it")


def predict(n, seed=0, is_shifted=False, labels=True, start=0, sharpness=1.0):
    """Calibrated at sharpness 1; shifted texts have logits near 0 and high energies."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 2)) * (0.3 if is_shifted else 2)
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1) if labels else np.full(n, -1)
    energies = -np.logaddexp.reduce(logits, axis=1) + (3 if is_shifted else 0)
    return Predictions(
        drawn, NAMES, logits=logits * sharpness, energies=energies, ids=[f"r{start + i}" for i in range(n)]
    )


@pytest.fixture
def model(tmp_path):
    """A model directory in a run, as far as monitoring needs it."""
    run = RunDir(tmp_path / "run")
    predict(400, seed=1).write(run.predictions(TRIAL, "calibration"))
    return write_model(run.model(TRIAL), NAMES)


def write_log(path, days=(False, False, True), n=120, labels=False):
    """A JSONL log: a day per entry, shifted texts where it is true."""
    lines = []
    for day, is_shifted in enumerate(days):
        found = predict(n, seed=10 + day, is_shifted=is_shifted, start=day * n, labels=labels)
        for i in range(n):
            time = datetime.datetime(2026, 3, 1 + day, i % 24).isoformat()
            probs = {f"prob_{name}": float(p) for name, p in zip(NAMES, found.probs[i], strict=True)}
            label = {"label": NAMES[found.labels[i]]} if labels and i % 2 else {}
            lines.append({"id": found.ids[i], "time": time, "energy": float(found.energies[i]), **probs, **label})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_copies_in_the_reference_count_once(model, tmp_path):
    rows = predict(60, seed=1)
    rows.write(tmp_path / "once.parquet")
    rows.rows(np.tile(np.arange(60), 5)).replace(ids=None).write(tmp_path / "often.parquet")
    log = write_log(tmp_path / "log.jsonl")
    once, often = (ebmcal.monitor(model, log, reference=tmp_path / f"{name}.parquet") for name in ("once", "often"))
    assert often.document["reference"]["n_rows"] == 60
    assert [w["p_values"] for w in often.document["windows"]] == [w["p_values"] for w in once.document["windows"]]


def test_drift_raises_an_alarm_and_withholds_the_estimate(model, tmp_path):
    found = ebmcal.monitor(model, write_log(tmp_path / "log.jsonl"))
    windows = found.document["windows"]
    assert [window["name"] for window in windows] == ["2026-03-01", "2026-03-02", "2026-03-03"]
    assert [bool(window["drift"]) for window in windows] == [False, False, True]
    assert {"energy", "confidence"} <= set(windows[2]["drift"])
    assert windows[2]["ood"] > 0.9 > 0.2 > windows[0]["ood"]
    assert windows[0]["accuracy"] == windows[0]["estimate"]
    assert (windows[0]["accuracy_note"], windows[2]["accuracy"]) == ("", None)
    assert "(drift and more than half" in windows[2]["accuracy_note"]
    assert "of the texts are out-of-distribution" in windows[2]["accuracy_note"]
    assert found.alarms == [
        "2026-03-03: drift in energy, confidence compared with the reference.",
        "2026-03-03: more than half of the texts are out-of-distribution.",
    ]
    assert (windows[0]["labelled"], windows[0]["abstained"]) == (None, None)
    shown = str(found)
    assert "withheld" in shown
    assert "Label some of these rows" in " ".join(shown.split())


def test_confident_ood_texts_get_no_estimate(model, tmp_path):
    """Texts far from the training data on which the model is surer than ever: no accuracy may be claimed."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(200, 2)) * 8
    Predictions(None, NAMES, logits=logits, energies=rng.normal(5, 1, 200)).write(tmp_path / "captions.parquet")
    (window,) = ebmcal.monitor(model, tmp_path / "captions.parquet").document["windows"]
    assert window["confidence"] > 0.95
    assert window["ood"] == 1
    assert window["accuracy"] is None
    (small,) = ebmcal.monitor(model, write_few(tmp_path, n=20)).document["windows"]
    assert (small["p_values"], small["drift"], small["accuracy"]) == ({}, [], None), "too few rows for drift tests"


def write_few(tmp_path, n):
    predict(n, seed=4, is_shifted=True, labels=False).write(tmp_path / "few.parquet")
    return tmp_path / "few.parquet"


def test_no_alarm_without_drift(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl", (False, False))
    assert ebmcal.monitor(model, log).alarms == []
    assert ebmcal.monitor(model, log, planned_windows=365).alarms == []
    low = ebmcal.monitor(model, log, min_accuracy=0.99)
    assert len(low.alarms) == 2
    assert all("estimated accuracy" in line for line in low.alarms)


def test_labels_that_become_known(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl")
    truth = [predict(120, seed=10 + day, is_shifted=day == 2, start=day * 120) for day in range(3)]
    lines = [f"{p.ids[i]},{NAMES[p.labels[i]]}" for p in truth for i in range(0, 120, 2)]
    (tmp_path / "labels.csv").write_text("id,label\n" + "\n".join(lines) + "\n")
    found = ebmcal.monitor(model, log, labels=tmp_path / "labels.csv", min_accuracy=0.8)
    for window in found.document["windows"]:
        labelled = window["labelled"]
        assert labelled["n_rows"] == 60
        assert labelled["accuracy"]["low"] < labelled["accuracy"]["value"] < labelled["accuracy"]["high"]
        assert {"ece_top_label", "nll"} <= set(labelled)
    assert any(line.startswith("2026-03-03: accuracy of labelled rows") for line in found.alarms)
    in_log = ebmcal.monitor(model, write_log(tmp_path / "labelled.jsonl", labels=True))
    assert [w["labelled"]["n_rows"] for w in in_log.document["windows"]] == [60, 60, 60]


def test_decisions_are_those_of_the_log_or_of_the_model(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl", (False, True))
    rule = ebmcal.fit_abstention(predict(400, seed=1), max_error=0.1, confidence=0.9, ood=0.05, ood_score="energy")
    save_rule(model, rule_for(model, rule))
    calm, shifted = ebmcal.monitor(model, log).document["windows"]
    assert calm["abstained"] < 1
    assert (shifted["abstained"], shifted["ood"]) == (1, 1)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    changed = [line | {"decision": "answer", "is_ood": line["time"] < "2026-03-02"} for line in lines]
    log.write_text("".join(json.dumps(line) + "\n" for line in changed))
    calm, shifted = ebmcal.monitor(model, log).document["windows"]
    assert [(w["ood"], w["abstained"]) for w in (calm, shifted)] == [(1, 0), (0, 0)]
    assert "out-of-distribution" in calm["accuracy_note"]


def rule_for(model, rule):
    """A rule bound to a model, as `fit_abstention(model=…)` returns it."""
    return replace(rule, model=weights_fingerprint(model), calibrator=calibrator_fingerprint(read_calibrator(model)))


def test_a_rule_by_distance_needs_distances(model, tmp_path):
    """Without them nothing is classified by another score."""
    known = predict(200, seed=3).replace(distances={"knn": np.arange(200.0)})
    save_rule(model, rule_for(model, ebmcal.fit_abstention(known, ood=0.05, ood_score="knn")))
    predict(50, seed=4, labels=False).replace(distances={"knn": np.full(50, 500.0)}).write(tmp_path / "far.parquet")
    assert ebmcal.monitor(model, tmp_path / "far.parquet").document["windows"][0]["ood"] == 1.0
    predict(50, seed=4, labels=False).write(tmp_path / "none.parquet")
    with pytest.warns(UserWarning, match="abstention rule of the model cannot be applied"):
        assert ebmcal.monitor(model, tmp_path / "none.parquet").document["windows"][0]["ood"] is None


def test_logits_are_calibrated_by_the_calibrator_of_the_model(model, tmp_path):
    known = predict(400, seed=1, sharpness=3)
    known.write(RunDir(tmp_path / "run").predictions(TRIAL, "calibration"))
    save_calibrator(model, TemperatureScaling().fit_predictions(known))
    predict(300, seed=5, sharpness=3, labels=False).write(tmp_path / "log.parquet")
    found = ebmcal.monitor(model, tmp_path / "log.parquet", window_rows=150).document
    assert abs(found["reference"]["confidence"] - found["reference"]["accuracy"]) < 0.03
    assert abs(found["windows"][0]["confidence"] - found["reference"]["confidence"]) < 0.06
    assert [w["name"] for w in found["windows"]] == ["rows 1–150", "rows 151–300"]


@pytest.mark.parametrize(("days", "expected"), [((False, False, True), 3), ((False,), 0)])
def test_the_command_for_cron_jobs(model, tmp_path, command, days, expected):
    log, page, numbers = write_log(tmp_path / "log.jsonl", days), tmp_path / "m.html", tmp_path / "m.json"
    printed = command("monitor", model, log, "--report", page, "--json", numbers, code=expected)
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == 4
    assert ("Alarms" in html) == ("withheld" in html) == ("Alarm: 2026-03-03" in printed) == (expected == 3)
    assert len(json.loads(numbers.read_text())["windows"]) == len(days)
    assert max(len(line) for line in printed.splitlines() if str(tmp_path) not in line) <= 100


def test_windows_too_small_for_tests_are_reported_and_the_input_is_never_overwritten(model, tmp_path, command):
    log = write_log(tmp_path / "log.jsonl", (False,))
    before = log.read_bytes()
    assert "Drift was not tested" in command("monitor", model, log, "--rows", 10)
    assert "also an input" in command("monitor", model, log, "--json", log, code=1)
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "1y"}, "6h or 1d"),
        ({"every": "1d", "window_rows": 5}, "got both"),
        ({"time_column": "when"}, "no column 'when'"),
        ({"false_alarm_rate": 0}, "--false-alarm-rate: expected a number between 0 and 1, got 0"),
        ({"min_accuracy": 80}, "--min-accuracy: .* got 80"),
        ({"window_rows": 0}, "--rows: expected at least 1, got 0"),
    ],
)
def test_invalid_settings(model, tmp_path, options, message):
    with pytest.raises(EbmcalError, match=message):
        ebmcal.monitor(model, write_log(tmp_path / "log.jsonl", (False,)), **options)


def test_invalid_files(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl", (False,))
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(EbmcalError, match="not a model directory"):
        ebmcal.monitor(tmp_path / "elsewhere", log)
    write_json(tmp_path / "elsewhere" / "config.json", {})
    with pytest.raises(EbmcalError, match="--reference FILE"):
        ebmcal.monitor(tmp_path / "elsewhere", log)
    predict(20).write(tmp_path / "few.parquet")
    with pytest.raises(EbmcalError, match="expected at least 30 labelled rows, got 20"):
        ebmcal.monitor(model, log, reference=tmp_path / "few.parquet")
    predict(50).replace(meta={"split": "train"}).write(tmp_path / "train.parquet")
    with pytest.raises(EbmcalError, match="holds training rows"):
        ebmcal.monitor(model, log, reference=tmp_path / "train.parquet")
    log.write_text(log.read_text().replace("2026-03-01T05", "yesterday"))
    with pytest.raises(EbmcalError, match="yesterday"):
        ebmcal.monitor(model, log)


def test_predictions_of_another_model_are_refused(model, tmp_path):
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    predict(100, seed=5).replace(meta={"weights": weights_fingerprint(model)}).write(ours)
    assert ebmcal.monitor(model, ours).document["windows"]
    update_card(model, task="films", method="hidden", seed=1)
    for meta, message in (
        ({"weights": "others"}, "other weights"),
        ({"ensemble": ["a", "b"]}, "average"),
        ({"task": "films", "method": "hidden", "seed": 2}, "seed 2, not 1"),
    ):
        predict(100, seed=6).replace(meta=meta).write(theirs)
        with pytest.raises(EbmcalError, match=rf"theirs\.parquet was written by another model.*{message}"):
            ebmcal.monitor(model, theirs)
        with pytest.raises(EbmcalError, match="written by another model"):
            ebmcal.monitor(model, ours, reference=theirs)


@pytest.mark.filterwarnings("default:.*does not state which model wrote it")
def test_files_that_do_not_state_their_model_are_accepted_with_a_warning(model, tmp_path):
    with pytest.warns(UserWarning, match=r"log\.jsonl does not state which model wrote it"):
        ebmcal.monitor(model, write_log(tmp_path / "log.jsonl"))


def test_rounded_probabilities(model, tmp_path):
    lines = [json.dumps({"id": str(i), "prob_no": 0.33, "prob_yes": 0.66}) for i in range(40)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    with pytest.raises(EbmcalError, match="--normalize"):
        ebmcal.monitor(model, tmp_path / "log.jsonl")
    found = ebmcal.monitor(model, tmp_path / "log.jsonl", normalize=True)
    assert found.document["windows"][0]["n_rows"] == 40


def test_the_test_split_is_the_reference_without_a_calibration_split(model, tmp_path):
    run = RunDir(tmp_path / "run")
    run.predictions(TRIAL, "calibration").rename(run.predictions(TRIAL, "test"))
    log = write_log(tmp_path / "log.jsonl", (False,))
    assert ebmcal.monitor(model, log).document["reference"]["name"] == "the test split"


def test_a_small_test_split_is_replaced_by_out_of_fold_predictions(model, tmp_path):
    run, log = RunDir(tmp_path / "run"), write_log(tmp_path / "log.jsonl")
    run.predictions(TRIAL, "calibration").unlink()
    predict(23, seed=1).write(run.predictions(TRIAL, "test"))
    with pytest.raises(EbmcalError, match="the test split: expected at least 30 .* got 23.*--reference FILE"):
        ebmcal.monitor(model, log)
    folds = predict(160, seed=2, sharpness=0.5).replace(meta={"split": "out_of_fold"})
    folds.write(run.predictions(TRIAL, "out_of_fold"))
    save_calibrator(model, TemperatureScaling().fit_predictions(folds))
    found = ebmcal.monitor(model, log)
    assert found.document["reference"]["n_rows"] == 160
    assert found.document["reference"]["energy"] is None, "the models of the folds have energies of another scale"
    shown = " ".join(str(found).split())
    assert "Reference (out-of-fold predictions, as the test split has 23 labelled rows): 160 rows" in shown
    assert "is about 0.05 (Holm). Only predicted labels are compared" in shown
    assert {test for window in found.document["windows"] for test in window["p_values"]} == {"predicted labels"}
    estimates = [v for v in found.table().frame["Estimated accuracy"] if v != "withheld"]
    assert {value[0] for value in estimates} == {"("}, "they are rough"
    alarms = ebmcal.monitor(model, log, min_accuracy=0.999).alarms
    assert not any("estimated accuracy" in alarm for alarm in alarms)


def test_small_windows_of_ood_texts_raise_one_alarm_and_their_estimates_are_marked(model, tmp_path, command):
    """Windows of 25 rows are too small for drift tests, but nobody needs a test to see that all texts are OOD."""
    log, page = write_log(tmp_path / "log.jsonl", (False, True), n=150), tmp_path / "m.html"
    printed = command("monitor", model, log, "--rows", 25, "--report", page, code=3)
    found = ebmcal.monitor(model, log, window_rows=25)
    names = "rows 151–175, rows 176–200, rows 201–225, rows 226–250, rows 251–275 and 1 more"
    assert found.alarms == [f"{names}: more than half of the texts are out-of-distribution."]
    assert list(found.table().frame["Drift"]) == ["not tested"] * 12
    assert [value[0] for value in found.table().frame["Estimated accuracy"]] == ["("] * 6 + ["w"] * 6
    assert "Drift was not tested in any window" in " ".join(printed.split())
    html = page.read_text(encoding="utf-8")
    assert "12 windows, 1 alarm; drift was not tested in 12 of the windows." in html
    assert "rough estimate" in html
    few = ebmcal.monitor(model, log, window_rows=9)
    assert max(w["ood"] for w in few.document["windows"]) == 1
    assert few.alarms == [], "in windows of a few rows, many texts are OOD by chance"


def test_the_page_with_every_estimate_withheld_says_so(model, tmp_path):
    page = ebmcal.monitor(model, write_log(tmp_path / "log.jsonl", (True, True))).report(tmp_path / "m.html")
    html = page.read_text(encoding="utf-8")
    assert "Every estimate is withheld" in html
    assert "2026-03-01, 2026-03-02: drift in energy, confidence" in html
    assert html.index(">Drift<") < html.index(">Rows<"), "seen first on a narrow screen"


def test_names_of_windows_are_inside_the_pictures(model, tmp_path):
    log = write_log(tmp_path / "log.jsonl", (False,) * 9)
    html = ebmcal.monitor(model, log, every="6h").report(tmp_path / "m.html").read_text(encoding="utf-8")
    starts = re.findall(r'translate\(([-.\d]+) [-.\d]+\) rotate\(-30\)">2026-03-01 00:00<', html)
    assert len(starts) == 4
    assert min(map(float, starts)) >= 0
    assert html.count(">0.5<") == 2, "accuracy and confidence are drawn from 0.5, so that noise looks like noise"
