"""Dynamic batching: a bounded queue of texts and one worker thread, the only user of the model.

The worker takes texts in order of arrival until the token budget of a batch is full; a long request may span several
batches. Texts are tokenised in small portions, shortly before they are needed. Those of cancelled requests are dropped,
those that have waited for half the timeout are refused. A lone client never waits: only if the previous batch held
several requests does the worker wait up to `batch_wait` seconds for the next one to fill.

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
from ebmcal.serving import Limits

log = logging.getLogger("ebmcal.serving")

#: A text, or a pair of texts.
Text = str | tuple[str, str]

#: Characters that one call of `encode` gets at most (at least one text): bounds memory and time between two checks.
PORTION = 65_536

#: A rough number of characters per token, to decide when enough texts are waiting for a batch.
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
    n_texts: int
    future: "Future[list[Any]]" = field(default_factory=Future)
    arrived_at: float = field(default_factory=time.monotonic)
    n_tokens: int = 0  # of the texts that are tokenised
    results: list[Any] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return not self.future.done()

    def add(self, result: Any) -> None:
        """Add the result of the next text; an exception in place of a result fails the request."""
        if isinstance(result, Exception):
            return self.fail(result)
        self.results.append(result)
        if len(self.results) == self.n_texts and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.results)
        return None

    def fail(self, error: Exception) -> None:
        if self.is_open and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(eq=False)
class _Item:
    """A text of a request on its way through the queue."""

    request: _Request
    text: Text
    tokens: Any = ()

    @property
    def n_characters(self) -> int:
        return len(self.text) if isinstance(self.text, str) else sum(map(len, self.text))


class Batcher:
    """Queue and worker of one model: `submit` from any thread, `close` at the end.

    `on_batch` gets the number of tokens, the seconds and the results of every batch.

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
        on_batch: Callable[[int, float, list[Any]], None] = lambda n_tokens, seconds, results: None,
    ) -> None:
        self._encode, self._predict, self._on_batch = encode, predict, on_batch
        self.limits = limits or Limits()
        self._portion = min(PORTION, CHARACTERS_PER_TOKEN * self.limits.batch_tokens)
        self._waiting: deque[_Item] = deque()
        self._encoded: deque[_Item] = deque()
        self._changed = threading.Condition()
        self.is_closing = False
        self._is_shared = False  # whether the previous batch held several requests
        self._n_texts, self._seconds = 50.0, 1.0  # of a batch, moving averages
        self._alive_at = time.monotonic()
        self._worker = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._worker.start()

    @property
    def n_waiting(self) -> int:
        """The number of texts in the queue."""
        return len(self._waiting) + len(self._encoded)

    def submit(self, texts: Sequence[Text]) -> "Future[list[Any]]":
        """Queue a request; the future returns one result per text. Cancelling the future drops the request."""
        with self._changed:
            if self.is_closing or not self._worker.is_alive():
                raise Stopped("The server is shutting down." if self.is_closing else self.problem())
            n_texts, rate = self.n_waiting + len(texts), self._n_texts / self._seconds
            is_hopeless = self.n_waiting > 0 and n_texts > rate * self.limits.timeout  # it would end as a timeout
            if n_texts > self.limits.max_queue or is_hopeless:
                raise self._queue_full()
            request = _Request(len(texts))
            self._waiting.extend(_Item(request, text) for text in texts)
            self._changed.notify()
        return request.future

    def _queue_full(self) -> QueueFull:
        return QueueFull(self.n_waiting, max(1, min(60, math.ceil(self.n_waiting * self._seconds / self._n_texts))))

    def problem(self) -> str:
        """What is wrong with the worker; empty if nothing is."""
        if not self._worker.is_alive():
            return "The worker has stopped." if self.is_closing else "The worker died. Restart the server."
        silent = time.monotonic() - self._alive_at
        return f"The worker has been stuck for {silent:.0f} s. Restart the server." * (silent > self.limits.stall)

    def close(self, timeout: float | None = None) -> bool:
        """Finish the accepted requests and end the worker; False if it did not end in time."""
        with self._changed:
            self.is_closing = True
            self._changed.notify()
        self._worker.join(timeout)
        return not self._worker.is_alive()

    # Everything below runs in the worker thread.

    def _work(self) -> None:
        batch: list[_Item] = []
        try:
            while self._wait_for_texts():
                self._alive_at = time.monotonic()
                batch = self._next_batch()
                if batch:
                    self._run(batch)
        except BaseException as error:  # of the worker itself, not of a batch: it ends, and /healthz fails
            log.critical("the worker died: %s", type(error).__name__)
        finally:
            with self._changed:
                left = [*batch, *self._encoded, *self._waiting]
                self._encoded.clear()
                self._waiting.clear()
            for item in left:
                item.request.fail(Stopped("The worker stopped before it reached this request."))

    def _wait_for_texts(self) -> bool:
        """Wait for work, at most a second at a time so that an idle worker shows progress; False when all is done."""

        def is_enough() -> bool:
            return self.is_closing or sum(item.n_characters for item in self._waiting) >= self._portion

        with self._changed:
            if not self.n_waiting and not self.is_closing:
                self._changed.wait(min(1.0, self.limits.stall / 4))
            if self.n_waiting and self._is_shared and self.limits.batch_wait:
                self._changed.wait_for(is_enough, self.limits.batch_wait)
            return bool(self.n_waiting) or not self.is_closing

    def _next_batch(self) -> list[_Item]:
        """The next texts within the token budget, at least one if any are left."""
        batch: list[_Item] = []
        n_tokens, latest = 0, time.monotonic() - self.limits.timeout / 2
        while self._encoded or self._encode_portion():
            item = self._encoded[0]
            if item.request.arrived_at < latest and not item.request.results:  # refuse it before it times out
                item.request.fail(self._queue_full())
            if item.request.is_open:
                n_tokens += len(item.tokens)
                if batch and n_tokens > self.limits.batch_tokens:
                    break
                batch.append(item)
            self._encoded.popleft()
        return batch

    def _encode_portion(self) -> bool:
        """Tokenise the next texts of the queue, at least one, in one call; False if there are none."""
        portion: list[_Item] = []
        n_characters = 0
        with self._changed:
            while self._waiting:
                item = self._waiting[0]
                if item.request.is_open:
                    n_characters += item.n_characters
                    if portion and n_characters > self._portion:
                        break
                    portion.append(item)
                self._waiting.popleft()
            self._encoded.extend(portion)
        if portion:
            self._encode_items(portion)
        return bool(portion)

    def _encode_items(self, items: list[_Item]) -> None:
        self._alive_at = time.monotonic()
        try:
            found = self._encode([item.text for item in items])
        except Exception as error:
            if len(items) == 1:
                return items[0].request.fail(error)
            for item in items:  # one at a time, so that the others are encoded
                self._encode_items([item])
            return None
        for item, item.tokens in zip(items, found, strict=True):
            item.request.n_tokens += len(item.tokens)
            if item.request.n_tokens > self.limits.max_tokens:
                message = f"The request has more than {self.limits.max_tokens} tokens. Split it."
                item.request.fail(TooManyTokens(message))
        return None

    def _run(self, batch: list[_Item]) -> None:
        start = time.monotonic()
        requests = list(dict.fromkeys(item.request for item in batch))
        self._is_shared = len(requests) > 1
        try:
            results = list(self._predict([item.tokens for item in batch]))
        except Exception as error:
            if len(requests) == 1:
                return requests[0].fail(error)
            for request in requests:  # one at a time, so that the others get their results
                self._alive_at = time.monotonic()
                self._run([item for item in batch if item.request is request])
            return None
        seconds = time.monotonic() - start
        self._n_texts += 0.2 * (len(batch) - self._n_texts)
        self._seconds += 0.2 * (max(seconds, 1e-6) - self._seconds)
        self._on_batch(sum(len(item.tokens) for item in batch), seconds, results)
        for item, result in zip(batch, results, strict=True):
            item.request.add(result)
        return None
