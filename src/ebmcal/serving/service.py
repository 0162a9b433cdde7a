"""What the routes of a server share: models with their queues (`Service`), answers (`Engine`) and `ServerMetrics`.

The numbers equal those of `Model.predict`: the same tokens, energies, calibrator and abstention rule.
"""

import asyncio
import functools
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.methods import METHODS
from ebmcal.model import Model
from ebmcal.modeling.classifier import CHARACTERS_PER_TOKEN, Outputs
from ebmcal.modeling.packing import Tokens
from ebmcal.serving import Limits
from ebmcal.serving.answer_log import AnswerLog
from ebmcal.serving.batcher import Batcher, QueueFull, Stopped, Text, TooManyTokens

log = logging.getLogger("ebmcal.serving")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

#: Fields of an answer that come from the abstention rule.
DECISION_FIELDS = ("decision", "reason", "score", "is_ood", "ood_score", "ood_p_value", "label_set")


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
        self.model, self.predictor = model, model.predictor
        self.rule = model.abstention_rule  # raises if it was fitted for another model or calibrator
        self.max_characters = model.max_length * CHARACTERS_PER_TOKEN

    def describe(self) -> dict[str, Any]:
        """The entries of `/v1/models`."""
        model, info = self.model, METHODS.get(str(self.model.card.get("method")))
        is_joint = info is not None and (info.location == "joint:Joint" or bool(info.options.get("joint")))
        return {
            "labels": list(model.label_names),
            "calibrator": model.calibrator.name if model.calibrator else None,
            "folded_temperature": model.folded_temperature,
            "energy": model.energy_name,
            "is_energy_trained": is_joint,
            "max_length": model.max_length,
            "is_pair": model.is_pair,
            "abstention": self.rule.describe() if self.rule else [],
        }

    def check(self, texts: Sequence[Text]) -> None:
        """Refuse a pair for a model of single texts, and vice versa."""
        for i, text in enumerate(texts):
            is_pair = not isinstance(text, str)
            if self.model.is_pair is not None and self.model.is_pair != is_pair:
                where = f"inputs[{i}]" if len(texts) > 1 else "The input"
                expected = "single texts" if is_pair else "pairs (text, text_pair)"
                raise EbmcalError(
                    f"{where} is a {'pair' if is_pair else 'single text'}, but the model was trained on {expected}."
                )

    def shorten(self, text: Text) -> Text:
        """The part of a text that is tokenised: what lies beyond never reaches the model."""
        limit = self.max_characters
        return text[:limit] if isinstance(text, str) else (text[0][:limit], text[1][:limit])

    def encode(self, texts: Sequence[Text]) -> list[EncodedText]:
        """The tokens of texts and pairs, truncated to the maximum length."""
        encoded: dict[int, EncodedText] = {}
        for is_pair in (False, True):  # the tokenizer accepts one kind at a time
            places = [i for i, text in enumerate(texts) if is_pair != isinstance(text, str)]
            tokens = self.predictor.tokenize([texts[i] for i in places])
            for i, found in zip(places, tokens, strict=True):
                longest = max(map(len, texts[i] if is_pair else [texts[i]]))
                is_truncated = len(found.ids) >= self.model.max_length or longest >= self.max_characters
                encoded[i] = EncodedText(found, is_truncated)
        return [encoded[i] for i in range(len(texts))]

    def answer(self, texts: Sequence[EncodedText]) -> list[dict[str, Any] | EbmcalError]:
        """An answer per text; an error where logits, energy or features are not finite."""
        needs_features = self.rule is not None and self.rule.needs_features
        outputs = self.predictor.predict_tokens([text.tokens for text in texts], features=needs_features)
        is_finite = np.isfinite(outputs.logits).all(axis=1) & np.isfinite(outputs.energies)
        if outputs.features is not None:
            is_finite &= np.isfinite(outputs.features).all(axis=1)
        broken = EbmcalError("The model computed values that are not finite; its weights may be damaged.")
        answers: list[dict[str, Any] | EbmcalError] = [broken] * len(texts)
        places = np.flatnonzero(is_finite).tolist()
        if places:
            features = None if outputs.features is None else outputs.features[places]
            columns = self._columns(Outputs(outputs.logits[places], outputs.energies[places], features))
            columns["n_tokens"] = [len(texts[i]) for i in places]
            columns["is_truncated"] = [texts[i].is_truncated for i in places]
            for i, values in zip(places, zip(*columns.values(), strict=True), strict=True):
                answers[i] = dict(zip(columns, values, strict=True))
        return answers

    def _columns(self, outputs: Outputs) -> dict[str, Any]:
        """The fields of the answers, each as a list; None for parts that the abstention rule does not have."""
        predictions, names = self.model.finish(outputs), self.model.label_names
        columns: dict[str, Any] = {
            "label": [names[i] for i in predictions.predicted],
            "confidence": predictions.confidence.tolist(),
            "probabilities": [dict(zip(names, row, strict=True)) for row in predictions.probs.tolist()],
            "logits": [dict(zip(names, row, strict=True)) for row in outputs.logits.tolist()],
            "energy": predictions.require_energies().tolist(),
            **{name: [None] * predictions.n_rows for name in DECISION_FIELDS},
        }
        if self.rule is not None:
            found = self.rule.apply(predictions)
            arrays = {"score": found.score, "ood_score": found.ood_score}
            columns |= {name: values.tolist() for name, values in arrays.items() if values is not None}
            columns |= {name: values for name, values in found.columns().items() if name in DECISION_FIELDS}
        return columns


class ServerMetrics:
    """Prometheus metrics of one server, never any text.

    The shares of labels, abstentions and out-of-distribution texts are included so that drift shows on dashboards.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ebmcal_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"ebmcal_{name}", text, (label,), buckets=buckets, registry=self.registry)

        self._requests = counter("requests", "Requests by path and status.", "path", "status")
        self._seconds = histogram("request_seconds", "Duration of requests.", "path", SECONDS)
        self._batch_texts = histogram("batch_texts", "Texts per batch.", "model", TEXTS)
        self._batch_seconds = histogram("batch_seconds", "Duration of batches.", "model", SECONDS)
        self._tokens = counter("tokens", "Tokens processed.", "model")
        self._predicted = counter("predicted", "Texts by predicted label.", "model", "label")
        self._abstained = counter("abstained", "Texts the abstention rule abstained on.", "model")
        self._ood = counter("out_of_distribution", "Texts classified as out-of-distribution.", "model")
        self._log_rows = counter("log_rows", "Rows of the answer log, written or dropped.", "outcome")
        self.queue = Gauge("ebmcal_queue_texts", "Texts waiting for the model.", ("model",), registry=self.registry)

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def add_batch(self, model: str, n_tokens: int, seconds: float, results: list[Any]) -> None:
        """Count a finished batch and its predictions."""
        self._batch_texts.labels(model).observe(len(results))
        self._batch_seconds.labels(model).observe(seconds)
        self._tokens.labels(model).inc(n_tokens)
        for answer in results:
            if isinstance(answer, dict):
                self._predicted.labels(model, answer["label"]).inc()
                self._abstained.labels(model).inc(answer["decision"] == "abstain")
                self._ood.labels(model).inc(bool(answer["is_ood"]))

    def add_log_rows(self, outcome: str, n_rows: int) -> None:
        """Count rows of the answer log, "written" or "dropped"."""
        self._log_rows.labels(outcome).inc(n_rows)


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
        engine = self.engines[name]
        engine.check(texts)
        try:
            return await asyncio.wrap_future(self.batchers[name].submit([engine.shorten(text) for text in texts]))
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
