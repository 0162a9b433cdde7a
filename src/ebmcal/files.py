"""Files that are whole or absent: written aside, flushed, renamed; and fingerprints of what they hold.

Used by both halves. Nothing here knows what the files mean.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError

#: How libraries that write files themselves say that the disk is full.
FULL_DISK = ("No space left on device", "PytorchStreamWriter failed writing")


@contextlib.contextmanager
def explaining_disk(path: str | Path) -> Iterator[None]:
    """Turn errors of writing below `path`, of the system or of a library, into an `EbmcalError` that names it.

    >>> with explaining_disk("/tmp/example.txt"):
    ...     write_text("/tmp/example.txt", "whole")
    """
    try:
        yield
    except OSError as error:
        raise _explained(Path(path), error) from error
    except Exception as error:
        if any(sign in str(error) for sign in FULL_DISK):
            raise _explained(Path(path), OSError(errno.ENOSPC, FULL_DISK[0])) from error
        raise


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it is flushed and renamed to `path`.

    A reader sees the old file or the new one, never half of one. Operating system errors (disk full,
    no permission) become an `EbmcalError` that names the file.

    >>> with writing("/tmp/example.txt") as aside:
    ...     _ = aside.write_text("whole")
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
    except OSError as error:
        raise _explained(path, error) from error
    aside = Path(name)
    try:
        with explaining_disk(path):
            yield aside
            os.chmod(aside, 0o666 & ~_umask())
            _flush(aside)
            os.replace(aside, path)
            _flush(path.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def writing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; on success its files are flushed and it takes the place of `path`.

    >>> with writing_folder("/tmp/example-folder") as aside:
    ...     _ = (aside / "a.txt").write_text("whole")
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    except OSError as error:
        raise _explained(path, error) from error
    try:
        with explaining_disk(path):
            yield aside
            os.chmod(aside, 0o777 & ~_umask())
            for file in aside.rglob("*"):
                _flush(file)
            if path.exists():
                shutil.rmtree(path)
            os.replace(aside, path)
            _flush(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a whole text file, atomically, as UTF-8."""
    with writing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON, atomically, indented, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; a damaged file is an `EbmcalError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EbmcalError(f"{path} does not exist.") from error
    except (ValueError, OSError) as error:
        raise EbmcalError(f"{path} is not readable JSON: {error}. Delete it to have it made again.") from error


def fingerprint(*parts: Any) -> str:
    """16 hex digits that depend on the JSON form of `parts`: a key for what made a thing.

    >>> fingerprint({"a": 1}) == fingerprint({"a": 1}), len(fingerprint("x"))
    (True, 16)
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def checksum(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(handle)


def _digest(handle: Any) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: handle.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _explained(path: Path, error: OSError) -> EbmcalError:
    return EbmcalError(
        f"Could not write {path}: {error.strerror or error}. What was finished before is kept; "
        "make room or grant write access and run the same command again."
    )
