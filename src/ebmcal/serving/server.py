"""The server process: it binds a socket, loads the models, runs the app and shuts down gracefully on a signal.

Below HTTP it limits connections: a client that opens many of them, sends half a header, or never reads, costs nothing
but its connection, and not for long. At the connection limit, which is below the file-descriptor limit, the connection
that has waited longest for complete headers is closed in favour of a new one; a new one gets a 503 only if all others
are being served.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ebmcal.errors import EbmcalError
from ebmcal.model import Model, load
from ebmcal.run_dir import model_name
from ebmcal.serving import Limits
from ebmcal.serving.app import create_app
from ebmcal.serving.service import check_log
from ebmcal.serving.ui import add_ui
from ebmcal.storage import PathLike

log = logging.getLogger("ebmcal.serving")

#: The API key is read from the environment: a command line option would be visible in the list of processes.
KEY_VARIABLE = "EBMCAL_API_KEY"

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
LISTEN_BACKLOG = 2048

#: Connections accepted in one go. A few such bursts need descriptors before the limit takes effect.
ACCEPT_BURST = 16

#: File descriptors that are kept free for everything but established connections.
RESERVED_DESCRIPTORS = 256

#: Bytes of a request that are not part of its body: the URL, headers and trailers.
MAX_HEADERS = 65_536


def serve(
    model: PathLike,
    *,
    ui: bool = False,
    baseline: PathLike | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    log_texts: bool = False,
    log_file: PathLike | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Serve a model directory over HTTP until a signal arrives: what `ebmcal serve` does.

    `ui` adds a web page at `/`, which compares the model with `baseline` if that is given.

        ebmcal.serving.serve("runs/a/trials/hidden-seed1/model", port=8000)
    """
    limits, key = limits or Limits(), os.environ.get(KEY_VARIABLE)
    if key is not None and (not key.strip() or key != key.strip() or any(ord(c) < 32 for c in key)):
        raise EbmcalError(f"{KEY_VARIABLE} is empty or has control characters or outer spaces. Set a key or unset it.")
    if baseline is not None and not ui:
        raise EbmcalError("--baseline is shown in the web UI; add --ui.")
    if log_file is not None:
        check_log(Path(log_file).expanduser())
    with bound_socket(host, port) as listening:
        models = _load_models([model] if baseline is None else [model, baseline])
        extend = add_ui if ui else None
        app = create_app(models, limits=limits, api_key=key, log_texts=log_texts, log_file=log_file, extend=extend)
        if key is None and host not in LOCAL_HOSTS:
            report(f"Warning: {host} can be reached by others and there is no API key. Set {KEY_VARIABLE}.")
        what = "web UI" if ui else "POST /v1/classify"
        report(f"Serving {', '.join(models)} at {address(listening)} ({what}). Stop with Ctrl-C.")
        _run(app, listening, limits)
        report("Stopped; all accepted requests were answered.")


def _load_models(folders: Sequence[PathLike]) -> dict[str, Model]:
    """Models by trial or directory; they must have the same labels. The second of two equal names gets a number."""
    models: dict[str, Model] = {}
    for model in map(load, folders):
        name = model_name(model.folder)
        models[f"{name} (2)" if name in models else name] = model
    found = list(models.values())
    if len(found) == 2 and found[0].folder.resolve() == found[1].folder.resolve():
        raise EbmcalError(f"--baseline is the served model itself, {found[0].folder}. Give another model.")
    labels = [model.label_names for model in found]
    if labels[0] != labels[-1]:
        shown = " and ".join(", ".join(names) for names in labels)
        raise EbmcalError(f"Model and baseline have different labels: {shown}. Give two models of the same task.")
    return models


def bound_socket(host: str, port: int) -> socket.socket:
    """A bound socket; created before the model is loaded, so that a port in use is reported at once."""
    if not 0 <= port <= 65535:
        raise EbmcalError(f"--port: expected a number from 0 (a free port) to 65535, got {port}.")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
        # asyncio sets this only on sockets it created itself; without it, each response is delayed by 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise EbmcalError(f"Cannot serve at {host}:{port}: {error}. Choose another --port or --host.") from error


def address(listening: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _run(app: Any, listening: socket.socket, limits: Limits) -> None:
    """Run an app on a bound socket until a signal arrives."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RateLimit())
    logging.basicConfig(handlers=[handler], level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, ws="none", backlog=ACCEPT_BURST,
        http=limited_protocol(limits, descriptor_limit(limits.max_connections)),
        timeout_graceful_shutdown=round(limits.timeout) + 5, timeout_keep_alive=30,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after the shutdown
        _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # asyncio accepts as many connections at once as the backlog it was given (a small number, which bounds the
        # descriptors in use), and limits the queue of the kernel to the same number, which should be long.
        for listening in sockets or ():
            listening.listen(LISTEN_BACKLOG)


def descriptor_limit(wanted: int) -> int:
    """How many of the wanted connections the file-descriptor limit allows; raises the soft limit if possible."""
    if sys.platform == "win32":
        return wanted
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if soft < wanted + RESERVED_DESCRIPTORS:
        soft = min(wanted + RESERVED_DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    return min(wanted, max(soft - RESERVED_DESCRIPTORS, soft // 2))


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on connections; create subclasses with `limited_protocol`."""

    max_connections: int
    header_timeout: float
    write_timeout: float
    idle: "dict[LimitedProtocol, None]"  # connections without complete headers, longest first; shared

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._n_bytes = 0  # received, apart from bodies
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
        self._n_bytes += len(data)
        super().data_received(data)
        if self._n_bytes > MAX_HEADERS:
            self.send_400_response("The headers are too long.")
        elif self in self.idle and "headers" not in self._timers:  # a further request begins
            self._start_timer("headers", self.header_timeout)

    def on_message_begin(self) -> None:
        self._n_bytes = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._n_bytes -= len(body)
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        self._n_bytes = 0

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
    settings = {"header_timeout": limits.header_timeout, "write_timeout": limits.timeout, "idle": {}}
    return type("LimitedProtocol", (LimitedProtocol,), settings | {"max_connections": max_connections})


class RateLimit(logging.Filter):
    """Passes at most `per_second` records of each line of code in a second; the next one counts those dropped.

    >>> limit = RateLimit(per_second=2)
    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "message", None, None)
    >>> [limit.filter(record) for _ in range(4)]
    [True, True, False, False]
    """

    def __init__(self, per_second: int = 10) -> None:
        super().__init__()
        self.per_second, self._second = per_second, 0
        self._n_seen: Counter[tuple[str, int]] = Counter()
        self._n_dropped: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if int(record.created) != self._second:
            self._second, self._n_seen = int(record.created), Counter()
        place = (record.pathname, record.lineno)
        self._n_seen[place] += 1
        if self._n_seen[place] > self.per_second:
            self._n_dropped[place] += 1
            return False
        if dropped := self._n_dropped.pop(place, 0):
            record.msg, record.args = f"{record.getMessage()} ({dropped} such messages before it were dropped)", None
        return True
