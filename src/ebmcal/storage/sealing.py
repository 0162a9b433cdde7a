"""Folders that are known to be whole: `checksums.json` in them holds the SHA-256 of each of their files.

`damage` says which of them are not as they were. Files that were added do not count: a user may keep things beside
ours. Models, checkpoints, caches and run folders are sealed.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import inside, read_json, write_json, writing
from ebmcal.storage.checksums import checksum

SEAL = "checksums.json"


@contextlib.contextmanager
def writing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; on success it is sealed, flushed and takes the place of `path`.

    >>> with writing_folder("/tmp/example-folder") as aside:
    ...     _ = (aside / "a.txt").write_text("whole")
    """
    with writing(path, is_folder=True) as aside:
        yield aside
        seal(aside)


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


def admit(path: Path, coming: Path) -> None:
    """Let a file of a sealed folder be as it is, or as `coming`, which is about to take its place.

    `reseal` afterwards; a process that is killed before that leaves a folder that is whole either way.
    """
    place = path.parent / SEAL
    if place.exists():
        write_json(place, read_json(place) | {path.name: [checksum(path), checksum(coming)]})


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
    if wrong and not (folder / SEAL).exists():
        say(f"{what} has no {SEAL} (an earlier version wrote none, or it was deleted): made again")
    elif wrong:
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


def _what_is_wrong(path: Path, digest: str | list[str]) -> str | None:
    try:
        return None if checksum(path) in (digest if isinstance(digest, list) else [digest]) else "changed"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
