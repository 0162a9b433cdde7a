"""The queue and its worker: order, budget, bounds, failures and the end. No torch, no HTTP."""

import threading
import time
from concurrent.futures import CancelledError

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.serve.batching import Batcher, QueueFull, Stopped, TooManyTokens
from ebmcal.serve.limits import Limits

WAIT = 10  # seconds after which a test fails


def rows(*texts):
    return [(text, None) for text in texts]


def letters(given):
    """A token for each letter."""
    return [text for text, _ in given]


class Slow:
    """Answers when it is let; keeps the batches it saw."""

    def __init__(self):
        self.go, self.begun, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, texts):
        self.batches.append(list(texts))
        self.begun.set()
        assert self.go.wait(WAIT)
        return [text.upper() for text in texts]


@pytest.fixture
def slow():
    found = Slow()
    yield found
    found.go.set()


def start(answer, **limits):
    return Batcher(letters, answer, Limits(**limits))


def test_answers_are_those_of_the_request_in_its_order():
    batcher = start(lambda texts: [text.upper() for text in texts])
    futures = [batcher.submit(rows(f"a{i}", f"b{i}")) for i in range(50)]
    assert [f.result(WAIT) for f in futures] == [[f"A{i}", f"B{i}"] for i in range(50)]
    assert batcher.close(WAIT)
    assert batcher.n_waiting == 0


def test_what_waits_is_put_together_under_the_token_budget(slow):
    batcher = start(slow, batch_tokens=6)
    first = batcher.submit(rows("x"))
    assert slow.begun.wait(WAIT)
    others = [batcher.submit(rows(*texts)) for texts in (("aa", "bb"), ("ccc",), ("dddddddd", "e"), ("f",))]
    slow.go.set()
    assert first.result(WAIT) == ["X"]
    assert [f.result(WAIT) for f in others] == [["AA", "BB"], ["CCC"], ["DDDDDDDD", "E"], ["F"]]
    assert slow.batches == [["x"], ["aa", "bb"], ["ccc"], ["dddddddd"], ["e", "f"]]
    batcher.close()


def test_a_full_queue_refuses_and_says_when_to_come_again(slow):
    batcher = start(slow, max_queue=3, max_texts=3)
    batcher.submit(rows("x"))
    assert slow.begun.wait(WAIT)
    kept = batcher.submit(rows("a", "b"))
    with pytest.raises(QueueFull, match="2 texts are waiting already") as caught:
        batcher.submit(rows("c", "d"))
    assert 1 <= caught.value.retry_after <= 60
    slow.go.set()
    assert kept.result(WAIT) == ["A", "B"]
    assert batcher.submit(rows("c", "d", "e")).result(WAIT) == ["C", "D", "E"]
    batcher.close()


def test_a_request_that_is_given_up_is_not_computed(slow):
    batcher = start(slow, max_queue=2, max_texts=2)
    batcher.submit(rows("x"))
    assert slow.begun.wait(WAIT)
    given_up, kept = batcher.submit(rows("a")), batcher.submit(rows("b"))
    assert given_up.cancel()
    slow.go.set()
    assert kept.result(WAIT) == ["B"]
    with pytest.raises(CancelledError):
        given_up.result(WAIT)
    assert slow.batches == [["x"], ["b"]]
    assert batcher.n_waiting == 0, "its place is free again"
    batcher.close()


def test_too_many_tokens_are_refused_and_others_go_on(slow):
    batcher = start(slow, max_tokens=4)
    slow.go.set()
    long, short = batcher.submit(rows("abc", "de")), batcher.submit(rows("abcd"))
    with pytest.raises(TooManyTokens, match="has 5 tokens; 4 are allowed"):
        long.result(WAIT)
    assert short.result(WAIT) == ["ABCD"]
    assert batcher.n_waiting == 0
    batcher.close()


@pytest.mark.parametrize("where", ["encode", "answer", "one"])
def test_a_failure_is_of_its_own_request_alone(slow, where):
    def encode(given):
        if where == "encode" and any(text == "bad" for text, _ in given):
            raise ValueError("no tokens")
        return letters(given)

    def answer(texts):
        if where == "answer" and "bad" in texts:
            raise ValueError("no answer")
        return [EbmcalError("not this one") if text == "BAD" else text for text in slow(texts)]

    batcher = Batcher(encode, answer)
    batcher.submit(rows("x"))
    assert slow.begun.wait(WAIT)
    good, bad, also = (batcher.submit(rows(*texts)) for texts in (("a",), ("b", "bad"), ("c",)))
    slow.go.set()
    assert (good.result(WAIT), also.result(WAIT)) == (["A"], ["C"])
    with pytest.raises(ValueError, match=r"no tokens|no answer|not this one"):
        bad.result(WAIT)
    assert batcher.submit(rows("d")).result(WAIT) == ["D"]
    assert batcher.trouble() == ""
    batcher.close()


def test_closing_finishes_what_was_accepted_and_takes_no_more(slow):
    batcher = start(slow)
    futures = [batcher.submit(rows(f"t{i}")) for i in range(20)]
    closer = threading.Thread(target=batcher.close)
    closer.start()
    while not batcher.is_closing:
        time.sleep(0.001)
    with pytest.raises(Stopped, match="closing"):
        batcher.submit(rows("late"))
    slow.go.set()
    closer.join(WAIT)
    assert [f.result(0) for f in futures] == [[f"T{i}"] for i in range(20)]


def test_a_dead_worker_is_seen_and_nobody_waits_for_it(slow):
    def die(texts):
        slow(texts)
        raise SystemExit

    batcher = start(die)
    first = batcher.submit(rows("x"))
    assert slow.begun.wait(WAIT)
    waiting = batcher.submit(rows("y"))
    slow.go.set()
    for future in (first, waiting):
        with pytest.raises(Stopped, match="ended before"):
            future.result(WAIT)
    batcher._worker.join(WAIT)
    assert "died" in batcher.trouble()
    with pytest.raises(Stopped, match="died"):
        batcher.submit(rows("z"))


def test_a_stuck_worker_is_seen_and_an_idle_one_is_not(slow):
    batcher = start(slow, stall=0.2)
    time.sleep(0.5)
    assert batcher.trouble() == "", "idle is not stuck"
    stuck = batcher.submit(rows("x"))
    assert slow.begun.wait(WAIT)
    time.sleep(0.4)
    assert "no sign" in batcher.trouble()
    slow.go.set()
    assert stuck.result(WAIT) == ["X"]
    time.sleep(0.1)
    assert batcher.trouble() == ""
    batcher.close()


def test_limits_are_checked_all_at_once():
    with pytest.raises(EbmcalError, match=r"max_body is 0.*timeout is 0"):
        Limits(max_body=0, timeout=0.0)
    with pytest.raises(EbmcalError, match="a whole request must fit"):
        Limits(max_texts=10, max_queue=9)
