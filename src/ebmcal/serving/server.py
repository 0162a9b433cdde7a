"""The server process: it binds a socket, loads the models, runs the app and shuts down gracefully on a signal."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from ebmcal.errors import EbmcalError
from ebmcal.model import Model, load
from ebmcal.run_dir import RunDir
from ebmcal.serving.answer_log import check_log
from ebmcal.serving.app import create_app
from ebmcal.serving.connections import ACCEPT_BURST, RateLimit, descriptor_limit, limited_protocol
from ebmcal.serving.limits import Limits
from ebmcal.serving.ui import add_ui
from ebmcal.storage import PathLike

#: The API key is read from the environment: a command line option would be visible in the list of processes.
KEY_VARIABLE = "EBMCAL_API_KEY"

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
LISTEN_BACKLOG = 2048


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
    limits = limits or Limits()
    api_key = read_api_key()
    if baseline is not None and not ui:
        raise EbmcalError("--baseline is shown in the web UI; add --ui.")
    if log_file is not None:
        check_log(Path(log_file).expanduser())
    with bound_socket(host, port) as listening:
        models = load_models([model] if baseline is None else [model, baseline])
        app = create_app(
            models, limits=limits, api_key=api_key, log_texts=log_texts, log_file=log_file,
            extend=add_ui if ui else None,
        )  # fmt: skip
        if api_key is None and host not in LOCAL_HOSTS:
            report(f"Warning: {host} can be reached by others and there is no API key. Set {KEY_VARIABLE}.")
        what = "web UI" if ui else "POST /v1/classify"
        report(f"Serving {', '.join(models)} at {address(listening)} ({what}). Stop with Ctrl-C.")
        run_app(app, listening, limits)
        report("Stopped; all accepted requests were answered.")


def read_api_key() -> str | None:
    """The API key in the environment, or None."""
    key = os.environ.get(KEY_VARIABLE)
    if key is not None and (not key.strip() or key != key.strip() or any(ord(c) < 32 for c in key)):
        raise EbmcalError(f"{KEY_VARIABLE} is empty or has control characters or outer spaces. Set a key or unset it.")
    return key


def load_models(folders: Sequence[PathLike]) -> dict[str, Model]:
    """Models by name; they must have the same labels. The second of two with the same name gets a number."""
    models: dict[str, Model] = {}
    for number, folder in enumerate(folders, start=1):
        model = load(folder)
        name = model_name(model.folder)
        models[name if name not in models else f"{name} ({number})"] = model
    labels = [model.label_names for model in models.values()]
    if any(names != labels[0] for names in labels):
        shown = " and ".join(", ".join(names) for names in labels)
        raise EbmcalError(f"Model and baseline have different labels: {shown}. Give two models of the same task.")
    return models


def model_name(folder: PathLike) -> str:
    """The name of a model: its trial in a run, else its directory.

    >>> model_name("runs/a/trials/hidden-seed1/model")
    'hidden-seed1'
    """
    place = RunDir.containing(folder)
    return place[1].name if place else Path(folder).resolve().name


@contextlib.contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket; created before the model is loaded, so that a port in use is reported at once."""
    if not 0 <= port <= 65535:
        raise EbmcalError(f"--port: expected a number from 0 (a free port) to 65535, got {port}.")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
        # asyncio sets this only on sockets it created itself; without it, each response is delayed by 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        problem = f"Cannot serve at {host}:{port}: {error.strerror}."
        raise EbmcalError(f"{problem} Choose another --port or --host.") from error
    with listening:
        yield listening


def address(listening: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # asyncio accepts as many connections at once as the backlog it was given (a small number, which bounds the
        # descriptors in use), and limits the queue of the kernel to the same number, which should be long.
        for listening in sockets or ():
            listening.listen(LISTEN_BACKLOG)


def run_app(app: FastAPI, listening: socket.socket, limits: Limits) -> None:
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
