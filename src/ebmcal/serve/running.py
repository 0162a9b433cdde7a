"""A server as a process: it binds, says where it is, and on a signal finishes what it has accepted."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from ebmcal.decisions import attached_rule
from ebmcal.errors import EbmcalError
from ebmcal.model import Model, load
from ebmcal.serve.answer_log import check_log
from ebmcal.serve.app import create_app
from ebmcal.serve.limits import Limits

#: Where the key is read from; a flag would show it to everyone who lists processes.
KEY_VARIABLE = "EBMCAL_API_KEY"

LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    log_texts: bool = False,
    log_file: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a model folder over HTTP until a signal comes: what `ebmcal serve` does.

    ebmcal.serve.running.serve("runs/a/checkpoints/hidden-seed1/model", port=8000)
    """
    key = api_key()
    if log_file is not None:
        check_log(Path(log_file).expanduser())
    check_rule(model)
    with bound(host, port) as place:
        loaded = load(model, progress=True)
        app = create_app(
            {model_name(loaded.folder): loaded}, limits=limits, api_key=key, log_texts=log_texts, log_file=log_file
        )
        if key is None and host not in LOCAL:
            say(f"Note: {host} can be reached by others and there is no key. Set {KEY_VARIABLE} to ask for one.")
        run_app(app, place, limits or Limits(), say, f"{loaded!r} at {address(place)} (POST /v1/classify)")


def check_rule(*models: str | Path) -> None:
    """Refuse rules that were fitted for another model or calibrator, before a model is loaded."""
    for folder in map(Path, models):
        if (folder / "config.json").is_file():
            attached_rule(folder)


def api_key() -> str | None:
    """The key of the environment, or None."""
    key = os.environ.get(KEY_VARIABLE)
    if key is not None and (not key.strip() or key != key.strip()):
        raise EbmcalError(f"{KEY_VARIABLE} is empty or has blanks around it. Give a key, or unset it.")
    return key


def model_name(folder: Path) -> str:
    """What a model is called: its folder, or that of its cell in a run.

    >>> model_name(Path("runs/a/checkpoints/hidden-seed1/model"))
    'hidden-seed1'
    """
    folder = folder.resolve()
    return folder.parent.name if folder.name == "model" and "-seed" in folder.parent.name else folder.name


@contextlib.contextmanager
def bound(host: str, port: int) -> Any:
    """A socket on an address; taken before the model is loaded, so that a taken port is said at once."""
    if not 0 <= port <= 65535:
        raise EbmcalError(f"Cannot serve at port {port}; a port is a number from 0 to 65535, and 0 takes a free one.")
    try:
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        place = socket.create_server((host, port), family=kind, backlog=2048)
        # asyncio sets this only on sockets it made itself; without it every answer waits 40 ms for an acknowledgement.
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        why = error.strerror
        raise EbmcalError(f"Cannot serve at {host}:{port}: {why}. Choose another --port or --host.") from error
    with place:
        yield place


def address(place: socket.socket) -> str:
    """Where a socket is, as a browser wants it."""
    host, port = place.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run_app(app: FastAPI, place: socket.socket, limits: Limits, say: Callable[[str], None], greeting: str) -> None:
    """Run an app on a bound socket until a signal comes."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=round(limits.timeout) + 5, timeout_keep_alive=30,
    )  # fmt: skip
    say(f"Serving {greeting}; Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn sends the signal on once all is finished
        uvicorn.Server(config).run(sockets=[place])
    say("Stopped: everything that was accepted is answered.")


def named_models(*folders: str | Path) -> Mapping[str, Model]:
    """Models by name, loaded; of two with one name the second is called by its number."""
    found: dict[str, Model] = {}
    for number, folder in enumerate(folders, start=1):
        loaded = load(folder, progress=True)
        name = model_name(loaded.folder)
        found[name if name not in found else f"{name} ({number})"] = loaded
    return found
