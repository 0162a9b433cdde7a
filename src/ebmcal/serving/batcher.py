"""Dynamic batching: a bounded queue of requests and one worker thread, the only user of the model.

The worker takes texts in order of arrival until the token budget of a batch is full; a long request may span several
batches. Texts are tokenised shortly before they are needed, a bounded number of characters per call, and requests that
were cancelled are dropped at every step. A lone client never waits: only if the previous batch held several requests
does the worker wait up to `batch_wait` seconds for the next one to fill.

The batcher knows neither HTTP nor torch: `encode` turns texts into tokens, `predict` turns tokens into results.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.serving.limits import Limits

log = logging.getLogger("ebmcal.serving")

#: A text, or a pair of texts.
Text = str | tuple[str, str]

#: Characters that one call of `encode` gets at most (at least one text): bounds memory and time between two checks.
PORTION = 65_536

#: A rough number of characters per token, to decide when enough texts are waiting or encoded for a batch.
CHARACTERS_PER_TOKEN = 4


class QueueFull(EbmcalError):
    """There is no room for a request now."""

    def __init__(self, n_waiting: int, retry_after: int) -> None:
        super().__init__(f"{n_waiting} texts are already waiting. Try again in {retry_after} s.")
        self.retry_after = retry_after


class TooManyTokens(EbmcalError):
    """A request exceeds the token limit."""


class Stopped(EbmcalError):
    """The worker accepts nothing: the server is shutting down, or the worker died."""


@dataclass(eq=False)
class _Request:
    texts: Sequence[Text]
    future: "Future[list[Any]]" = field(default_factory=Future)
    tokens: list[Any] = field(default_factory=list)  # of the first texts; complete before the first one is batched
    results: list[Any] = field(default_factory=list)
    n_taken: int = 0  # texts that are in a batch, or were

    @property
    def is_open(self) -> bool:
        return not self.future.done()

    @property
    def is_encoded(self) -> bool:
        return len(self.tokens) == len(self.texts)


@dataclass(frozen=True)
class BatchStats:
    """A finished batch, for metrics."""

    n_tokens: int
    seconds: float
    results: list[Any]


class Batcher:
    """Queue and worker of one model: `submit` from any thread, `close` at the end.

    >>> batcher = Batcher(list, lambda texts: [text.upper() for text in texts])
    >>> batcher.submit(["a", "b"]).result()
    ['A', 'B']
    >>> batcher.close()
    True
    """

    def __init__(
        self,
        encode: Callable[[Sequence[Text]], Sequence[Any]],
        predict: Callable[[Sequence[Any]], Sequence[Any]],
        limits: Limits | None = None,
        on_batch: Callable[[BatchStats], None] = lambda stats: None,
        name: str = "model",
    ) -> None:
        self._encode, self._predict, self._on_batch = encode, predict, on_batch
        self.limits = limits or Limits()
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._is_shared = False  # whether the previous batch held several requests
        self._rate = 50.0  # texts per second, moving average
        self._alive_at = time.monotonic()
        self.n_waiting = 0  # texts
        self._worker = threading.Thread(target=self._work, name=f"batcher {name}", daemon=True)
        self._worker.start()

    def submit(self, texts: Sequence[Text]) -> "Future[list[Any]]":
        """Queue a request; the future returns one result per text. Cancelling the future drops the request."""
        with self._changed:
            if self._closing or not self._worker.is_alive():
                raise Stopped("The server is shutting down." if self._closing else self.problem())
            if self.n_waiting + len(texts) > self.limits.max_queue:
                raise QueueFull(self.n_waiting, self._retry_after())
            request = _Request(texts)
            self._waiting.append(request)
            self.n_waiting += len(texts)
            self._changed.notify()
        return request.future

    def problem(self) -> str:
        """What is wrong with the worker; empty if nothing is."""
        if not self._worker.is_alive():
            return "The worker has stopped." if self._closing else "The worker died. Restart the server."
        silent = time.monotonic() - self._alive_at
        return f"The worker has been stuck for {silent:.0f} s. Restart the server." * (silent > self.limits.stall)

    @property
    def is_closing(self) -> bool:
        return self._closing

    def close(self, timeout: float | None = None) -> bool:
        """Finish the accepted requests and end the worker; False if it did not end in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._worker.join(timeout)
        return not self._worker.is_alive()

    def _retry_after(self) -> int:
        return max(1, min(60, math.ceil(self.n_waiting / self._rate)))

    # Everything below runs in the worker thread.

    def _work(self) -> None:
        batch: list[tuple[_Request, int]] = []
        try:
            while self._wait_for_texts():
                self._alive_at = time.monotonic()
                self._encode_next()
                batch = self._take_batch()
                if batch:
                    self._run(batch)
        except BaseException as error:  # of the worker itself, not of a batch: it ends, and /healthz fails
            log.critical("the worker died: %s", type(error).__name__)
        finally:
            with self._changed:
                left, self._waiting, self.n_waiting = list(self._waiting), deque(), 0
            for request in [*(request for request, _ in batch), *left]:
                _fail(request, Stopped("The worker stopped before it reached this request."))

    def _wait_for_texts(self) -> bool:
        """Wait for work, at most a second at a time so that an idle worker shows progress; False when all is done."""
        with self._changed:
            if not self._waiting and not self._closing:
                self._changed.wait(min(1.0, self.limits.stall / 4))
            if self._waiting and self._is_shared and not self._closing and self.limits.batch_wait:
                self._changed.wait_for(self._is_enough, self.limits.batch_wait)
            return bool(self._waiting) or not self._closing

    def _is_enough(self) -> bool:
        """Whether the waiting texts fill a batch, estimated by their characters."""
        enough, n_seen = CHARACTERS_PER_TOKEN * self.limits.batch_tokens, 0
        for request in self._waiting:
            n_seen += n_characters(request.texts[request.n_taken :])
            if n_seen >= enough:
                return True
        return self._closing

    def _encode_next(self) -> None:
        """Tokenise requests from the front of the queue, in portions, until about two batches are ready."""
        n_tokens, portion, n_portion = 0, list[_Request](), 0
        with self._changed:
            waiting = [request for request in self._waiting if request.is_open]
        for request in waiting:
            if n_tokens >= 2 * self.limits.batch_tokens:
                break
            if request.is_encoded:
                n_tokens += sum(map(len, request.tokens[request.n_taken :]))
                continue
            size = n_characters(request.texts)
            n_tokens += size // CHARACTERS_PER_TOKEN
            if n_portion + size > PORTION:
                self._encode_portion(portion)
                portion, n_portion = [], 0
            portion.append(request)
            n_portion += size
        self._encode_portion(portion)

    def _encode_portion(self, requests: list[_Request]) -> None:
        """Tokenise small requests in one call, a large one alone in several calls."""
        requests = [request for request in requests if request.is_open]
        if len(requests) == 1:
            return self._encode_alone(requests[0])
        try:
            tokens = list(self._encode([text for request in requests for text in request.texts])) if requests else []
        except Exception:  # one at a time, so that the others are encoded
            for request in requests:
                self._encode_alone(request)
            return None
        for request in requests:
            request.tokens, tokens = tokens[: len(request.texts)], tokens[len(request.texts) :]
            self._check_tokens(request)
        return None

    def _encode_alone(self, request: _Request) -> None:
        try:
            while request.is_open and not request.is_encoded:
                self._alive_at = time.monotonic()
                request.tokens += self._encode(_first_portion(request.texts[len(request.tokens) :]))
                self._check_tokens(request)
        except Exception as error:
            _fail(request, error)

    def _check_tokens(self, request: _Request) -> None:
        total, limit = sum(map(len, request.tokens)), self.limits.max_tokens
        if total > limit:
            count = f"{total} tokens" if request.is_encoded else f"more than {limit} tokens"
            _fail(request, TooManyTokens(f"The request has {count}; at most {limit} are allowed. Split it."))

    def _take_batch(self) -> list[tuple[_Request, int]]:
        """The next texts within the token budget, at least one, as (request, index of the text)."""
        batch: list[tuple[_Request, int]] = []
        n_tokens = 0
        with self._changed:
            while self._waiting:
                request = self._waiting[0]
                if request.is_open and not request.is_encoded:
                    break  # arrived after the others were tokenised
                while request.is_open and request.n_taken < len(request.texts):
                    length = len(request.tokens[request.n_taken])
                    if batch and n_tokens + length > self.limits.batch_tokens:
                        return batch
                    batch.append((request, request.n_taken))
                    n_tokens += length
                    request.n_taken += 1
                    self.n_waiting -= 1
                self.n_waiting -= len(request.texts) - request.n_taken  # of a dropped request
                self._waiting.popleft()
        return batch

    def _run(self, batch: list[tuple[_Request, int]]) -> None:
        start = time.monotonic()
        requests = list(dict.fromkeys(request for request, _ in batch))
        self._is_shared = len(requests) > 1
        tokens = [request.tokens[i] for request, i in batch]
        try:
            results = list(self._predict(tokens))
        except Exception as error:
            if len(requests) == 1:
                return _fail(requests[0], error)
            for request in requests:  # one at a time, so that the others get their results
                self._alive_at = time.monotonic()
                self._run([item for item in batch if item[0] is request])
            return None
        seconds = time.monotonic() - start
        self._rate += 0.2 * (len(batch) / max(seconds, 1e-6) - self._rate)
        self._on_batch(BatchStats(sum(map(len, tokens)), seconds, results))
        for (request, _), result in zip(batch, results, strict=True):
            _add(request, result)
        return None


def n_characters(texts: Sequence[Text]) -> int:
    """The number of characters of all texts."""
    return sum(len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts)


def _first_portion(texts: Sequence[Text]) -> Sequence[Text]:
    """The first text and those after it that keep within `PORTION` characters."""
    total, n_texts = n_characters(texts[:1]), 1
    while n_texts < len(texts) and (total := total + n_characters([texts[n_texts]])) <= PORTION:
        n_texts += 1
    return texts[:n_texts]


def _add(request: _Request, result: Any) -> None:
    """Add a result to its request; an exception in place of a result fails this request only."""
    if isinstance(result, Exception):
        return _fail(request, result)
    request.results.append(result)
    if len(request.results) == len(request.texts) and request.future.set_running_or_notify_cancel():
        request.future.set_result(request.results)
    return None


def _fail(request: _Request, error: Exception) -> None:
    if request.is_open and request.future.set_running_or_notify_cancel():
        request.future.set_exception(error)
