"""Files that are whole or absent: written aside, flushed, renamed; checksums that tell later damage; fingerprints.

A folder is sealed by `checksums.json`, the SHA-256 of each of its files; `damage` says which of them are not as they
were. Files that were added do not count: a user may keep things beside ours.

Used by both halves. Nothing here knows what the files mean.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError

#: How libraries that write files themselves say that the disk is full.
FULL_DISK = (
    "No space left on device", "File too large", "PytorchStreamWriter failed", "enforce fail at inline_container",
    "iostream error",
)  # fmt: skip

SEAL = "checksums.json"

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
    """Yield a new folder beside `path`; on success it is sealed, flushed and takes the place of `path`.

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
            seal(aside)
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


def write_json(path: str | Path, value: Any, *, checked: bool = False) -> None:
    """Write JSON, atomically, indented, keys in the order given; `checked` adds a checksum for `read_json`."""
    value = {**value, CHECK: fingerprint(value)} if checked else value
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; a damaged file is an `EbmcalError` that names it."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EbmcalError(f"{path} does not exist.") from error
    except (ValueError, OSError, RecursionError) as error:
        raise EbmcalError(f"{path} is not readable JSON: {error}. Delete it to have it made again.") from error
    if isinstance(value, dict) and CHECK in value and value.pop(CHECK) != fingerprint(value):
        raise EbmcalError(f"{path} is damaged: its checksum is another. Delete it to have it made again.")
    return value


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


def seal(folder: Path, paths: Iterable[Path] | None = None) -> None:
    """Write the checksums of the files below a folder, or of these, into its `checksums.json`."""
    found = sorted(p for p in (folder.rglob("*") if paths is None else paths) if p.is_file() and p != folder / SEAL)
    write_json(folder / SEAL, {p.relative_to(folder).as_posix(): checksum(p) for p in found})


def reseal(path: Path) -> None:
    """Enter a file, new or changed, into the checksums of its folder, and drop names that no file has.

    Damaged checksums are begun anew.
    """
    place, sums = path.parent / SEAL, {}
    with contextlib.suppress(EbmcalError, AttributeError, TypeError, ValueError):  # not JSON, or JSON of another kind
        sums = {name: digest for name, digest in read_json(place).items() if (path.parent / name).is_file()}
    write_json(place, sums | {path.name: checksum(path)})


def damage(folder: Path) -> list[str]:
    """What is not as it was when a folder was sealed: "NAME is missing", "NAME changed"; empty when it is whole."""
    try:
        sums = read_json(folder / SEAL)
        wrong = {name: _what_is_wrong(inside(folder, name), digest) for name, digest in sums.items()}
    except (EbmcalError, AttributeError, ValueError):  # not JSON, no object, or names that are no names
        return [f"{SEAL} is missing or unreadable"]
    return [f"{name} {what}" for name, what in wrong.items() if what]


def is_whole(folder: Path, what: str, say: Callable[[str], None]) -> bool:
    """Whether a sealed folder is there and whole. Damage is said: whoever asks makes it again."""
    wrong = damage(folder) if folder.exists() else []
    if wrong:
        say(f"{what} is damaged ({', '.join(wrong)}): made again")
    return folder.exists() and not wrong


def require_whole(model: Path) -> None:
    """Refuse a model folder that is sealed and damaged; one without checksums is taken as it is."""
    wrong = damage(model) if (model / SEAL).exists() else []
    if wrong:
        raise EbmcalError(
            f"The model {model} is damaged: {', '.join(wrong)}. The same `ebmcal run` trains it again; if you changed "
            f"it yourself, copy it out of the run folder and delete the copy's {SEAL}."
        )


def sweep(folder: Path) -> None:
    """Remove what a process that was killed was writing in a folder, or in its place; the caller holds its lock."""
    for left in [*folder.rglob(".*.part"), *folder.parent.glob(f".{folder.name}.*.part")]:
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def inside(folder: str | Path, name: str) -> Path:
    """`folder / name`, refused when it lies elsewhere: names come from files that others may have written.

    >>> inside("/tmp/run", "model/config.json").as_posix()
    '/tmp/run/model/config.json'
    """
    path = Path(folder) / name
    if not path.resolve().is_relative_to(Path(folder).resolve()):
        raise EbmcalError(f"{name!r} leaves the folder {folder}; only names inside it are allowed.")
    return path


def _what_is_wrong(path: Path, digest: str) -> str | None:
    try:
        return None if checksum(path) == digest else "changed"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


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
