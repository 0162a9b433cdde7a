"""The server over HTTP, in the process of the test: answers, limits, key, state, figures, logs."""

import asyncio
import json
import logging
import re
import threading

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from ebmcal.calibrators import attach
from ebmcal.decisions import attached_rule, decide
from ebmcal.errors import EbmcalError
from ebmcal.model import load
from ebmcal.serve import Limits, create_app, serve
from ebmcal.watching.watch import watch
from serving import NAMES, call, fitted_temperature, running, save_classifier
from tiny_models import SENTENCES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = save_classifier(tmp_path_factory.mktemp("serve") / "films")
    attach(folder, fitted_temperature())
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


def ask(app, body, path="/v1/classify", **more):
    return call(app, "POST", path, json=body, **more)


# Answers


def test_a_text_a_pair_and_a_list_are_answered_as_predict_does(model):
    with running(create_app({"films": model})) as app:
        one, pair, both = (
            ask(app, {"inputs": inputs})
            for inputs in ("the film", {"text": "the film", "text_pair": "was dull"}, ["the film", {"text": "a joy"}])
        )
    assert one.status_code == pair.status_code == both.status_code == 200
    expected = [model.predict(texts) for texts in (["the film"], [("the film", "was dull")], ["the film", "a joy"])]
    raw = [
        model.predict(t, calibrated=False) for t in (["the film"], [("the film", "was dull")], ["the film", "a joy"])
    ]
    for answer, theirs, plain in zip((one, pair, both), expected, raw, strict=True):
        body = answer.json()
        assert body["model"] == "films"
        assert len(body["results"]) == theirs.n_rows
        for i, result in enumerate(body["results"]):
            assert result["label"] == theirs.labels_[i]
            assert list(result["probabilities"]) == list(NAMES)
            assert list(result["probabilities"].values()) == pytest.approx(theirs.probs[i], abs=1e-5)
            assert result["confidence"] == pytest.approx(theirs.confidences()[i], abs=1e-5)
            assert list(result["logits"].values()) == pytest.approx(plain.logits[i], abs=1e-4)
            assert result["energy"] == pytest.approx(theirs.energies[i], abs=1e-4)


def test_many_clients_at_once_get_their_own_answers(model):
    """In packed batches with texts of others; to 1e-5 the figures of a text alone."""
    texts = SENTENCES[:60]
    expected = model.predict(texts)
    with running(create_app({"films": model}, limits=Limits(batch_tokens=200))) as app:
        answers = call(app, "POST", "/v1/classify", many=[{"json": {"inputs": text}} for text in texts])
        figures = call(app, "GET", "/metrics").text
    for i, answer in enumerate(answers):
        assert list(answer.json()["results"][0]["probabilities"].values()) == pytest.approx(expected.probs[i], abs=1e-5)
    batches = float(re.search(r'ebmcal_batch_texts_count{model="films"} (\S+)', figures).group(1))
    assert batches < 30, "they were put together"


def test_what_is_cut_is_said(model):
    with running(create_app({"films": model})) as app:
        short, long = ask(app, {"inputs": ["the film", "the film " * 60]}).json()["results"]
    assert (short["is_cut"], long["is_cut"]) == (False, True)
    assert long["n_tokens"] == model.max_length


def test_weights_that_give_no_numbers_are_an_error_and_not_an_answer(tmp_path):
    import torch

    broken = load(save_classifier(tmp_path / "broken"))
    with torch.no_grad():
        broken.classifier.encoder.classifier.bias += float("nan")
    with running(create_app({"broken": broken})) as app:
        answer, ready = ask(app, {"inputs": "the film"}), call(app, "GET", "/readyz")
    assert answer.status_code == 500
    assert "not numbers" in answer.json()["error"]
    assert ready.status_code == 503, "a model that cannot answer is never ready"


def test_the_models_are_described(model, tmp_path):
    other = load(save_classifier(tmp_path / "plain"))
    with running(create_app({"films": model, "plain": other})) as app:
        films, plain = call(app, "GET", "/v1/models").json()["models"]
        named = ask(app, {"inputs": "a joy", "model": "plain"}).json()
        unknown = ask(app, {"inputs": "a joy", "model": "plan"})
    assert (films["name"], films["labels"], films["calibrator"]) == ("films", list(NAMES), "temperature")
    assert (plain["calibrator"], plain["energy"], plain["is_energy_trained"]) == (None, "hidden", False)
    assert list(named["results"][0]["probabilities"].values()) == pytest.approx(
        other.predict(["a joy"]).probs[0], abs=1e-5
    )
    assert unknown.status_code == 404
    assert "Did you mean 'plain'" in unknown.json()["error"]


def test_the_rule_kept_with_the_model_decides(tmp_path):
    folder, held_out = save_classifier(tmp_path / "ruled"), labelled(SENTENCES)
    attach(folder, fitted_temperature())
    rows = load(folder).predict(held_out, label_column="label", calibrated=False)
    decide(folder, rows, max_error=0.8, coverage=0.8, false_alarms=0.2)
    model = load(folder)
    expected = attached_rule(folder).decide(model.predict(SENTENCES)).columns()
    with running(create_app({"ruled": model})) as app:
        results = ask(app, {"inputs": SENTENCES}).json()["results"]
        facts = call(app, "GET", "/v1/models").json()["models"][0]
        figures = call(app, "GET", "/metrics").text
    assert any("Promise" in line for line in facts["rule"])
    for name in ("decision", "reason", "unusual", "label_set"):
        assert [r[name] for r in results] == expected[name], name
    assert [r["unusual_p"] for r in results] == pytest.approx(expected["unusual_p"])
    n_unusual = float(re.search(r"ebmcal_unusual_total{.*} (\S+)", figures).group(1))
    assert sum(expected["unusual"]) <= n_unusual <= sum(expected["unusual"]) + 1, "and perhaps the first text"


def test_a_rule_of_another_calibrator_is_refused_before_anything_is_served(tmp_path):
    folder = save_classifier(tmp_path / "ruled")
    decide(folder, load(folder).predict(labelled(SENTENCES), label_column="label"), false_alarms=0.2)
    attach(folder, fitted_temperature())
    with pytest.raises(EbmcalError, match="another calibrator"):
        create_app({"ruled": load(folder)})


def labelled(texts):
    return {"text": texts, "label": [NAMES[i % 3] for i in range(len(texts))]}


# Limits

SMALL = Limits(max_body=200, max_texts=3, max_characters=20, max_tokens=12)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"inputs": "x" * 300}, 413, "larger than 200 bytes"),
        ({"inputs": ["a"] * 4}, 422, '"inputs" has 4 texts; 3 are allowed'),
        ({"inputs": "x" * 21}, 422, '"inputs" has 21 characters; 20 are allowed'),
        ({"inputs": ["a joy a joy a", "a joy a joy a"]}, 422, "14 tokens; 12 are allowed"),
        ({"inputs": []}, 422, '"inputs" is an empty list; one text at least'),
        ({"inputs": 3}, 422, '"inputs" is a number; a text'),
        ({"inputs": None}, 422, '"inputs" is null; a text'),
        ({"texts": "a"}, 422, 'has a field that is not known; allowed are "inputs" and "model"'),
        ({"inputs": "a", "temperature": 2}, 422, "not known"),
        ({"inputs": {"text": "a", "pair": "b"}}, 422, 'allowed are "text" and "text_pair"'),
        (["a"], 422, "The body is a list; an object is expected"),
        ({}, 422, '"inputs" is missing'),
        ({"inputs": ["a", True]}, 422, "inputs[1] is true or false; a text"),
        ({"inputs": [{"text": 1}]}, 422, 'inputs[0]: "text" is a number; a text'),
        ({"inputs": "a", "model": 3}, 422, '"model" is a number'),
        ({"inputs": ["a", " "]}, 422, "inputs[1] is empty"),
    ],
)
def test_what_is_over_a_limit_or_no_question_is_refused(model, body, status, said):
    with running(create_app({"films": model}, limits=SMALL)) as app:
        answer = ask(app, body)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    assert not any(word in answer.text for word in ("constrained", "Pair", "Question", "function-", "Input should"))


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"inputs": "a"', "application/json", 422),
        (b'{"inputs": "\xff"}', "application/json", 422),
        (b'{"inputs": "\\ud800"}', "application/json", 422),
        (b'\xef\xbb\xbf{"inputs": "a"}', "application/json", 422),
        (b"", "application/json", 422),
        (b'{"inputs": "a"}', "text/plain", 415),
        (b"[" * 150, "application/json", 422),
    ],
)
def test_bytes_that_are_no_json_are_refused(model, content, kind, status):
    with running(create_app({"films": model}, limits=SMALL)) as app:
        answer = call(app, "POST", "/v1/classify", content=content, headers={"content-type": kind})
        after = ask(app, {"inputs": "a joy"})
    assert (answer.status_code, after.status_code) == (status, 200)
    assert set(answer.json()) == {"error"}
    assert "openapi" not in answer.text, "what is wrong is said"


@pytest.mark.parametrize("text", ["😀" * 5, "\u202e", "\ufffe", "[SEP] [MASK]"])
def test_odd_texts_are_texts(model, text):
    with running(create_app({"films": model})) as app:
        answer = ask(app, {"inputs": text})
    assert answer.status_code == 200
    assert np.isclose(sum(answer.json()["results"][0]["probabilities"].values()), 1)


@pytest.mark.parametrize("text", ["", " ", "\x00", "\n\t", "\u2003", "\x1f", "\ufeff"])
def test_an_empty_text_is_refused(model, text):
    with running(create_app({"films": model})) as app:
        answers = [ask(app, {"inputs": inputs}) for inputs in (text, ["a joy", text], {"text": "a", "text_pair": text})]
    assert [answer.status_code for answer in answers] == [422] * 3
    assert all("empty" in answer.json()["error"] for answer in answers)


@pytest.mark.parametrize("is_pair", [False, True])
def test_pairs_where_single_texts_are_known_and_the_other_way_round(tmp_path, is_pair):
    folder = save_classifier(tmp_path / "kind")
    (folder / "ebmcal.json").write_text(json.dumps({"energy": "hidden", "is_pair": is_pair}))
    single, pair = "the film", {"text": "the film", "text_pair": "was dull"}
    with running(create_app({"kind": load(folder)})) as app:
        good, bad, among = (
            ask(app, {"inputs": inputs})
            for inputs in ((pair, single, [pair, single]) if is_pair else (single, pair, [single, pair]))
        )
        facts = call(app, "GET", "/v1/models").json()["models"][0]
        ready = call(app, "GET", "/readyz").status_code
    assert (good.status_code, bad.status_code, among.status_code, ready) == (200, 422, 422, 200)
    assert facts["is_pair"] is is_pair
    assert "was trained on pairs" in bad.text if is_pair else "was trained on single texts" in bad.text
    assert "inputs[1] is" in among.json()["error"]


class Held:
    """A model whose worker can be held up."""

    def __init__(self, app):
        self.answering = next(iter(app.state.service.models.values()))
        self.go, self.begun, self.answer = threading.Event(), threading.Event(), self.answering.answer

    def __call__(self, texts):
        self.begun.set()
        self.go.wait(20)
        return self.answer(texts)


@pytest.fixture
def held(model):
    """An app whose model answers when it is let, with room for four texts in the queue."""
    app = create_app({"films": model}, limits=Limits(max_queue=4, max_texts=4, timeout=0.8, stall=0.3))
    hold = Held(app)
    hold.answering.answer = hold
    with running(app, wait=False):
        assert hold.begun.wait(10)
        yield app, hold
        hold.go.set()


def test_a_full_queue_is_429_a_late_answer_504_and_a_stuck_worker_unhealthy(held):
    app, hold = held
    bodies = [{"json": {"inputs": ["a joy"] * 2}} for _ in range(4)]
    answers = call(app, "POST", "/v1/classify", many=bodies)
    assert sorted(a.status_code for a in answers) == [429, 429, 504, 504]
    full = next(a for a in answers if a.status_code == 429)
    assert int(full.headers["retry-after"]) >= 1
    late = next(a for a in answers if a.status_code == 504)
    assert "longer than 0.8 s" in late.json()["error"]
    health, ready = call(app, "GET", "/healthz"), call(app, "GET", "/readyz")
    assert (health.status_code, ready.status_code) == (503, 503)
    assert "no sign" in health.json()["status"]
    hold.go.set()
    for _ in range(100):
        if call(app, "GET", "/readyz").status_code == 200:
            break
        asyncio.run(asyncio.sleep(0.05))
    assert call(app, "GET", "/healthz").status_code == 200
    assert ask(app, {"inputs": ["a joy"] * 4}).status_code == 200, "what was given up has left the queue"


def test_a_dead_worker_is_unhealthy(model):
    app = create_app({"films": model})
    with running(app):
        assert call(app, "GET", "/healthz").status_code == 200
        app.state.service.batchers["films"]._answer = lambda texts: exit()
        assert ask(app, {"inputs": "a joy"}).status_code == 503
        app.state.service.batchers["films"]._worker.join(10)
        dead = call(app, "GET", "/healthz")
        assert dead.status_code == 503
        assert "died" in dead.json()["status"]
        assert call(app, "GET", "/readyz").status_code == 503


# Key, logs, figures


def test_the_key_is_asked_for_before_the_body_is_read(model):
    with running(create_app({"films": model}, api_key="s3cret", limits=SMALL)) as app:
        refused = [
            ask(app, {"inputs": "x" * 300}),
            ask(app, {"inputs": "a"}, headers={"authorization": "Bearer wrong"}),
            ask(app, {"inputs": "a"}, headers={"authorization": "Basic s3cret"}),
            ask(app, {"inputs": "a"}, headers={"authorization": "s3cret"}),
            call(app, "GET", "/metrics"),
            call(app, "GET", "/v1/models"),
        ]
        allowed = ask(app, {"inputs": "a"}, headers={"authorization": "Bearer s3cret"})
        state = [call(app, "GET", path).status_code for path in ("/healthz", "/readyz")]
        shown = call(app, "GET", "/openapi.json").json()
    assert [a.status_code for a in refused] == [401] * 6
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert (allowed.status_code, state) == (200, [200, 200])
    assert shown["components"]["securitySchemes"]
    assert shown["paths"]["/v1/classify"]["post"]["security"]


def test_the_key_is_compared_in_constant_time(model, monkeypatch):
    import hmac

    seen = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: seen.append((a, b)) or real(a, b))
    with running(create_app({"films": model}, api_key="s3cret")) as app:
        ask(app, {"inputs": "a"}, headers={"authorization": "Bearer s3creT"})
    assert seen == [(b"s3creT", b"s3cret")]


@pytest.mark.parametrize("asked", [False, True])
def test_texts_are_in_the_log_only_if_asked(model, caplog, asked):
    caplog.set_level(logging.DEBUG)
    with running(create_app({"films": model}, log_texts=asked)) as app:
        ask(app, {"inputs": "secretword"})
        ask(app, {"inputs": ["secretword", 3]})
        ask(app, {"inputs": "a", "secretword": 3})
    assert "POST /v1/classify 200" in caplog.text
    assert ("secretword" in caplog.text) == asked


def test_figures_count_requests_texts_and_labels(model):
    with running(create_app({"films": model})) as app:
        labels = [r["label"] for r in ask(app, {"inputs": SENTENCES[:5]}).json()["results"]]
        ask(app, {"inputs": 3})
        call(app, "GET", "/nowhere")
        figures = call(app, "GET", "/metrics").text
    assert 'ebmcal_requests_total{path="/v1/classify",status="200"} 1.0' in figures
    assert 'ebmcal_requests_total{path="/v1/classify",status="422"} 1.0' in figures
    assert 'ebmcal_requests_total{path="other",status="404"} 1.0' in figures
    counted = {label: float(n) for label, n in re.findall(r'ebmcal_predicted_total{label="(\w+)".*} (\S+)', figures)}
    assert sum(counted.values()) == 6, "and the first text, which makes it ready"
    assert all(counted[label] >= labels.count(label) for label in labels)
    assert 'ebmcal_queue_texts{model="films"} 0.0' in figures


def test_errors_have_one_shape(model):
    with running(create_app({"films": model})) as app:
        answers = [call(app, "GET", "/nowhere"), call(app, "GET", "/v1/classify")]
    assert [a.status_code for a in answers] == [404, 405]
    assert all(set(json.loads(a.text)) == {"error"} for a in answers)


# The log of answers


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("asked", [False, True])
def test_the_log_has_every_answer_and_texts_only_if_asked(model, tmp_path, asked):
    path = tmp_path / "deep" / "log.jsonl"
    with running(create_app({"films": model}, log_texts=asked, log_file=path)) as app:
        results = ask(app, {"inputs": ["secretword a", {"text": "secretword", "text_pair": "b"}]}).json()["results"]
        ask(app, {"inputs": 3})
    with running(create_app({"films": model}, log_file=path)) as app:  # appended to
        results += ask(app, {"inputs": "the film"}).json()["results"]
    figures, rows = app.state.service.counters.text().decode(), read_rows(path)
    assert [row["id"] for row in rows] == [result["id"] for result in results]
    assert len({row["id"] for row in rows}) == 3
    assert ("secretword" in path.read_text()) == asked
    assert {row["weights"] for row in rows} == {model.weights}
    for row, result in zip(rows, results, strict=True):
        assert {name: row[f"prob_{name}"] for name in NAMES} == result["probabilities"]
        assert (row["predicted"], row["energy"]) == (result["label"], result["energy"])
        assert row["time"].endswith("+00:00")
    assert 'ebmcal_log_rows_total{outcome="written"} 1.0' in figures


def test_watch_reads_the_log(tmp_path):
    folder, path = save_classifier(tmp_path / "watched"), tmp_path / "log.jsonl"
    model = load(folder)
    with running(create_app({"watched": model}, log_file=path)) as app:
        results = ask(app, {"inputs": SENTENCES[:60]}).json()["results"]
    reference = model.predict(labelled(SENTENCES), label_column="label")
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{r['id']},{r['label']}\n" for r in results[:40]))
    seen = watch(folder, path, reference=reference, labels=tmp_path / "labels.csv")
    (window,) = seen.document["windows"]
    assert (window["n_rows"], window["labelled"]["accuracy"]["value"]) == (60, 1.0)
    other = load(save_classifier(tmp_path / "other", ("bad", "good", "fair")))
    other.folder.joinpath("model.safetensors").write_bytes(changed(folder))
    with pytest.raises(EbmcalError, match=r"another model.*weights are others"):
        watch(other.folder, path, reference=reference)


def changed(folder):
    content = (folder / "model.safetensors").read_bytes()
    return content[:-1] + bytes([content[-1] ^ 1])


def test_a_disk_that_fails_or_is_slow_costs_rows_and_no_answer(model, tmp_path, monkeypatch, caplog):
    path, go = tmp_path / "log.jsonl", threading.Event()
    app = create_app({"films": model}, log_file=path)
    writes = app.state.service.answer_log._append
    monkeypatch.setattr(app.state.service.answer_log, "_append", lambda lines: (go.wait(20), writes(lines)))
    monkeypatch.setattr("ebmcal.serve.answer_log.ROOM", 5)
    with running(app):
        answers = [ask(app, {"inputs": ["a joy"] * 3}) for _ in range(4)]
        figures = call(app, "GET", "/metrics").text
        go.set()
    assert [a.status_code for a in answers] == [200] * 4
    lost = float(re.search(r'ebmcal_log_rows_total{outcome="lost"} (\S+)', figures).group(1))
    assert lost >= 6
    assert len(read_rows(path)) == 12 - lost
    assert caplog.text.count("are lost") == 1
    monkeypatch.undo()
    (tmp_path / "gone.jsonl").mkdir()
    with running(create_app({"films": model}, log_file=path)) as app:
        app.state.service.answer_log.path = tmp_path / "gone.jsonl"  # now a folder
        assert ask(app, {"inputs": "a joy"}).status_code == 200
    assert "Is a directory" in caplog.text


def test_a_log_that_was_moved_away_is_begun_anew_and_half_a_line_is_cut_off(model, tmp_path):
    path = tmp_path / "log.jsonl"
    app = create_app({"films": model}, log_file=path)
    with running(app):
        ask(app, {"inputs": "a joy"})
        while not path.exists():
            threading.Event().wait(0.01)
        path.rename(tmp_path / "log.1.jsonl")
        ask(app, {"inputs": ["a joy", "the film"]})
    assert (len(read_rows(tmp_path / "log.1.jsonl")), len(read_rows(path))) == (1, 2)
    with open(path, "a") as handle:
        handle.write('{"time": "2026-')
    with running(create_app({"films": model}, log_file=path)) as app:
        ask(app, {"inputs": "a joy"})
    assert len(read_rows(path)) == 3


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("log.csv", None, "name it .jsonl"),
        ("mine.jsonl", '{"a": 1}\n', "no log of ebmcal serve"),
        (".", None, "folder"),
    ],
)
def test_a_log_that_is_none_is_refused_before_a_model_is_loaded(folder, tmp_path, name, content, words):
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(EbmcalError, match=words):
        serve(tmp_path / "no model", log_file=tmp_path / name, port=0)
    assert content is None or (tmp_path / name).read_text() == content
