"""Files that are whole or absent: written aside, flushed, renamed; and what the system says when that fails.

Used by both halves. Nothing here knows what the files mean.
"""

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.storage.checksums import fingerprint

#: How libraries that write files themselves say that the disk is full.
FULL_DISK = (
    "No space left on device", "File too large", "PytorchStreamWriter failed", "enforce fail at inline_container",
    "iostream error",
)  # fmt: skip

#: In a JSON object that was written with `checked`.
CHECK = "checksum_of_the_rest"


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
def writing(path: str | os.PathLike[str], *, is_folder: bool = False) -> Iterator[Path]:
    """Yield a temporary file, or folder, beside `path`; on success it is flushed and takes the place of `path`.

    A reader sees the old file or the new one, never half of one. Operating system errors (disk full,
    no permission) become an `EbmcalError` that names the file.

    >>> with writing("/tmp/example.txt") as aside:
    ...     _ = aside.write_text("whole")
    """
    path = Path(path)
    with explaining_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _make_aside(path, is_folder)
    try:
        with explaining_disk(path):
            yield aside
            os.chmod(aside, (0o777 if is_folder else 0o666) & ~_umask())
            for written in (aside, *aside.rglob("*")):
                _flush(written)
            if path.is_symlink():  # of a read-only cache: the link goes, what it points to stays
                path.unlink()
            if is_folder and path.exists():
                shutil.rmtree(path)
            os.replace(aside, path)
            _flush(path.parent)
    finally:
        remove(aside)


def check_target(path: str | os.PathLike[str], what: str) -> None:
    """Refuse, before any work, a place where no file can be written; `what` names the option that gave it.

    >>> check_target("/tmp", "--json")
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: --json /tmp is a folder; give a file.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise EbmcalError(f"{what} {path} is a folder; give a file.")
    there = next((p for p in path.absolute().parents if p.exists()), Path("/"))
    if not there.is_dir():
        raise EbmcalError(f"{what} {path} cannot be written: {there} is a file, not a folder.")
    if not can_write(there):
        raise EbmcalError(f"{what} {path} cannot be written: no permission in {there}. Choose another place.")


def can_write(folder: Path) -> bool:
    """Whether files can be made in a folder, or it can be made."""
    there = next((p for p in (folder.absolute(), *folder.absolute().parents) if p.exists()), Path("/"))
    return os.access(there, os.W_OK | os.X_OK)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file, atomically, as UTF-8."""
    with writing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any, *, checked: bool = False) -> None:
    """Write JSON, atomically, indented, keys in the order given; `checked` adds a checksum for `read_json`."""
    value = {**value, CHECK: fingerprint(value)} if checked else value
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str], *, must_be_checked: bool = False) -> Any:
    """Read JSON; a damaged file is an `EbmcalError` that names it; `must_be_checked`: also one without a checksum."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EbmcalError(f"{path} does not exist.") from error
    except IsADirectoryError as error:
        raise EbmcalError(f"{path} is a folder; a JSON file is expected.") from error
    except (ValueError, OSError, RecursionError) as error:
        raise EbmcalError(f"{path} is not readable JSON: {error}. Delete it to have it made again.") from error
    is_checked = isinstance(value, dict) and CHECK in value
    if must_be_checked and not is_checked:
        raise EbmcalError(f"{path} is damaged or something else: ebmcal writes a checksum into it, and it has none.")
    if is_checked and value.pop(CHECK) != fingerprint(value):
        raise EbmcalError(
            f"{path} is damaged or was changed by hand: its checksum is another. Delete it to have it made again."
        )
    return value


def sweep(folder: Path) -> None:
    """Remove what a process that was killed was writing in a folder, or in its place; the caller holds its lock."""
    for left in [*folder.rglob(".*.part"), *folder.parent.glob(f".{folder.name}.*.part")]:
        with contextlib.suppress(OSError):  # in a cache that others share and that is read-only
            remove(left)


def inside(folder: str | Path, name: str) -> Path:
    """`folder / name`, refused when it lies elsewhere: names come from files that others may have written.

    >>> inside("/tmp/run", "model/config.json").as_posix()
    '/tmp/run/model/config.json'
    """
    path = Path(folder) / name
    if not path.resolve().is_relative_to(Path(folder).resolve()):
        raise EbmcalError(f"{name!r} leaves the folder {folder}; only names inside it are allowed.")
    return path


def _make_aside(path: Path, is_folder: bool) -> Path:
    prefix, suffix = f".{path.name}.", ".part"
    if is_folder:
        return Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=suffix))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=suffix)
    os.close(handle)
    return Path(name)


def remove(path: Path) -> None:
    """Remove a file or a folder; no error where it is gone."""
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder, and flushes only what is open for writing
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
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
