"""Files and directories on disk: atomic writes, JSON, fingerprints, locks and the shared cache directory.

A stage writes to a temporary file or directory next to its target and renames it, so a reader sees the old version or
the new one, never half of one. Errors of the file system become an `EbmcalError` that names the path.
"""

import contextlib
import glob
import hashlib
import json
import os
import secrets
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ebmcal.errors import EbmcalError

PathLike = str | os.PathLike[str]

#: How libraries that write files themselves report a full disk.
_FULL_DISK = (
    "No space left on device", "File too large", "PytorchStreamWriter failed", "enforce fail at inline_container",
    "iostream error",
)  # fmt: skip

_LOCK_FILE = ".lock"


@contextlib.contextmanager
def explain_disk_errors(path: PathLike) -> Iterator[None]:
    """Turn write errors below `path`, raised by the system or by a library, into an `EbmcalError` that names it."""
    try:
        yield
    except Exception as error:
        is_full = any(sign in str(error) for sign in _FULL_DISK)
        if not is_full and not isinstance(error, OSError):
            raise
        reason = _FULL_DISK[0] if is_full else getattr(error, "strerror", None) or error
        raise EbmcalError(
            f"Could not write {path}: {reason}. Finished work is kept; free some space or fix the permissions and run "
            "the same command again."
        ) from error


@contextlib.contextmanager
def atomic_write(path: PathLike, *, directory: bool = False) -> Iterator[Path]:
    """Yield a temporary file (or directory) next to `path`; on success it replaces `path`.

    >>> with atomic_write("/tmp/example.txt") as temporary:
    ...     _ = temporary.write_text("complete")
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir() if directory else temporary.touch()
            yield temporary
            for written in (temporary, *temporary.rglob("*")):
                _flush(written)
            if path.is_symlink():  # into a read-only cache: replace the link, keep its target
                path.unlink()
            if directory and path.exists():
                shutil.rmtree(path)
            os.replace(temporary, path)
            _flush(path.parent)
        finally:
            remove(temporary)


def _flush(path: Path) -> None:
    if os.name != "nt":  # which cannot open a directory
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a directory; no error if it does not exist."""
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def remove_temporary_files(path: Path) -> None:
    """Remove what a killed process left half written of a file, or in a directory; the caller holds a lock."""
    name = glob.escape(path.name)
    for left in [*path.rglob(".*.tmp"), *path.parent.glob(f".{name}.{'[0-9a-f]' * 12}.tmp")]:
        with contextlib.suppress(OSError):
            remove(left)


def write_text(path: PathLike, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: PathLike, value: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: PathLike) -> Any:
    """Read JSON; a missing or corrupt file is an `EbmcalError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EbmcalError(f"{path} does not exist.") from error
    except (ValueError, OSError, RecursionError) as error:
        raise EbmcalError(f"{path} is not valid JSON: {error}.") from error


def check_writable(path: PathLike, option: str, overwrite: bool = True) -> None:
    """Raise before any work starts if no file can be written at `path`; `option` is what the user passed.

    Without `overwrite`, an existing file is an error.

    >>> check_writable("/tmp", "--json")
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: --json /tmp is a directory; expected a file.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise EbmcalError(f"{option} {path} is a directory; expected a file.")
    existing = next((p for p in path.absolute().parents if p.exists()), Path("/"))
    if not existing.is_dir():
        raise EbmcalError(f"{option} {path} cannot be written: {existing} is a file, not a directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise EbmcalError(f"{option} {path} cannot be written: no permission in {existing}. Choose another path.")
    if path.exists() and not overwrite:
        raise EbmcalError(f"{option} {path} exists already. Choose another name, or pass --overwrite.")


def fingerprint(*parts: Any) -> str:
    """16 hex digits that depend on the JSON form of `parts`: the key of anything derived from them.

    >>> fingerprint({"a": 1}) == fingerprint({"a": 1}), len(fingerprint("x"))
    (True, 16)
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def file_checksum(path: PathLike) -> str:
    """SHA-256 of the bytes of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def cache_dir(given: PathLike | None = None) -> Path:
    """The cache that runs share: `given`, $EBMCAL_CACHE, or `ebmcal` in the user's cache directory."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "ebmcal"
    return Path(given or os.environ.get("EBMCAL_CACHE") or user_cache).expanduser()


@contextlib.contextmanager
def locked(directory: Path, *, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a directory. If another process holds it: raise, or, with `on_wait`, report it and wait.

    The operating system releases the lock when its process ends, so there are no stale locks.
    """
    lock = FileLock(directory / _LOCK_FILE, poll_interval=1.0)
    with explain_disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = _lock_owner(directory / _LOCK_FILE)
        if on_wait is None:
            raise EbmcalError(f"{directory} is in use by {owner}. Wait for it or use another directory.") from None
        on_wait(owner)
        lock.acquire()
    except OSError as error:
        raise EbmcalError(f"Could not lock {directory}: {error.strerror}. Use another directory.") from error
    try:
        # The owner is recorded after the first byte, which is the one Windows locks. On a full disk it stays unnamed.
        with contextlib.suppress(OSError), open(directory / _LOCK_FILE, "r+b", buffering=0) as handle:
            handle.seek(1)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            handle.truncate()
        yield
    finally:
        lock.release()


def _lock_owner(path: Path) -> str:
    with open(path, "rb", buffering=0) as handle:
        handle.seek(1)
        return handle.read().decode(errors="replace") or "another process"


class TemporaryDirectory:
    """A new directory that is removed when this object is garbage collected or the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ebmcal-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
