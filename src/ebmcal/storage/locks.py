"""One process at a time on a folder: the second is told who holds it, or waits."""

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ebmcal.errors import EbmcalError

try:
    import fcntl
except ImportError:  # Windows has no flock; there the lock is not enforced
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path, *, waiting: Callable[[str], None] | None = None, poll: float = 1.0) -> Iterator[None]:
    """Hold the lock of a folder. When it is taken: raise, or, with `waiting`, call it once with the holder and wait.

    The system releases the lock when its process ends, however it ends: there are no stale locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise EbmcalError(
            f"Could not write in {folder}: {error.strerror}. Choose another folder or grant access."
        ) from error
    with handle:
        _take(handle, folder, waiting, poll)
        handle.seek(0)
        handle.truncate()
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        handle.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}")
        handle.flush()
        yield


def _take(handle: object, folder: Path, waiting: Callable[[str], None] | None, poll: float) -> None:
    told = False
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = (folder / LOCK).read_text(encoding="utf-8") or "another process"
            if waiting is None:
                raise EbmcalError(f"{folder} is in use by {holder}. Wait for it, or choose another folder.") from None
            if not told:
                waiting(holder)
                told = True
            time.sleep(poll)
