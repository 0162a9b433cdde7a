"""The answer log: one JSON line per answer (time, id, probabilities, energy, decision), read by `ebmcal monitor`.

Texts are logged only on request. Lines pass through a bounded queue to a writer thread, so an answer never waits for
the disk. If the disk is too slow or full, rows are dropped, counted and reported once. The file is only appended to; a
new one is started when it was moved away (logrotate).
"""

import itertools
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.serving.batcher import Text
from ebmcal.storage import check_writable

log = logging.getLogger("ebmcal.serving")

#: Bytes that may wait to be written; further rows are dropped.
MAX_WAITING = 16_000_000

#: Fields of an answer that are logged, if they are not null, besides label and probabilities.
FIELDS = ("energy", "decision", "is_ood", "ood_p_value")


def check_log(path: Path) -> None:
    """Raise, before a model is loaded, if `path` cannot be appended to or is not an answer log."""
    check_writable(path, "--log")
    if path.suffix != ".jsonl":
        raise EbmcalError(f"--log {path}: expected a name that ends in .jsonl.")
    if not path.exists() or not path.stat().st_size:
        return
    if not os.access(path, os.W_OK):
        raise EbmcalError(f"--log {path} cannot be written: no permission. Choose another file.")
    try:
        with open(path, "rb") as handle:
            is_log = {"time", "id", "weights"} <= json.loads(handle.readline(1_000_000)).keys()
    except (ValueError, AttributeError, RecursionError):
        is_log = False
    if not is_log:
        raise EbmcalError(f"--log {path} exists and is not an answer log of ebmcal serve. Choose another file.")


class AnswerLog:
    """An answer log: `append` from any thread returns at once with the ids of the rows; `close` writes what waits."""

    def __init__(self, path: Path, *, with_texts: bool, count: Callable[[str, int], None]) -> None:
        check_log(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_partial_line(path)
        self.path, self.with_texts, self._count = path, with_texts, count
        self._queue: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._n_waiting, self._lock = 0, threading.Lock()  # bytes
        self._prefix, self._numbers = f"{time.time_ns():x}", itertools.count()
        self._has_failed = False
        self._writer = threading.Thread(target=self._write_all, name="answer log", daemon=True)
        self._writer.start()

    def append(self, model: str, weights: str, texts: Sequence[Text], answers: Sequence[dict[str, Any]]) -> list[str]:
        """Queue the answers to one request; never waits."""
        moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        ids, lines = [f"{self._prefix}-{next(self._numbers)}" for _ in answers], []
        for key, text, answer in zip(ids, texts, answers, strict=True):
            row = {"time": moment, "id": key, "model": model, "weights": weights}
            if self.with_texts:
                row |= {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
            row |= {"predicted": answer["label"]} | {f"prob_{name}": p for name, p in answer["probabilities"].items()}
            row |= {name: answer[name] for name in FIELDS if answer[name] is not None}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        content = "".join(lines).encode()
        with self._lock:
            is_full = self._n_waiting + len(content) > MAX_WAITING
            self._n_waiting += 0 if is_full else len(content)
        if is_full:
            self._drop(len(ids), "the disk is too slow")
        else:
            self._queue.put((content, len(ids)))
        return ids

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, then end."""
        self._queue.put(None)
        self._writer.join(timeout)

    def _write_all(self) -> None:
        while (found := self._queue.get()) is not None:
            content, n_rows = found
            try:
                self._write(content)
                self._has_failed = False
                self._count("written", n_rows)
            except OSError as error:
                self._drop(n_rows, error.strerror or "the disk failed")
            with self._lock:
                self._n_waiting -= len(content)

    def _write(self, content: bytes) -> None:
        """Append everything or nothing, to a new file if the old one was moved away."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, content) < len(content):
                os.ftruncate(descriptor, size)
                raise OSError(28, "No space left on device")
        finally:
            os.close(descriptor)

    def _drop(self, n_rows: int, reason: str) -> None:
        self._count("dropped", n_rows)
        if not self._has_failed:  # once, not for every request
            log.error("rows of %s are dropped: %s", self.path, reason)
        self._has_failed = True


def _remove_partial_line(path: Path, longest: int = 20_000_000) -> None:
    """Remove the partial line that a killed server may have left at the end."""
    if path.exists():
        with open(path, "rb+") as handle:
            start = max(0, path.stat().st_size - longest)
            handle.seek(start)
            handle.truncate(start + handle.read().rfind(b"\n") + 1)
