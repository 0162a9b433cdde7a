"""What the routes of a server share: `Service`, with an `Engine` per model, `ServerMetrics` and the `AnswerLog`.

The numbers equal those of `Model.predict`: the same tokens, energies, calibrator and abstention rule.
"""

import asyncio
import functools
import itertools
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from ebmcal.calibration.persistence import calibrator_fingerprint
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.methods import METHODS
from ebmcal.model import Model
from ebmcal.modeling.classifier import CHARACTERS_PER_TOKEN, Outputs
from ebmcal.modeling.packing import Tokens
from ebmcal.serving import Limits
from ebmcal.serving.batcher import Batcher, QueueFull, Stopped, Text, TooManyTokens
from ebmcal.storage import check_writable

log = logging.getLogger("ebmcal.serving")

#: Fields of an answer that come from the abstention rule.
RULE_FIELDS = ("decision", "reason", "score", "is_ood", "ood_score", "ood_score_name", "ood_p_value", "label_set")

#: Fields of an answer that are logged, if they are not null, besides label and probabilities.
LOGGED_FIELDS = ("energy", "decision", "is_ood", "ood_p_value")

#: Bytes of the answer log that may wait to be written; further rows are dropped.
MAX_WAITING = 16_000_000


@dataclass(frozen=True)
class EncodedText:
    """The tokens of a text; its length is their number."""

    tokens: Tokens
    is_truncated: bool

    def __len__(self) -> int:
        return len(self.tokens.ids)


class Engine:
    """The work of a `Batcher` for one model: `encode` texts, then `answer`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rule = model.abstention_rule  # raises if it was fitted for another model or calibrator
        self.max_characters = model.max_length * CHARACTERS_PER_TOKEN

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """Which weights and calibrator answer, for the answer log."""
        return {
            "weights": self.model.fingerprint,
            "calibrator": calibrator_fingerprint(self.model.calibrator) or "none",
        }

    def describe(self) -> dict[str, Any]:
        """The entries of `/v1/models`."""
        model, info = self.model, METHODS.get(str(self.model.card.get("method")))
        return {
            "labels": list(model.label_names),
            "calibrator": model.calibrator.name if model.calibrator else None,
            "folded_temperature": model.folded_temperature,
            "energy": model.energy_name,
            "is_energy_trained": bool(info and (info.location == "joint:Joint" or info.options.get("joint"))),
            "max_length": model.max_length,
            "is_pair": model.is_pair,
            "abstention": self.rule.describe() if self.rule else [],
        }

    def prepare(self, texts: Sequence[Text]) -> list[Text]:
        """The parts of texts that are tokenised; refuses pairs for a model of single texts, and vice versa."""
        for i, text in enumerate(texts):
            if self.model.is_pair is not None and self.model.is_pair == isinstance(text, str):
                got, expected = ("single text", "pairs") if self.model.is_pair else ("pair", "single texts")
                raise EbmcalError(f"inputs[{i}] is a {got}, but the model was trained on {expected}.")
        limit = self.max_characters
        return [t[:limit] if isinstance(t, str) else (t[0][:limit], t[1][:limit]) for t in texts]

    def encode(self, texts: Sequence[Text]) -> list[EncodedText]:
        """The tokens of texts and pairs, truncated to the maximum length."""
        encoded: dict[int, EncodedText] = {}
        for is_pair in (False, True):  # the tokenizer accepts one kind at a time
            places = [i for i, text in enumerate(texts) if is_pair != isinstance(text, str)]
            tokens = self.model.predictor.tokenize([texts[i] for i in places])
            for i, found in zip(places, tokens, strict=True):
                longest = max(map(len, texts[i] if is_pair else [texts[i]]))
                is_truncated = len(found.ids) >= self.model.max_length or longest >= self.max_characters
                encoded[i] = EncodedText(found, is_truncated)
        return [encoded[i] for i in range(len(texts))]

    def answer(self, texts: Sequence[EncodedText]) -> list[dict[str, Any] | EbmcalError]:
        """An answer per text; an error where logits, energy or features are not finite."""
        needs_features = self.rule is not None and self.rule.needs_features
        found = self.model.predictor.predict_tokens([text.tokens for text in texts], features=needs_features)
        features = np.zeros((len(texts), 0)) if found.features is None else found.features
        is_finite = np.isfinite(np.column_stack([found.logits, found.energies, features])).all(axis=1)
        broken = EbmcalError("The model computed values that are not finite; its weights may be damaged.")
        answers: list[dict[str, Any] | EbmcalError] = [broken] * len(texts)
        places = np.flatnonzero(is_finite)
        if len(places):
            kept = features[places] if needs_features else None
            outputs = Outputs(found.logits[places], found.energies[places], kept)
            for i, answer in zip(places.tolist(), self._answers(outputs), strict=True):
                answers[i] = answer | {"n_tokens": len(texts[i]), "is_truncated": texts[i].is_truncated}
        return answers

    def _answers(self, outputs: Outputs) -> list[dict[str, Any]]:
        """The fields of the answers; None for parts that the abstention rule does not have."""
        predictions, names = self.model.finish(outputs), self.model.label_names
        columns: dict[str, Any] = {
            "label": [names[i] for i in predictions.predicted],
            "confidence": predictions.confidence.tolist(),
            "probabilities": [dict(zip(names, row, strict=True)) for row in predictions.probs.tolist()],
            "logits": [dict(zip(names, row, strict=True)) for row in outputs.logits.tolist()],
            "energy": predictions.require_energies().tolist(),
            **{name: [None] * predictions.n_rows for name in RULE_FIELDS},
        }
        if self.rule is not None:
            found = self.rule.apply(predictions)
            arrays = {"score": found.score, "ood_score": found.ood_score}
            columns |= {name: values.tolist() for name, values in arrays.items() if values is not None}
            columns["ood_score_name"] = found.ood_score_name or columns["ood_score_name"]
            columns |= {name: values for name, values in found.columns().items() if name in RULE_FIELDS}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class ServerMetrics:
    """Prometheus metrics of one server, never any text; shares of labels and abstentions show drift."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        seconds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
        texts = (1, 2, 4, 8, 16, 32, 64, 128, 256)

        def make(kind: Any, name: str, text: str, *labels: str, **options: Any) -> Any:
            return kind(f"ebmcal_{name}", text, labels, registry=self.registry, **options)

        self.requests = make(Counter, "requests", "Requests by path and status.", "path", "status")
        self.seconds = make(Histogram, "request_seconds", "Duration of requests.", "path", buckets=seconds)
        self.batch_texts = make(Histogram, "batch_texts", "Texts per batch.", "model", buckets=texts)
        self.batch_seconds = make(Histogram, "batch_seconds", "Duration of batches.", "model", buckets=seconds)
        self.tokens = make(Counter, "tokens", "Tokens processed.", "model")
        self.predicted = make(Counter, "predicted", "Texts by predicted label.", "model", "label")
        self.abstained = make(Counter, "abstained", "Texts the abstention rule abstained on.", "model")
        self.ood = make(Counter, "out_of_distribution", "Texts classified as out-of-distribution.", "model")
        self.log_rows = make(Counter, "log_rows", "Rows of the answer log, written or dropped.", "outcome")
        self.queue = make(Gauge, "queue_texts", "Texts waiting for the model.", "model")

    def add_batch(self, model: str, n_tokens: int, seconds: float, results: list[Any]) -> None:
        """Count a finished batch and its predictions."""
        self.batch_texts.labels(model).observe(len(results))
        self.batch_seconds.labels(model).observe(seconds)
        self.tokens.labels(model).inc(n_tokens)
        for answer in results:
            if isinstance(answer, dict):
                self.predicted.labels(model, answer["label"]).inc()
                self.abstained.labels(model).inc(answer["decision"] == "abstain")
                self.ood.labels(model).inc(bool(answer["is_ood"]))


def check_log(path: Path) -> None:
    """Raise, before a model is loaded, if `path` cannot be appended to or is not an answer log."""
    check_writable(path, "--log")
    if path.suffix != ".jsonl":
        raise EbmcalError(f"--log {path}: expected a name that ends in .jsonl.")
    if path.exists() and path.stat().st_size:
        try:
            with open(path, "rb+") as handle:
                is_log = {"time", "id", "weights", "calibrator"} <= json.loads(handle.readline(1_000_000)).keys()
        except (ValueError, AttributeError, RecursionError, PermissionError):
            is_log = False
        if not is_log:
            raise EbmcalError(f"--log {path} exists and is not an answer log that can be continued.")


class AnswerLog:
    """One JSON line per answer (time, id, probabilities, energy, decision), read by `ebmcal monitor`.

    Lines pass through a bounded queue to a writer thread, so an answer never waits for the disk. If the disk is too
    slow or full, rows are dropped, counted and reported once. The file is only appended to; a new one is started when
    it was moved away (logrotate).
    """

    def __init__(self, path: Path, *, with_texts: bool, rows: Any) -> None:
        check_log(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_partial_line(path)
        self.path, self.with_texts, self._rows = path, with_texts, rows  # the latter is a counter
        self._queue: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._n_waiting, self._lock = 0, threading.Lock()  # bytes
        self._prefix, self._numbers = f"{time.time_ns():x}", itertools.count()
        self._has_failed = False
        self._writer = threading.Thread(target=self._write_all, name="answer log", daemon=True)
        self._writer.start()

    def append(self, about: dict[str, str], texts: Sequence[Text], answers: Sequence[dict[str, Any]]) -> list[str]:
        """Queue the answers to one request and return the ids of the rows; never waits."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        ids, lines = [f"{self._prefix}-{next(self._numbers)}" for _ in answers], []
        for key, text, answer in zip(ids, texts, answers, strict=True):
            row = {"time": now, "id": key, **about}
            if self.with_texts:
                row |= {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
            row |= {"predicted": answer["label"]} | {f"prob_{name}": p for name, p in answer["probabilities"].items()}
            row |= {name: answer[name] for name in LOGGED_FIELDS if answer[name] is not None}
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
                self._rows.labels("written").inc(n_rows)
            except OSError as error:
                self._drop(n_rows, error.strerror or "the disk failed")
            with self._lock:
                self._n_waiting -= len(content)

    def _write(self, content: bytes) -> None:
        """Append everything or nothing."""
        with open(self.path, "ab", buffering=0) as handle:
            size = os.fstat(handle.fileno()).st_size
            if handle.write(content) < len(content):
                handle.truncate(size)
                raise OSError(28, "No space left on device")

    def _drop(self, n_rows: int, reason: str) -> None:
        self._rows.labels("dropped").inc(n_rows)
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


@dataclass(eq=False)
class Service:
    """The state of a server."""

    engines: dict[str, Engine]
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    log_texts: bool = False
    answer_log: AnswerLog | None = None
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    batchers: dict[str, Batcher] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)  # models that have answered a first text
    n_buffered: int = 0  # bytes of the request bodies in memory

    def start(self) -> None:
        """Start one worker per model and send it a first text: the model is ready once it has answered."""
        for name, engine in self.engines.items():
            on_batch = functools.partial(self.metrics.add_batch, name)
            self.batchers[name] = batcher = Batcher(engine.encode, engine.answer, self.limits, on_batch)
            self.metrics.queue.labels(name).set_function(functools.partial(getattr, batcher, "n_waiting"))
            first: Text = ("Is this", "a test?") if engine.model.is_pair else "Is this a test?"
            batcher.submit([first]).add_done_callback(functools.partial(self._note_ready, name))

    def _note_ready(self, name: str, done: "Future[Any]") -> None:
        if done.exception() is None:
            self.ready.add(name)

    def stop(self) -> None:
        """Finish the accepted requests."""
        for name, batcher in self.batchers.items():
            if not batcher.close(self.limits.timeout):
                log.error("the worker of %s did not finish within %g s", name, self.limits.timeout)
        if self.answer_log is not None:
            self.answer_log.close()

    def problem(self) -> str:
        """What is wrong with the workers; empty if nothing is."""
        return " ".join(filter(None, (batcher.problem() for batcher in self.batchers.values())))

    def not_ready(self) -> str:
        """Why the server should not get requests; empty if it should."""
        if any(batcher.is_closing for batcher in self.batchers.values()):
            return "The server is shutting down."
        starting = ", ".join(name for name in self.engines if name not in self.ready)
        return self.problem() or (f"Starting: {starting}." if starting else "")

    def model_name(self, name: str | None) -> str:
        """The name of a served model; None is the first."""
        if name is not None and name not in self.engines:
            raise HTTPException(404, str(unknown_name("model", name, self.engines)))
        return next(iter(self.engines)) if name is None else name

    async def answer(self, texts: Sequence[Text], name: str) -> list[dict[str, Any]]:
        """The answers of a model to texts. Cancelling it drops the texts from the queue."""
        prepared = self.engines[name].prepare(texts)
        try:
            return await asyncio.wrap_future(self.batchers[name].submit(prepared))
        except QueueFull as error:
            raise HTTPException(429, str(error), {"Retry-After": str(error.retry_after)}) from error
        except Stopped as error:
            raise HTTPException(503, str(error)) from error
        except TooManyTokens:
            raise
        except Exception as error:
            log.error("%s failed: %s", name, type(error).__name__, exc_info=error if self.log_texts else None)
            reason = str(error) if isinstance(error, EbmcalError) else type(error).__name__
            raise HTTPException(500, f"The model could not answer: {reason}") from error
