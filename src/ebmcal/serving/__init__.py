"""A model behind HTTP: `ebmcal serve`, and the ASGI app for your own server.

`server` is the process with its limits on connections, `app` has the routes with the types of requests and responses,
`service` queues texts in a `batcher`, computes the answers and logs them, `ui` is a web page.
"""

import importlib
from dataclasses import dataclass, field
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


def _limit(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True)
class Limits:
    """Limits of a server; each one is an option of `ebmcal serve`. All problems are reported at once.

    >>> Limits(max_texts=8).max_texts
    8
    >>> Limits(max_texts=0, timeout=-1)
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: max_texts must be at least 1, got 0. timeout must be at least 0.001, got -1.
    """

    max_body: int = _limit(1_000_000, "Maximum bytes per request (413).")
    max_texts: int = _limit(256, "Maximum texts per request (422).")
    max_characters: int = _limit(100_000, "Maximum characters per text (422).")
    max_tokens: int = _limit(32_768, "Maximum tokens per request (422).")
    max_queue: int = _limit(1024, "Maximum texts in the queue (429).")
    max_buffered: int = _limit(64_000_000, "Maximum bytes of all request bodies in memory (503).")
    max_connections: int = _limit(4096, "Maximum open connections; at most what the system allows.")
    timeout: float = _limit(30.0, "Maximum seconds per request (504).")
    header_timeout: float = _limit(10.0, "Maximum seconds until the headers of a request are complete.")
    # Larger batches are hardly faster on a CPU and increase latency.
    batch_tokens: int = _limit(1024, "Maximum tokens per batch.")
    # Only while several clients are active.
    batch_wait: float = _limit(0.002, "Maximum batching delay in seconds.")
    stall: float = _limit(60.0, "Seconds without progress after which /healthz fails.")

    def __post_init__(self) -> None:
        special = {"batch_wait": 0, "max_queue": self.max_texts, "max_buffered": self.max_body}
        wrong = []
        for name, value in vars(self).items():
            least = special.get(name, 1 if isinstance(getattr(Limits, name), int) else 0.001)
            if not value >= least:  # also for NaN
                wrong.append(f"{name} must be at least {least}, got {value}.")
        if wrong:
            raise EbmcalError(" ".join(wrong))
