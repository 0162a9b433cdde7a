"""The server over HTTP, in the process of the test: answers, limits, API key, health, metrics, logs."""

import asyncio
import hmac
import json
import logging
import re
import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

import torch
from server_tools import NAMES, call, classify, fit_rule, fitted_temperature, running, save_classifier

import ebmcal
from ebmcal import EbmcalError
from ebmcal.calibration import save_calibrator
from ebmcal.run_dir import update_card
from ebmcal.selective import read_rule
from ebmcal.serving import Limits, create_app
from tiny_models import SENTENCES


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = save_classifier(tmp_path_factory.mktemp("serving") / "films")
    save_calibrator(folder, fitted_temperature())
    return ebmcal.load(folder)


# Answers


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ("the film", ["the film"]),
        ({"text": "the film", "text_pair": "was dull"}, [("the film", "was dull")]),
        (
            ["the film", {"text": "the film", "text_pair": "was dull"}, {"text": "a joy", "text_pair": None}],
            ["the film", ("the film", "was dull"), "a joy"],  # in one batch
        ),
    ],
)
def test_answers_equal_predict(model, inputs, texts):
    with running(create_app({"films": model})) as app:
        body = classify(app, {"inputs": inputs}).json()
    assert body["model"] == "films"
    for text, result in zip(texts, body["results"], strict=True):
        expected, raw = model.predict([text]), model.predict([text], calibrated=False)
        assert result["label"] == expected.predicted_labels[0]
        assert list(result["probabilities"]) == list(NAMES)
        assert list(result["probabilities"].values()) == pytest.approx(expected.probs[0], abs=1e-5)
        assert result["confidence"] == pytest.approx(expected.confidence[0], abs=1e-5)
        assert list(result["logits"].values()) == pytest.approx(raw.logits[0], abs=1e-4)
        assert result["energy"] == pytest.approx(expected.energies[0], abs=1e-4)


def test_many_clients_at_once_get_their_own_answers(model):
    """In packed batches with texts of others, each text gets the numbers it gets alone."""
    texts = SENTENCES[:60]
    expected = model.predict(texts)
    with running(create_app({"films": model}, limits=Limits(batch_tokens=200))) as app:
        responses = call(app, "POST", "/v1/classify", many=[{"json": {"inputs": text}} for text in texts])
        metrics = call(app, "GET", "/metrics").text
    for response, probs in zip(responses, expected.probs, strict=True):
        assert list(response.json()["results"][0]["probabilities"].values()) == pytest.approx(probs, abs=1e-5)
    n_batches = float(re.search(r'ebmcal_batch_texts_count{model="films"} (\S+)', metrics).group(1))
    assert n_batches < 30


def test_long_texts_are_cut_before_they_are_tokenised_and_truncation_is_reported(model, monkeypatch):
    seen, tokenize = [], model.predictor.tokenize
    monkeypatch.setattr(type(model.predictor), "tokenize", lambda self, texts: seen.extend(texts) or tokenize(texts))
    texts = ["the film", "the film " * 5000, "a joy " * 9000, "the" + " " * 5000]
    with running(create_app({"films": model})) as app:
        results = classify(app, {"inputs": texts}).json()["results"]
    assert max(map(len, seen)) < 3000
    assert [r["confidence"] for r in results] == pytest.approx(model.predict(texts).confidence, abs=1e-5)
    assert [result["is_truncated"] for result in results] == [False, True, True, True]
    assert results[1]["n_tokens"] == model.max_length


def test_values_that_are_not_finite_are_an_error(tmp_path):
    broken = ebmcal.load(save_classifier(tmp_path / "broken"))
    with torch.no_grad():
        broken.predictor.classifier.encoder.classifier.bias += float("nan")
    with running(create_app({"broken": broken})) as app:
        response, ready = classify(app, {"inputs": "the film"}), call(app, "GET", "/readyz")
    assert response.status_code == 500
    assert "not finite" in response.json()["error"]
    assert ready.status_code == 503


def test_models_are_described(model, tmp_path):
    other = ebmcal.load(save_classifier(tmp_path / "plain"))
    with running(create_app({"films": model, "plain": other})) as app:
        films, plain = call(app, "GET", "/v1/models").json()["models"]
        named = classify(app, {"inputs": "a joy", "model": "plain"}).json()
        unknown = classify(app, {"inputs": "a joy", "model": "plan"})
        endless = classify(app, {"inputs": "a joy", "model": "x" * 100_000})
    assert (films["name"], films["labels"], films["calibrator"]) == ("films", list(NAMES), "temperature")
    assert (plain["calibrator"], plain["energy"], plain["is_energy_trained"]) == (None, "hidden", False)
    probs = list(named["results"][0]["probabilities"].values())
    assert probs == pytest.approx(other.predict(["a joy"]).probs[0], abs=1e-5)
    assert unknown.status_code == 404
    assert "Did you mean 'plain'" in unknown.json()["error"]
    assert len(endless.text) < 200


def test_only_methods_that_train_the_energy_are_energy_trained(tmp_path):
    folder, found = save_classifier(tmp_path / "model"), {}
    for method in ("hidden", "hidden-entropy", "baseline", "noise-entropy"):
        update_card(folder, method=method, seed=1, energy="hidden")
        app = create_app({"m": ebmcal.load(folder)})
        found[method] = call(app, "GET", "/v1/models").json()["models"][0]["is_energy_trained"]
    assert found == {"hidden": True, "hidden-entropy": True, "baseline": False, "noise-entropy": False}


@pytest.mark.parametrize("score", ["energy", "knn"])
def test_the_abstention_rule_of_the_model_decides(tmp_path, score):
    folder = save_classifier(tmp_path / "ruled")
    save_calibrator(folder, fitted_temperature())
    training = {"training": [f"a new {text}" for text in SENTENCES]} if score == "knn" else {}
    model = fit_rule(folder, max_error=0.4, coverage=0.8, ood=0.2, ood_score=score, **training)
    predictions = model.predict(SENTENCES)
    expected = read_rule(folder).apply(predictions)
    with running(create_app({"ruled": model})) as app:
        results = classify(app, {"inputs": SENTENCES}).json()["results"]
        described = call(app, "GET", "/v1/models").json()["models"][0]
        metrics = call(app, "GET", "/metrics").text
    assert any("Guarantee" in line for line in described["abstention"])
    columns = expected.columns()
    for name in ("decision", "is_ood", "label_set"):
        assert [r[name] for r in results] == columns[name], name
    assert [bool(r["reason"]) for r in results] == [d == "abstain" for d in columns["decision"]]
    for name, values in (("score", expected.score), ("ood_score", expected.ood_score)):
        assert [r[name] for r in results] == pytest.approx(values, abs=1e-4), name
    assert [r["ood_p_value"] for r in results] == pytest.approx(expected.p_values, abs=0.02)
    n_ood = float(re.search(r"ebmcal_out_of_distribution_total{.*} (\S+)", metrics).group(1))
    assert sum(columns["is_ood"]) <= n_ood <= sum(columns["is_ood"]) + 1, "perhaps the first text too"


def test_a_rule_for_another_calibrator_is_refused_before_serving(tmp_path):
    folder = save_classifier(tmp_path / "ruled")
    fit_rule(folder, ood=0.2, ood_score="energy")
    update_card(folder, calibrator=fitted_temperature().to_json())
    with pytest.raises(EbmcalError, match="another calibrator"):
        create_app({"ruled": ebmcal.load(folder)})


# Limits and invalid requests

SMALL = Limits(max_body=200, max_texts=3, max_characters=20, max_tokens=12)


@pytest.fixture(scope="module")
def small(model):
    with running(create_app({"films": model}, limits=SMALL)) as app:
        yield app


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": "x" * 300}, 413, "larger than 200 bytes"),
        ({"inputs": ["a"] * 4}, 422, "inputs: List should have at most 3 items"),
        ({"inputs": "x" * 21}, 422, "inputs: String should have at most 20 characters"),
        ({"inputs": ["a joy a joy a", "a joy a joy a"]}, 422, "more than 12 tokens"),
        ({"inputs": []}, 422, "inputs: List should have at least 1 item"),
        ({"inputs": 3}, 422, "inputs: Input should be a valid string"),
        ({"inputs": None}, 422, "inputs: Input should be a valid string"),
        ({"texts": "a"}, 422, "inputs: Field required"),
        ({"inputs": "a", "temperature": 2}, 422, "The body: Unknown field"),
        ({"inputs": "a", "<b>": 2}, 422, "The body: Unknown field"),
        ({"inputs": {"text": "a", "pair": "b"}}, 422, "inputs: Unknown field"),
        (["a"], 422, "The body: Input should be"),
        ({}, 422, "inputs: Field required"),
        ({"inputs": {"text_pair": "a"}}, 422, "inputs.text: Field required"),
        ({"inputs": ["a", True]}, 422, "inputs[1]: Input should be a valid string"),
        ({"inputs": [{"text": 1}]}, 422, "inputs[0].text: Input should be a valid string"),
        ({"inputs": "a", "model": 3}, 422, "model: Input should be a valid string"),
        ({"inputs": ["a", " "]}, 422, "inputs[1]: The text is empty"),
    ],
)
def test_invalid_requests_are_refused_with_the_reason(small, body, status, message):
    response = classify(small, body)
    assert (response.status_code, message in response.json()["error"]) == (status, True), response.text


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b'{"inputs": "a"', "application/json", 422),
        (b'{"inputs": "\xff"}', "application/json", 422),
        (b'{"inputs": "\\ud800"}', "application/json", 422),
        (b'\xef\xbb\xbf{"inputs": "a"}', "application/json", 422),
        (b"", "application/json", 422),
        (b"[" * 150, "application/json", 422),
        (b'{"inputs": "a"}', "text/plain", 415),
    ],
)
def test_bytes_that_are_not_json_are_refused(small, content, media_type, status):
    response = call(small, "POST", "/v1/classify", content=content, headers={"content-type": media_type})
    after = classify(small, {"inputs": "a joy"})
    assert (response.status_code, after.status_code) == (status, 200)
    assert set(response.json()) == {"error"}


def test_rare_characters_are_accepted_and_empty_texts_refused(model):
    with running(create_app({"films": model})) as app:
        rare = classify(app, {"inputs": ["😀" * 5, "\u202e", "\ufffe", "[SEP] [MASK]"]}).json()["results"]
        empty = ["", " ", "\x00", "\n\t", "\u2003", "\x1f", "\ufeff"]
        forms = [form for text in empty for form in (text, ["a joy", text], {"text": "a", "text_pair": text})]
        refused = [classify(app, {"inputs": form}) for form in forms]
    assert [sum(result["probabilities"].values()) for result in rare] == pytest.approx([1] * 4)
    assert {response.status_code for response in refused} == {422}
    assert all("empty" in response.json()["error"] for response in refused)


@pytest.mark.parametrize("is_pair", [False, True])
def test_pairs_and_single_texts_are_not_confused(tmp_path, is_pair):
    folder = save_classifier(tmp_path / "kind")
    update_card(folder, is_pair=is_pair)
    single, pair = "the film", {"text": "the film", "text_pair": "was dull"}
    good, bad = (pair, single) if is_pair else (single, pair)
    with running(create_app({"kind": ebmcal.load(folder)})) as app:
        responses = [classify(app, {"inputs": inputs}) for inputs in (good, bad, [good, bad])]
        described = call(app, "GET", "/v1/models").json()["models"][0]
        ready = call(app, "GET", "/readyz").status_code
    assert [response.status_code for response in responses] == [200, 422, 422]
    assert (described["is_pair"], ready) == (is_pair, 200)
    assert f"trained on {'pairs' if is_pair else 'single texts'}" in responses[1].json()["error"]
    assert responses[2].json()["error"].startswith("inputs[1] is")


def test_bodies_in_memory_are_limited(model):
    limits = Limits(max_body=1000, max_buffered=1500)
    app = create_app({"films": model}, limits=limits)
    finish = asyncio.Event()

    async def slow_body():
        yield b" " * 900
        await finish.wait()

    async def send():
        import httpx2

        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"content-type": "application/json"}
            slow = asyncio.create_task(client.post("/v1/classify", content=slow_body(), headers=headers))
            await asyncio.sleep(0.2)
            refused = await client.post("/v1/classify", json={"inputs": "a" * 700})
            finish.set()
            await slow
            return refused, await client.post("/v1/classify", json={"inputs": "a" * 700})

    with running(app):
        refused, accepted = asyncio.run(send())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert accepted.status_code == 200


# Overload and failures


class Held:
    """Holds up the worker of an app."""

    def __init__(self, app):
        self.engine = next(iter(app.state.service.engines.values()))
        self.go, self.started, self.answer = threading.Event(), threading.Event(), self.engine.answer
        self.n_texts, self.engine.answer = 0, self

    def __call__(self, texts):
        self.started.set()
        self.go.wait(20)
        self.n_texts += len(texts)
        return self.answer(texts)


@pytest.fixture
def held(model):
    """An app with a held model, with room for four texts in the queue."""
    app = create_app({"films": model}, limits=Limits(max_queue=4, max_texts=4, timeout=0.8, stall=0.3))
    hold = Held(app)
    with running(app, wait=False):
        assert hold.started.wait(10)
        yield app, hold
        hold.go.set()


def until(condition, seconds=10):
    for _ in range(20 * seconds):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it took too long")


def test_a_full_queue_is_429_a_late_answer_504_and_a_stuck_worker_unhealthy(held):
    app, hold = held
    responses = call(app, "POST", "/v1/classify", many=[{"json": {"inputs": ["a joy"] * 2}} for _ in range(4)])
    assert sorted(r.status_code for r in responses) == [429, 429, 504, 504]
    full, late = (next(r for r in responses if r.status_code == status) for status in (429, 504))
    assert int(full.headers["retry-after"]) >= 1
    assert "longer than 0.8 s" in late.json()["error"]
    health, ready = call(app, "GET", "/healthz"), call(app, "GET", "/readyz")
    assert (health.status_code, ready.status_code) == (503, 503)
    assert "stuck" in health.json()["status"]
    hold.go.set()
    until(lambda: call(app, "GET", "/readyz").status_code == 200)
    assert call(app, "GET", "/healthz").status_code == 200
    assert classify(app, {"inputs": ["a joy"] * 4}).status_code == 200, "dropped requests left the queue"


def test_requests_of_disconnected_clients_are_dropped(model):
    app = create_app({"films": model})
    hold = Held(app)

    async def disconnect_early():
        body = json.dumps({"inputs": ["a joy"] * 50}).encode()
        messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/classify", "raw_path": b"/v1/classify", "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": "", "state": {},
        }  # fmt: skip

        async def receive():
            return messages.pop(0)

        async def send(message):
            pass

        await asyncio.wait_for(app(scope, receive, send), 10)

    with running(app, wait=False):
        assert hold.started.wait(10)
        asyncio.run(disconnect_early())
        hold.go.set()
        assert classify(app, {"inputs": "a joy"}).status_code == 200
        metrics = call(app, "GET", "/metrics").text
    assert hold.n_texts == 2, "the first text and the last one"
    assert 'ebmcal_requests_total{path="/v1/classify",status="499"} 1.0' in metrics


def test_a_dead_worker_is_unhealthy(model):
    app = create_app({"films": model})
    with running(app):
        assert call(app, "GET", "/healthz").status_code == 200
        app.state.service.batchers["films"]._predict = lambda texts: exit()
        assert classify(app, {"inputs": "a joy"}).status_code == 503
        app.state.service.batchers["films"]._worker.join(10)
        dead = call(app, "GET", "/healthz")
        assert (dead.status_code, "died" in dead.json()["status"]) == (503, True)
        assert call(app, "GET", "/readyz").status_code == 503


# API key


def test_the_key_is_checked_before_the_body_is_read(model):
    with running(create_app({"films": model}, api_key="s3cret", limits=SMALL)) as app:
        refused = [
            classify(app, {"inputs": "x" * 300}),
            classify(app, {"inputs": "a"}, headers={"authorization": "Bearer wrong"}),
            classify(app, {"inputs": "a"}, headers={"authorization": "Basic s3cret"}),
            classify(app, {"inputs": "a"}, headers={"authorization": "s3cret"}),
            *(call(app, "GET", path) for path in ("/metrics", "/v1/models", "/openapi.json")),
        ]
        key = {"authorization": "Bearer s3cret"}
        allowed = classify(app, {"inputs": "a"}, headers=key)
        public = [call(app, "GET", path).status_code for path in ("/healthz", "/readyz")]
        document = call(app, "GET", "/openapi.json", headers=key).json()
    assert [response.status_code for response in refused] == [401] * 7
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert (allowed.status_code, public) == (200, [200, 200])
    assert document["components"]["securitySchemes"]
    assert document["paths"]["/v1/classify"]["post"]["security"]


@pytest.mark.parametrize(
    ("key", "sent", "status"),
    [
        ("schlüssel", "schlüssel".encode(), 200),
        ("schlüssel", "schlüssel".encode("latin-1"), 200),
        ("schlüssel", b"schl\xc3ssel", 401),
        ("ключ", "ключ".encode(), 200),
        ("ключ", b"????", 401),
        ("key", "schlüssel".encode(), 401),
    ],
)
def test_keys_that_are_not_ascii(model, key, sent, status):
    with running(create_app({"films": model}, api_key=key)) as app:
        response = classify(app, {"inputs": "a"}, headers=[(b"authorization", b"Bearer " + sent)])
    assert response.status_code == status


def test_the_key_is_compared_in_constant_time(model, monkeypatch):
    seen, compare = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: seen.append((a, b)) or compare(a, b))
    with running(create_app({"films": model}, api_key="s3cret")) as app:
        classify(app, {"inputs": "a"}, headers={"authorization": "Bearer s3creT"})
    assert seen == [(b"s3creT", b"s3cret")]


# Logs and metrics


@pytest.mark.parametrize("log_texts", [False, True])
def test_texts_are_logged_only_on_request(model, caplog, log_texts):
    caplog.set_level(logging.DEBUG)
    with running(create_app({"films": model}, log_texts=log_texts)) as app:
        classify(app, {"inputs": "secretword"})
        classify(app, {"inputs": ["secretword", 3]})
        classify(app, {"inputs": "a", "secretword": 3})
    assert "POST /v1/classify 200" in caplog.text
    assert ("secretword" in caplog.text) == log_texts


def test_metrics_count_requests_texts_and_labels(model):
    with running(create_app({"films": model})) as app:
        labels = [r["label"] for r in classify(app, {"inputs": SENTENCES[:5]}).json()["results"]]
        classify(app, {"inputs": 3})
        responses = [call(app, "GET", "/nowhere"), call(app, "GET", "/v1/classify")]
        metrics = call(app, "GET", "/metrics").text
    assert 'ebmcal_requests_total{path="/v1/classify",status="200"} 1.0' in metrics
    assert 'ebmcal_requests_total{path="/v1/classify",status="422"} 1.0' in metrics
    assert 'ebmcal_requests_total{path="other",status="404"} 1.0' in metrics
    counted = {label: float(n) for label, n in re.findall(r'ebmcal_predicted_total{label="(\w+)".*} (\S+)', metrics)}
    assert sum(counted.values()) == 6, "with the first text, which makes the model ready"
    assert all(counted[label] >= labels.count(label) for label in labels)
    assert 'ebmcal_queue_texts{model="films"} 0.0' in metrics
    assert [r.status_code for r in responses] == [404, 405]
    assert all(set(r.json()) == {"error"} for r in responses)
