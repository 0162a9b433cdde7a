"""One process at a time on a folder: the second is told who holds it, or waits."""

import contextlib
import datetime
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ebmcal.errors import EbmcalError

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path, *, waiting: Callable[[str], None] | None = None, poll: float = 1.0) -> Iterator[None]:
    """Hold the lock of a folder. When it is taken: raise, or, with `waiting`, call it once with the holder and wait.

    The system releases the lock when its process ends, however it ends: there are no stale locks.
    """
    lock = FileLock(folder / LOCK, poll_interval=poll)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _take(lock, folder, waiting)
    except OSError as error:
        raise EbmcalError(
            f"Could not write in {folder}: {error.strerror}. Choose another folder or grant access."
        ) from error
    try:
        _sign(folder / LOCK)
        yield
    finally:
        lock.release()


def _take(lock: FileLock, folder: Path, waiting: Callable[[str], None] | None) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = _holder(folder / LOCK)
        if waiting is None:
            raise EbmcalError(f"{folder} is in use by {holder}. Wait for it, or choose another folder.") from None
        waiting(holder)
        lock.acquire()


# Who holds the lock stands in its file after the first byte: that one is what Windows locks.


def _sign(path: Path) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    # Where the disk is full the lock holds all the same, only without a name.
    with contextlib.suppress(OSError), open(path, "r+b", buffering=0) as handle:
        handle.seek(1)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}".encode())
        handle.truncate()


def _holder(path: Path) -> str:
    with open(path, "rb", buffering=0) as handle:
        handle.seek(1)
        return handle.read().decode(errors="replace") or "another process"
