"""What the routes of a server share: the models with their batchers, limits, metrics, the answer log and the state."""

import asyncio
import functools
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import Request

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.serving.answer_log import AnswerLog
from ebmcal.serving.batcher import Batcher, QueueFull, Stopped, Text, TooManyTokens
from ebmcal.serving.http import Refusal
from ebmcal.serving.limits import Limits
from ebmcal.serving.prometheus import ServerMetrics

if TYPE_CHECKING:
    from ebmcal.serving.engine import Engine

log = logging.getLogger("ebmcal.serving")


@dataclass(eq=False)
class Service:
    """The state of a server."""

    engines: "dict[str, Engine]"
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    log_texts: bool = False
    answer_log: AnswerLog | None = None
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    batchers: dict[str, Batcher] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)  # models that have answered a first text
    _buffered: dict[Request, int] = field(default_factory=dict)  # bytes of the bodies in memory
    _n_buffered: int = 0  # their sum

    def start(self) -> None:
        """Start one worker per model and send it a first text: the model is ready once it has answered."""
        for name, engine in self.engines.items():
            on_batch = functools.partial(self.metrics.add_batch, name)
            self.batchers[name] = batcher = Batcher(engine.encode, engine.answer, self.limits, on_batch, name)
            self.metrics.track_queue(name, functools.partial(getattr, batcher, "n_waiting"))
            first: Text = ("Is this", "a test?") if engine.is_pair else "Is this a test?"
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
        starting = [name for name in self.engines if name not in self.ready]
        return self.problem() or (f"Starting: {', '.join(starting)}." if starting else "")

    def buffer(self, n_bytes: int, request: Request) -> None:
        """Count received bytes of a body; refuses them if all bodies together exceed the limit."""
        self._buffered[request] = self._buffered.get(request, 0) + n_bytes
        self._n_buffered += n_bytes
        if self._n_buffered > self.limits.max_buffered:
            raise Refusal(503, "The server is receiving too many large requests. Try again.", {"Retry-After": "1"})

    def release(self, request: Request) -> None:
        """The body of a request is no longer in memory."""
        self._n_buffered -= self._buffered.pop(request, 0)

    def model_name(self, name: str | None) -> str:
        """The name of a served model; None is the first."""
        if name is not None and name not in self.engines:
            raise Refusal(404, str(unknown_name("model", name, self.engines)))
        return next(iter(self.engines)) if name is None else name

    async def answer(self, texts: Sequence[Text], model: str | None = None) -> list[dict[str, Any]]:
        """The answers of a model to texts; failures become refusals. Cancelling it drops the texts from the queue."""
        name = self.model_name(model)
        engine = self.engines[name]
        if problem := engine.problem(texts):
            raise Refusal(422, problem)
        try:
            return await asyncio.wrap_future(self.batchers[name].submit([engine.shorten(text) for text in texts]))
        except QueueFull as error:
            raise Refusal(429, str(error), {"Retry-After": str(error.retry_after)}) from error
        except TooManyTokens as error:
            raise Refusal(422, str(error)) from error
        except Stopped as error:
            raise Refusal(503, str(error)) from error
        except Exception as error:
            log.error("%s failed: %s", name, type(error).__name__, exc_info=error if self.log_texts else None)
            reason = str(error) if isinstance(error, EbmcalError) else type(error).__name__
            raise Refusal(500, f"The model could not answer: {reason}") from error
