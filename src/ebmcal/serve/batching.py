"""Texts of many requests in packed batches: a bounded queue and one worker thread, which alone uses the model.

The worker takes what waits, first come first served, as many texts as fit into the token budget; a long request may
fill several batches. It does not wait for company at one client: only where the batch before held several requests
does it give the next one `batch_wait` seconds to fill.

The batcher knows neither HTTP nor torch: `encode` turns rows into tokens, `answer` turns tokens into answers.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from ebmcal.errors import EbmcalError
from ebmcal.serve.limits import Limits

log = logging.getLogger("ebmcal.serve")

Row = tuple[str, str | None]


class Tokens(Protocol):
    """A text as the model reads it: all that the batcher asks is how long it is."""

    def __len__(self) -> int: ...


class QueueFull(EbmcalError):
    """There is no room for a request now."""

    def __init__(self, n_waiting: int, retry_after: int) -> None:
        super().__init__(f"{n_waiting} texts are waiting already. Try again in {retry_after} s.")
        self.retry_after = retry_after


class TooManyTokens(EbmcalError):
    """A request is longer than the limit."""


class Stopped(EbmcalError):
    """The worker takes nothing any more: the server is closing, or the worker has died."""


@dataclass(eq=False)
class _Request:
    rows: Sequence[Row]
    future: "Future[list[Any]]" = field(default_factory=Future)
    tokens: list[Tokens] | None = None
    answers: list[Any] = field(default_factory=list)
    n_taken: int = 0  # texts that are in a batch, or were

    @property
    def is_open(self) -> bool:
        return not self.future.done()


@dataclass(frozen=True)
class BatchFacts:
    """What a finished batch was, for whoever counts."""

    n_texts: int
    n_tokens: int
    seconds: float
    answers: list[Any]


class Batcher:
    """The queue and the worker of one model; `submit` from any thread, `close` at the end.

    >>> upper = Batcher(lambda rows: [text for text, _ in rows], lambda texts: [text.upper() for text in texts])
    >>> upper.submit([("a", None), ("b", None)]).result()
    ['A', 'B']
    >>> upper.close()
    True
    """

    def __init__(
        self,
        encode: Callable[[Sequence[Row]], Sequence[Tokens]],
        answer: Callable[[Sequence[Any]], Sequence[Any]],
        limits: Limits | None = None,
        seen: Callable[[BatchFacts], None] = lambda facts: None,
        name: str = "model",
    ) -> None:
        self._encode, self._answer, self._seen = encode, answer, seen
        self.limits = limits or Limits()
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._has_company = False
        self._rate = 50.0  # texts a second, as lately seen
        self._beat = time.monotonic()
        self.n_waiting = 0  # texts
        self._worker = threading.Thread(target=self._work, name=f"worker of {name}", daemon=True)
        self._worker.start()

    def submit(self, rows: Sequence[Row]) -> "Future[list[Any]]":
        """Enter a request; its future has one answer for each row. Cancel the future to give the request up."""
        with self._changed:
            if self._closing or not self._worker.is_alive():
                raise Stopped("The server is closing and takes no more texts." if self._closing else self.trouble())
            if self.n_waiting + len(rows) > self.limits.max_queue:
                raise QueueFull(self.n_waiting, self._retry_after())
            request = _Request(rows)
            self._waiting.append(request)
            self.n_waiting += len(rows)
            self._changed.notify()
        return request.future

    def trouble(self) -> str:
        """Why the worker is not well, or an empty string."""
        if not self._worker.is_alive():
            return "The worker has ended." if self._closing else "The worker died. Start the server again."
        silent = time.monotonic() - self._beat
        if silent > self.limits.stall:
            return f"The worker has given no sign for {silent:.0f} s. Start the server again."
        return ""

    @property
    def is_closing(self) -> bool:
        return self._closing

    def close(self, timeout: float | None = None) -> bool:
        """Finish what was accepted and end the worker; False if it did not end in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._worker.join(timeout)
        return not self._worker.is_alive()

    def _retry_after(self) -> int:
        return max(1, min(60, math.ceil(self.n_waiting / self._rate)))

    # What follows is the worker's

    def _work(self) -> None:
        batch: list[tuple[_Request, int]] = []
        try:
            while True:
                self._beat = time.monotonic()
                if not self._wait_for_texts():
                    return
                self._encode_new()
                batch = self._take()
                if batch:
                    self._finish(batch)
        except BaseException as error:  # of the worker itself, not of a batch: it ends, and /healthz says so
            log.critical("the worker died: %s", type(error).__name__)
        finally:  # nobody shall wait for it
            with self._changed:
                left, self._waiting, self.n_waiting = list(self._waiting), deque(), 0
            for request in [*(request for request, _ in batch), *left]:
                _fail(request, Stopped("The worker ended before it came to this request."))

    def _wait_for_texts(self) -> bool:
        """Wait until there is work, a short while at a time: each is a sign of life. False when all is done."""
        with self._changed:
            if not self._waiting and not self._closing:
                self._changed.wait(min(1.0, self.limits.stall / 4))
            if self._waiting and self._has_company and not self._closing and self.limits.batch_wait:
                self._changed.wait_for(self._is_plenty, self.limits.batch_wait)
            return bool(self._waiting) or not self._closing

    def _is_plenty(self) -> bool:
        """Whether a batch is full, by some four characters to a token."""
        n_characters = sum(len(text) + len(pair or "") for r in self._waiting for text, pair in r.rows[r.n_taken :])
        return self._closing or n_characters >= 4 * self.limits.batch_tokens

    def _encode_new(self) -> None:
        """Tokenise what has come since, in one call; a request that is too long is refused."""
        with self._changed:
            new = [request for request in self._waiting if request.tokens is None and request.is_open]
        if not new:
            return
        try:
            tokens = list(self._encode([row for request in new for row in request.rows]))
        except Exception as error:
            if len(new) == 1:
                return _fail(new[0], error)
            for request in new:  # one at a time, so that the others do not suffer
                self._encode_one(request)
            return None
        for request in new:
            request.tokens, tokens = tokens[: len(request.rows)], tokens[len(request.rows) :]
            self._check_length(request)

    def _encode_one(self, request: _Request) -> None:
        try:
            request.tokens = list(self._encode(request.rows))
        except Exception as error:
            return _fail(request, error)
        self._check_length(request)

    def _check_length(self, request: _Request) -> None:
        total = sum(map(len, request.tokens or ()))
        if total > self.limits.max_tokens:
            most = self.limits.max_tokens
            _fail(request, TooManyTokens(f"The request has {total} tokens; {most} are allowed. Send it in parts."))

    def _take(self) -> list[tuple[_Request, int]]:
        """The next texts that fit into the budget, one at least, as (request, number of the text in it)."""
        batch: list[tuple[_Request, int]] = []
        n_tokens = 0
        with self._changed:
            while self._waiting:
                request = self._waiting[0]
                if request.is_open and request.tokens is None:
                    break  # came after the others were tokenised
                while request.is_open and request.tokens is not None and request.n_taken < len(request.rows):
                    length = len(request.tokens[request.n_taken])
                    if batch and n_tokens + length > self.limits.batch_tokens:
                        return batch
                    batch.append((request, request.n_taken))
                    n_tokens += length
                    request.n_taken += 1
                    self.n_waiting -= 1
                self.n_waiting -= len(request.rows) - request.n_taken  # of one that was given up
                self._waiting.popleft()
        return batch

    def _finish(self, batch: list[tuple[_Request, int]]) -> None:
        start = time.monotonic()
        requests = list(dict.fromkeys(request for request, _ in batch))
        self._has_company = len(requests) > 1
        try:
            answers = list(self._answer([_tokens(request)[i] for request, i in batch]))
        except Exception as error:
            if len(requests) == 1:
                return _fail(requests[0], error)
            for request in requests:  # one at a time, so that the others do not suffer
                self._beat = time.monotonic()
                self._finish([piece for piece in batch if piece[0] is request])
            return None
        seconds = time.monotonic() - start
        self._rate += 0.2 * (len(batch) / max(seconds, 1e-6) - self._rate)
        self._seen(BatchFacts(len(batch), sum(len(_tokens(r)[i]) for r, i in batch), seconds, answers))
        for (request, _), answer in zip(batch, answers, strict=True):
            _add(request, answer)


def _tokens(request: _Request) -> list[Tokens]:
    return request.tokens or []


def _add(request: _Request, answer: Any) -> None:
    """One more answer of a request; an exception in its place is for this request alone."""
    if isinstance(answer, Exception):
        return _fail(request, answer)
    request.answers.append(answer)
    if len(request.answers) == len(request.rows) and request.future.set_running_or_notify_cancel():
        request.future.set_result(request.answers)


def _fail(request: _Request, error: Exception) -> None:
    if request.is_open and request.future.set_running_or_notify_cancel():
        request.future.set_exception(error)
