"""A model behind HTTP: `ebmcal serve`, and the ASGI app for your own server.

`server` is the process with its limits on connections, `app` has the routes, `schema` the forms of requests and
responses, `service` queues texts in a `batcher`, computes the answers and logs them, `ui` is a web page.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from ebmcal.serving.app import create_app as create_app
    from ebmcal.serving.server import serve as serve

__all__ = ["Limits", "create_app", "serve"]


def __getattr__(name: str) -> Any:  # torch and FastAPI are imported on first use
    modules = {"create_app": "ebmcal.serving.app", "serve": "ebmcal.serving.server"}
    if name not in modules:
        raise AttributeError(f"module 'ebmcal.serving' has no attribute {name!r}")
    return getattr(importlib.import_module(modules[name]), name)


@dataclass(frozen=True)
class Limits:
    """Limits of a server; each one is an option of `ebmcal serve`. All problems are reported at once.

    >>> Limits(max_texts=8).max_texts
    8
    >>> Limits(max_texts=0, timeout=-1)
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: max_texts must be at least 1, got 0. timeout must be at least 0.001, got -1.
    """

    max_body: int = 1_000_000  # bytes per request; above: 413
    max_texts: int = 256  # per request; above: 422, as for the next two
    max_characters: int = 100_000  # per text
    max_tokens: int = 32_768  # per request, after each text is truncated to the model's maximum length
    max_queue: int = 1024  # texts waiting for the model; a request that does not fit gets 429
    max_buffered: int = 64_000_000  # bytes of all request bodies in memory; a request that does not fit gets 503
    max_connections: int = 4096  # lowered to what the file-descriptor limit allows
    timeout: float = 30.0  # seconds per request; then 504
    header_timeout: float = 10.0  # seconds until the headers of a request are complete; then the connection is closed
    batch_tokens: int = 1024  # per batch: larger batches are hardly faster on a CPU and increase latency
    batch_wait: float = 0.002  # maximum batching delay in seconds, only while several clients are active
    stall: float = 60.0  # seconds without progress of the worker after which /healthz fails

    def __post_init__(self) -> None:
        special = {"batch_wait": 0, "max_queue": self.max_texts, "max_buffered": self.max_body}
        wrong = []
        for name, value in vars(self).items():
            least = special.get(name, 1 if isinstance(getattr(Limits, name), int) else 0.001)
            if not value >= least:  # also for NaN
                wrong.append(f"{name} must be at least {least}, got {value}.")
        if wrong:
            raise EbmcalError(" ".join(wrong))
