"""The answer log: every answer, texts only on request, a failing disk, and `monitor` reading it."""

import json
import re
import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from server_tools import NAMES, call, classify, fitted_temperature, running, save_classifier

import ebmcal
from ebmcal import EbmcalError
from ebmcal.calibration import save_calibrator
from ebmcal.run_dir import update_card
from ebmcal.serving import create_app, serve
from tiny_models import SENTENCES


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ebmcal.load(save_classifier(tmp_path_factory.mktemp("answers") / "films"))


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("log_texts", [False, True])
def test_the_log_has_every_answer_and_texts_only_on_request(model, tmp_path, log_texts):
    path = tmp_path / "deep" / "log.jsonl"
    inputs = ["secretword a", {"text": "secretword", "text_pair": "b"}]
    with running(create_app({"films": model}, log_texts=log_texts, log_file=path)) as app:
        results = classify(app, {"inputs": inputs}).json()["results"]
        classify(app, {"inputs": 3})
    with running(create_app({"films": model}, log_file=path)) as app:  # appended to
        results += classify(app, {"inputs": "the film"}).json()["results"]
        while 'outcome="written"' not in (metrics := call(app, "GET", "/metrics").text):
            threading.Event().wait(0.01)
    rows = read_rows(path)
    assert [row["id"] for row in rows] == [result["id"] for result in results]
    assert len({row["id"] for row in rows}) == 3
    assert ("secretword" in path.read_text()) == log_texts
    assert [row.get("text_pair") for row in rows] == ([None, "b", None] if log_texts else [None] * 3)
    assert {row["weights"] for row in rows} == {model.fingerprint}
    for row, result in zip(rows, results, strict=True):
        assert {name: row[f"prob_{name}"] for name in NAMES} == result["probabilities"]
        assert (row["predicted"], row["energy"]) == (result["label"], result["energy"])
        assert row["time"].endswith("+00:00")
    assert 'ebmcal_log_rows_total{outcome="written"} 1.0' in metrics


def test_monitor_reads_the_log_and_refuses_that_of_another_model(tmp_path):
    folder, path = save_classifier(tmp_path / "monitored"), tmp_path / "log.jsonl"
    model = ebmcal.load(folder)
    with running(create_app({"monitored": model}, log_file=path)) as app:
        results = classify(app, {"inputs": SENTENCES[:60]}).json()["results"]
    labelled = {"text": SENTENCES, "label": [NAMES[i % 3] for i in range(len(SENTENCES))]}
    reference = model.predict(labelled, label_column="label")
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{r['id']},{r['label']}\n" for r in results[:40]))
    found = ebmcal.monitor(folder, path, reference=reference, labels=tmp_path / "labels.csv")
    (window,) = found.document["windows"]
    assert (window["n_rows"], window["labelled"]["accuracy"]["value"]) == (60, 1.0)
    other = save_classifier(tmp_path / "other", seed=1)
    with pytest.raises(EbmcalError, match=r"log\.jsonl was written by another model"):
        ebmcal.monitor(other, path, reference=ebmcal.load(other).predict(labelled, label_column="label"))


def test_monitor_does_not_take_another_calibrator_for_drift(tmp_path):
    folder, path = save_classifier(tmp_path / "monitored"), tmp_path / "log.jsonl"
    labelled = {"text": SENTENCES, "label": [NAMES[i % 3] for i in range(len(SENTENCES))]}
    reference = ebmcal.load(folder).predict(labelled, label_column="label")

    def serve_texts():
        with running(create_app({"monitored": ebmcal.load(folder)}, log_file=path)) as app:
            classify(app, {"inputs": SENTENCES[::3]})

    serve_texts()
    assert not ebmcal.monitor(folder, path, reference=reference).alarms
    save_calibrator(folder, fitted_temperature())
    with pytest.raises(EbmcalError, match="all 40 rows were answered before the model was calibrated again"):
        ebmcal.monitor(folder, path, reference=reference)
    serve_texts()
    with pytest.warns(UserWarning, match="40 rows of the log were answered with another calibrator and are left out"):
        found = ebmcal.monitor(folder, path, reference=reference)
    assert found.document["windows"][0]["n_rows"] == 40
    assert not found.alarms
    ebmcal.load(folder).predict(SENTENCES).write(tmp_path / "answers.parquet")
    update_card(folder, calibrator=None)
    with pytest.raises(EbmcalError, match="answers.parquet was written before .* was calibrated again"):
        ebmcal.monitor(folder, tmp_path / "answers.parquet", reference=reference)


def test_a_slow_or_failing_disk_costs_rows_but_no_answer(model, tmp_path, monkeypatch, caplog):
    path, go = tmp_path / "log.jsonl", threading.Event()
    app = create_app({"films": model}, log_file=path)
    answer_log = app.state.service.answer_log
    write = answer_log._write
    monkeypatch.setattr(answer_log, "_write", lambda content: (go.wait(20), write(content)))
    monkeypatch.setattr("ebmcal.serving.service.MAX_WAITING", 2000)  # bytes: two requests
    with running(app):
        responses = [classify(app, {"inputs": ["a joy"] * 3}) for _ in range(4)]
        metrics = call(app, "GET", "/metrics").text
        go.set()
    assert [r.status_code for r in responses] == [200] * 4
    n_dropped = float(re.search(r'ebmcal_log_rows_total{outcome="dropped"} (\S+)', metrics).group(1))
    assert n_dropped >= 6
    assert len(read_rows(path)) == 12 - n_dropped
    assert caplog.text.count("are dropped") == 1
    monkeypatch.undo()
    (tmp_path / "gone.jsonl").mkdir()
    with running(create_app({"films": model}, log_file=path)) as app:
        app.state.service.answer_log.path = tmp_path / "gone.jsonl"  # a directory by now
        assert classify(app, {"inputs": "a joy"}).status_code == 200
    assert "Is a directory" in caplog.text


def test_a_log_that_was_moved_away_is_started_anew_and_a_partial_line_removed(model, tmp_path):
    path = tmp_path / "log.jsonl"
    with running(create_app({"films": model}, log_file=path)) as app:
        classify(app, {"inputs": "a joy"})
        while not path.exists():
            threading.Event().wait(0.01)
        path.rename(tmp_path / "log.1.jsonl")
        classify(app, {"inputs": ["a joy", "the film"]})
    assert (len(read_rows(tmp_path / "log.1.jsonl")), len(read_rows(path))) == (1, 2)
    with open(path, "a") as handle:
        handle.write('{"time": "2026-')  # a server was killed while it wrote
    with running(create_app({"films": model}, log_file=path)) as app:
        classify(app, {"inputs": "a joy"})
    assert len(read_rows(path)) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.csv", None, r"ends in \.jsonl"),
        ("mine.jsonl", '{"a": 1}\n', "not an answer log"),
        ("mine.jsonl", "[" * 100_000, "not an answer log"),
        (".", None, "directory"),
    ],
)
def test_other_files_are_refused_before_the_model_is_loaded(tmp_path, name, content, message):
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(EbmcalError, match=message):
        serve(tmp_path / "no model", log_file=tmp_path / name, port=0)
    assert content is None or (tmp_path / name).read_text() == content
