"""Limits on connections, below HTTP: their number, the time until headers are complete, and slow readers.

A client that opens connections and sends half a header, or never reads, costs nothing but its connection, and not for
long. At the connection limit, which is below the file-descriptor limit, the connection that has waited longest for
complete headers is closed in favour of a new one; a new one gets a 503 only if all others are being served.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ebmcal.serving.limits import Limits

log = logging.getLogger("ebmcal.serving")

#: File descriptors that are kept free for everything but established connections.
RESERVED_DESCRIPTORS = 256

#: Connections accepted in one go. A few such bursts need descriptors before the limit takes effect.
ACCEPT_BURST = 16


def descriptor_limit(wanted: int) -> int:
    """How many of the wanted connections the file-descriptor limit allows; raises the soft limit if possible."""
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + RESERVED_DESCRIPTORS:
        raised = wanted + RESERVED_DESCRIPTORS
        raised = raised if hard == resource.RLIM_INFINITY else min(raised, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft - RESERVED_DESCRIPTORS, soft // 2))


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with these limits; create subclasses with `limited_protocol`."""

    max_connections: int
    header_timeout: float
    write_timeout: float
    idle: "dict[LimitedProtocol, None]"  # connections without complete headers, longest first; shared

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.idle[self] = None
        self._start_timer("headers", self.header_timeout)
        if len(self.connections) > self.max_connections:
            self._make_room()

    def _make_room(self) -> None:
        oldest = next(iter(self.idle))
        log.warning("the limit of %d connections is reached", self.max_connections)
        if oldest is not self:
            del self.idle[oldest]
            oldest.transport.abort()
            return
        body = json.dumps({"error": "Too many connections. Try again later."}).encode()
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self in self.idle and "headers" not in self._timers:  # a further request begins
            self._start_timer("headers", self.header_timeout)

    def on_headers_complete(self) -> None:
        self.idle.pop(self, None)
        self._stop_timer("headers")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else a pipelined request follows
            self.idle[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer("write", self.write_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer("write")

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._stop_timer("headers")
        self._stop_timer("write")
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _start_timer(self, name: str, seconds: float) -> None:
        """Close the connection unless the timer is stopped in time."""
        self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()


def limited_protocol(limits: Limits, max_connections: int) -> type[LimitedProtocol]:
    """A protocol class for one server, with its limits."""
    settings: dict[str, Any] = {
        "max_connections": max_connections, "header_timeout": limits.header_timeout, "write_timeout": limits.timeout,
        "idle": {},
    }  # fmt: skip
    return type("LimitedProtocol", (LimitedProtocol,), settings)


class RateLimit(logging.Filter):
    """Passes at most `per_second` records per second, after a burst; the next record reports how many were dropped.

    >>> limit = RateLimit(per_second=1, burst=2, clock=lambda: 0.0)
    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "message", None, None)
    >>> [limit.filter(record) for _ in range(4)]
    [True, True, False, False]
    """

    def __init__(self, per_second: float = 100, burst: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.per_second, self.burst, self.clock = per_second, burst, clock
        self._available, self._at, self._n_dropped = float(burst), clock(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self.clock()
        self._available = min(self.burst, self._available + (now - self._at) * self.per_second)
        self._at = now
        if self._available < 1:
            self._n_dropped += 1
            return False
        self._available -= 1
        if self._n_dropped:
            record.msg = f"{record.getMessage()} ({self._n_dropped} messages before this one were dropped)"
            record.args, self._n_dropped = None, 0
        return True
