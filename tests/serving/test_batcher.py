"""The queue and its worker: order, token budget, bounds, failures and shutdown. No torch, no HTTP."""

import threading
import time
from concurrent.futures import CancelledError

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.serving import Limits, batcher
from ebmcal.serving.batcher import Batcher, QueueFull, Stopped

WAIT = 10  # seconds after which a test fails


class Slow:
    """A model that answers when `go` is set, and remembers its batches. A token is a letter."""

    def __init__(self):
        self.go, self.started, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, texts):
        self.batches.append(list(texts))
        self.started.set()
        assert self.go.wait(WAIT)
        return [text.upper() for text in texts]


@pytest.fixture
def slow():
    model = Slow()
    yield model
    model.go.set()


def start(predict, encode=list, **limits):
    return Batcher(encode, predict, Limits(**limits))


def busy(slow, encode=list, **limits):
    """A batcher with its worker held in the first batch."""
    started = start(slow, encode, **limits)
    started.submit(["x"])
    assert slow.started.wait(WAIT)
    return started


def test_waiting_texts_are_batched_within_the_token_budget(slow):
    started = busy(slow, batch_tokens=6)
    requests = [["aa", "bb"], ["ccc"], ["dddddddd", "e"], ["f"]]
    futures = [started.submit(texts) for texts in requests]
    slow.go.set()
    assert [f.result(WAIT) for f in futures] == [[text.upper() for text in texts] for texts in requests]
    assert slow.batches == [["x"], ["aa", "bb"], ["ccc"], ["dddddddd"], ["e", "f"]]
    started.close()


def test_a_request_that_would_time_out_is_refused(slow):
    """A new batcher expects 50 texts per second, so five in a tenth of a second."""
    started = busy(slow, timeout=0.1)
    accepted = started.submit(["a"] * 4)
    with pytest.raises(QueueFull, match="4 texts are already waiting"):
        started.submit(["b"] * 2)
    time.sleep(0.1)
    slow.go.set()
    with pytest.raises(QueueFull):  # it has waited too long by now
        accepted.result(WAIT)
    assert started.submit(["c"]).result(WAIT) == ["C"]
    started.close()


def test_a_cancelled_request_is_neither_encoded_nor_computed(slow):
    encoded = []
    started = busy(slow, lambda texts: encoded.extend(texts) or list(texts), max_queue=2, max_texts=2)
    cancelled, kept = started.submit(["a"]), started.submit(["b"])
    assert cancelled.cancel()
    slow.go.set()
    assert kept.result(WAIT) == ["B"]
    with pytest.raises(CancelledError):
        cancelled.result(WAIT)
    assert (slow.batches, encoded) == ([["x"], ["b"]], ["x", "b"])
    assert started.n_waiting == 0
    started.close()


def test_texts_are_encoded_in_portions_and_only_when_needed(slow, monkeypatch):
    """A queue full of long texts must not be tokenised in one call, nor before its turn."""
    monkeypatch.setattr(batcher, "PORTION", 100)
    calls = []
    started = busy(slow, lambda texts: calls.append(list(texts)) or list(texts), batch_tokens=25, max_tokens=10**6)
    long, others = started.submit(["a" * 40] * 6), [started.submit(["b" * 30]) for _ in range(20)]
    n_before_the_first_batch = None

    def note(texts):
        nonlocal n_before_the_first_batch
        n_before_the_first_batch = n_before_the_first_batch or len(calls)
        return [text.upper() for text in texts]

    started._predict = note
    slow.go.set()
    assert long.result(WAIT) == ["A" * 40] * 6
    assert all(other.result(WAIT) == ["B" * 30] for other in others)
    assert max(sum(map(len, call)) for call in calls) <= 100
    assert n_before_the_first_batch == 2, "x, then two of the long texts; the others wait"
    assert ["b" * 30] * 3 in calls, "short requests share a call"
    started.close()


def test_a_cancelled_request_stops_being_encoded(slow, monkeypatch):
    monkeypatch.setattr(batcher, "PORTION", 10)
    calls, future = [], None

    def encode(texts):
        calls.append(list(texts))
        if future is not None:
            future.cancel()
        return list(texts)

    started = busy(slow, encode)
    future = started.submit(["a" * 10] * 50)
    slow.go.set()
    assert started.submit(["b"]).result(WAIT) == ["B"]
    assert len(calls) <= 3
    started.close()


@pytest.mark.parametrize("where", ["encode", "predict", "one text", "tokens"])
def test_a_failure_concerns_its_own_request_only(slow, where):
    def encode(texts):
        if where == "encode" and "bad" in texts:
            raise ValueError("no tokens")
        return list(texts)

    def predict(texts):
        if where == "predict" and "bad" in texts:
            raise ValueError("no result")
        return [EbmcalError("not this one") if text == "BAD" else text for text in slow(texts)]

    started = start(predict, encode, max_tokens=3 if where == "tokens" else 1000)
    started.submit(["x"])
    assert slow.started.wait(WAIT)
    good, bad, also_good = (started.submit(texts) for texts in (["a"], ["b", "bad"], ["c"]))
    slow.go.set()
    assert (good.result(WAIT), also_good.result(WAIT)) == (["A"], ["C"])
    with pytest.raises(ValueError, match=r"no tokens|no result|not this one|more than 3 tokens"):
        bad.result(WAIT)
    assert started.submit(["d"]).result(WAIT) == ["D"]
    assert started.problem() == ""
    started.close()


def test_closing_finishes_accepted_requests_and_refuses_new_ones(slow):
    started = start(slow)
    futures = [started.submit([f"t{i}"]) for i in range(20)]
    closer = threading.Thread(target=started.close)
    closer.start()
    while not started.is_closing:
        time.sleep(0.001)
    with pytest.raises(Stopped, match="shutting down"):
        started.submit(["late"])
    slow.go.set()
    closer.join(WAIT)
    assert [f.result(0) for f in futures] == [[f"T{i}"] for i in range(20)]


def test_a_dead_worker_is_reported_and_nobody_waits_for_it(slow):
    def die(texts):
        slow(texts)
        raise SystemExit

    started = start(die)
    first = started.submit(["x"])
    assert slow.started.wait(WAIT)
    waiting = started.submit(["y"])
    slow.go.set()
    for future in (first, waiting):
        with pytest.raises(Stopped, match="stopped before"):
            future.result(WAIT)
    started._worker.join(WAIT)
    with pytest.raises(Stopped, match="died"):
        started.submit(["z"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_body": 0, "timeout": 0.0}, r"max_body must be at least 1, got 0\. timeout must be at least 0.001"),
        ({"max_texts": 10, "max_queue": 9}, "max_queue must be at least 10, got 9"),
        ({"batch_wait": -1.0}, "batch_wait must be at least 0"),
        ({"max_buffered": 10}, "max_buffered must be at least 1000000"),
    ],
)
def test_limits_are_checked(settings, message):
    with pytest.raises(EbmcalError, match=message):
        Limits(**settings)
