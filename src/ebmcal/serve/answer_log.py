"""What was answered, as JSON lines that `ebmcal watch` reads: time, id, probabilities, energy, decision.

Texts are in it only if asked. Rows go through a bounded queue to a thread that appends them: an answer never waits for
a disk. Where the disk cannot keep up, or is full, rows are lost, counted and said. The file is only ever appended to;
when somebody has moved it away (logrotate), a new one is begun.
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
from ebmcal.serve.batching import Row
from ebmcal.storage.atomic import check_target

log = logging.getLogger("ebmcal.serve")

#: Rows that wait to be written; what comes while so many wait is lost.
ROOM = 8192

#: What an answer says beside the probabilities, where it says it.
KEPT = ("energy", "decision", "unusual", "unusual_p")


def check_log(path: Path) -> None:
    """Refuse, before a model is loaded, a file that cannot be appended to or that is no such log."""
    check_target(path, "--log")
    if path.suffix != ".jsonl":
        raise EbmcalError(f"--log is {path}; a log is JSON lines: name it .jsonl, so that ebmcal watch reads it.")
    if not path.exists() or not path.stat().st_size:
        return
    if not os.access(path, os.W_OK):
        raise EbmcalError(f"--log {path} cannot be written: no permission. Choose another file.")
    with open(path, "rb") as handle:
        first = handle.readline(1_000_000)
    try:
        is_ours = {"time", "id", "weights"} <= json.loads(first).keys()
    except (ValueError, AttributeError):
        is_ours = False
    if not is_ours:
        raise EbmcalError(f"--log {path} is there already and is no log of ebmcal serve. Choose another file.")


@dataclass(frozen=True)
class _Request:
    when: float
    model: str
    weights: str
    ids: list[str]
    texts: list[Row]  # none unless they are asked for
    answers: list[dict[str, Any]]

    def logged(self) -> Iterator[dict[str, Any]]:
        """A row of the log for each answer."""
        moment = datetime.fromtimestamp(self.when, timezone.utc).isoformat(timespec="milliseconds")
        for i, answer in enumerate(self.answers):
            row: dict[str, Any] = {"time": moment, "id": self.ids[i], "model": self.model, "weights": self.weights}
            if self.texts:
                text, pair = self.texts[i]
                row |= {"text": text} | ({} if pair is None else {"text_pair": pair})
            row |= {"predicted": answer["label"]}
            row |= {f"prob_{name}": p for name, p in answer["probabilities"].items()}
            yield row | {name: answer[name] for name in KEPT if answer[name] is not None}


class AnswerLog:
    """A log of answers; `note` from any thread returns at once with the ids of the rows, `close` writes what waits.

    with AnswerLog(Path("log.jsonl")) as kept:
        kept.note("films", model.weights, rows, answers)
    """

    def __init__(
        self, path: Path, *, with_texts: bool = False, count: Callable[[str, int], None] = lambda what, n: None
    ) -> None:
        check_log(path)
        self.path, self.with_texts, self._count = path, with_texts, count
        self._waiting: deque[_Request] = deque()
        self._n_waiting, self._closing, self._changed = 0, False, threading.Condition()
        self._begun, self._numbers = f"{time.time_ns():x}", itertools.count()
        self._has_failed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_half_line(path)
        self._writer = threading.Thread(target=self._write_all, name="writer of the log", daemon=True)
        self._writer.start()

    def note(self, model: str, weights: str, rows: Sequence[Row], answers: Sequence[dict[str, Any]]) -> list[str]:
        """Enter the answers to one request; never waits."""
        ids = [f"{self._begun}-{next(self._numbers)}" for _ in rows]
        request = _Request(time.time(), model, weights, ids, list(rows) if self.with_texts else [], list(answers))
        with self._changed:
            is_full = self._n_waiting + len(ids) > ROOM
            if not is_full:
                self._waiting.append(request)
                self._n_waiting += len(ids)
                self._changed.notify()
        if is_full:
            self._lose(len(ids), "they come faster than they can be written")
        return ids

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._writer.join(timeout)

    def __enter__(self) -> "AnswerLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What follows is the writer's

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                requests = [self._waiting.popleft() for _ in range(min(len(self._waiting), 256))]
                self._n_waiting -= sum(len(request.ids) for request in requests)
            if not requests:
                return
            self._append([json.dumps(row, ensure_ascii=False) + "\n" for one in requests for row in one.logged()])

    def _append(self, lines: list[str]) -> None:
        """Append whole lines in one write, to a new file if the old one was moved away."""
        if not lines:
            return
        try:
            place = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                _write_whole(place, "".join(lines).encode())
            finally:
                os.close(place)
        except OSError as error:
            return self._lose(len(lines), error.strerror or "the disk failed")
        self._has_failed = False
        self._count("written", len(lines))
        return None

    def _lose(self, n_rows: int, why: str) -> None:
        self._count("lost", n_rows)
        if not self._has_failed:  # once, not for every request
            log.error("rows of %s are lost: %s", self.path, why)
        self._has_failed = True


def _write_whole(place: int, content: bytes) -> None:
    """Write all of it, or nothing: half a line of a full disk is taken back."""
    before = os.fstat(place).st_size
    written = os.write(place, content)
    if written < len(content):
        os.ftruncate(place, before)
        raise OSError(28, "No space left on device")


def _drop_half_line(path: Path) -> None:
    """Cut off the half line that a killed server may have left at the end."""
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
