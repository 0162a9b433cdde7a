"""The answer log: one JSON line per answer (time, id, probabilities, energy, decision), read by `ebmcal monitor`.

Texts are logged only on request. Rows pass through a bounded queue to a writer thread, so an answer never waits for
the disk. If the disk is too slow or full, rows are dropped, counted and reported once. The file is only appended to; a
new one is started when it was moved away (logrotate).
"""

import itertools
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.serving.batcher import Text, n_characters
from ebmcal.storage import check_writable

log = logging.getLogger("ebmcal.serving")

#: Rows that may wait to be written, where 1,000 characters of logged texts count as one more; others are dropped.
MAX_WAITING = 8192

#: Fields of an answer that are logged, if they are not null, besides label and probabilities.
FIELDS = ("energy", "decision", "ood", "ood_p")


def check_log(path: Path) -> None:
    """Raise, before a model is loaded, if `path` cannot be appended to or is not an answer log."""
    check_writable(path, "--log")
    if path.suffix != ".jsonl":
        raise EbmcalError(f"--log {path}: expected a name that ends in .jsonl.")
    if not path.exists() or not path.stat().st_size:
        return
    if not os.access(path, os.W_OK):
        raise EbmcalError(f"--log {path} cannot be written: no permission. Choose another file.")
    with open(path, "rb") as handle:
        first = handle.readline(1_000_000)
    try:
        is_log = {"time", "id", "weights"} <= json.loads(first).keys()
    except (ValueError, AttributeError, RecursionError):
        is_log = False
    if not is_log:
        raise EbmcalError(f"--log {path} exists and is not an answer log of ebmcal serve. Choose another file.")


@dataclass(frozen=True)
class _Request:
    seconds: float
    model: str
    weights: str
    ids: list[str]
    texts: list[Text]  # empty unless they are to be logged
    answers: list[dict[str, Any]]

    @property
    def size(self) -> int:
        return len(self.ids) + n_characters(self.texts) // 1000

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per answer."""
        moment = datetime.fromtimestamp(self.seconds, timezone.utc).isoformat(timespec="milliseconds")
        for i, answer in enumerate(self.answers):
            row = {"time": moment, "id": self.ids[i], "model": self.model, "weights": self.weights}
            if self.texts:
                text = self.texts[i]
                row |= {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
            probs = {f"prob_{name}": p for name, p in answer["probabilities"].items()}
            given = {name: answer[name] for name in FIELDS if answer[name] is not None}
            yield row | {"predicted": answer["label"]} | probs | given


class AnswerLog:
    """An answer log: `append` from any thread returns at once with the ids of the rows; `close` writes what waits.

    with AnswerLog(Path("answers.jsonl")) as answer_log:
        answer_log.append("films", model.fingerprint, texts, answers)
    """

    def __init__(
        self, path: Path, *, with_texts: bool = False, count: Callable[[str, int], None] = lambda outcome, n: None
    ) -> None:
        check_log(path)
        self.path, self.with_texts, self._count = path, with_texts, count
        self._waiting: deque[_Request] = deque()
        self._n_waiting, self._closing, self._changed = 0, False, threading.Condition()
        self._prefix, self._numbers = f"{time.time_ns():x}", itertools.count()
        self._has_failed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_partial_line(path)
        self._writer = threading.Thread(target=self._write_all, name="answer log", daemon=True)
        self._writer.start()

    def append(self, model: str, weights: str, texts: Sequence[Text], answers: Sequence[dict[str, Any]]) -> list[str]:
        """Queue the answers to one request; never waits."""
        ids = [f"{self._prefix}-{next(self._numbers)}" for _ in answers]
        request = _Request(time.time(), model, weights, ids, list(texts) * self.with_texts, list(answers))
        with self._changed:
            is_full = self._n_waiting + request.size > MAX_WAITING
            if not is_full:
                self._waiting.append(request)
                self._n_waiting += request.size
                self._changed.notify()
        if is_full:
            self._drop(len(ids), "the disk is too slow")
        return ids

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, then end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._writer.join(timeout)

    def __enter__(self) -> "AnswerLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Everything below runs in the writer thread.

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                requests = [self._waiting.popleft() for _ in range(min(len(self._waiting), 256))]
                self._n_waiting -= sum(request.size for request in requests)
            if not requests:
                return
            self._append([json.dumps(row, ensure_ascii=False) + "\n" for request in requests for row in request.rows()])

    def _append(self, lines: list[str]) -> None:
        """Append whole lines in one write, to a new file if the old one was moved away."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                _write_whole(descriptor, "".join(lines).encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            return self._drop(len(lines), error.strerror or "the disk failed")
        self._has_failed = False
        self._count("written", len(lines))
        return None

    def _drop(self, n_rows: int, reason: str) -> None:
        self._count("dropped", n_rows)
        if not self._has_failed:  # once, not for every request
            log.error("rows of %s are dropped: %s", self.path, reason)
        self._has_failed = True


def _write_whole(descriptor: int, content: bytes) -> None:
    """Write everything or nothing: a partial line on a full disk is removed again."""
    size = os.fstat(descriptor).st_size
    if os.write(descriptor, content) < len(content):
        os.ftruncate(descriptor, size)
        raise OSError(28, "No space left on device")


def _remove_partial_line(path: Path) -> None:
    """Remove the partial line that a killed server may have left at the end."""
    if not path.exists():
        return
    with open(path, "rb+") as handle:
        size = handle.seek(0, os.SEEK_END)
        back, tail = min(size, 1 << 16), b""
        while back and b"\n" not in tail and len(tail) < size:
            handle.seek(size - back)
            tail, back = handle.read(), min(size, 2 * back)
        if tail and not tail.endswith(b"\n"):
            handle.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
