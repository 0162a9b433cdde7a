"""Chunks of an output: to standard output, or into a working directory from which the file is assembled.

The working directory of `out.csv` is `.out.csv.ebmcal-<fingerprint>` next to it; the fingerprint covers the model and
all settings. `job.json` marks it as ours. Chunk 12 is `000012.csv` plus `000012.json`, which holds the hash of the
input rows it was computed from and the checksum of the chunk. A killed job reuses a chunk if both still match and
computes it again if not, so neither rows of another input nor a truncated chunk can end up in the output.
"""

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ebmcal.errors import EbmcalError
from ebmcal.prediction.reading import InputRow
from ebmcal.prediction.writing import Encoder
from ebmcal.storage import atomic_write, file_checksum, fingerprint, locked, read_json, write_json

CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 4_000_000
MARKER = "job.json"


@dataclass(frozen=True)
class Chunk:
    """Consecutive input rows; `start` is the number of the first one, counted from 0."""

    number: int
    start: int
    rows: list[InputRow]

    @property
    def hash(self) -> str:
        """Depends on everything that the output of the chunk depends on, apart from the settings of the job."""
        content = repr((self.start, [(row.line, row.values, row.error) for row in self.rows]))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class OutputChunk:
    """The output rows of a chunk, their counts, and the first error."""

    number: int
    hash: str
    rows: list[dict[str, Any]]
    counts: dict[str, int] = field(default_factory=dict)  # rows, errors, abstained, ood
    first_error: str | None = None


def split_chunks(rows: Iterator[InputRow], text_column: str) -> Iterator[Chunk]:
    """Chunks of at most `CHUNK_ROWS` rows; the input alone determines where they end."""
    number, start, size, found = 0, 0, 0, list[InputRow]()
    for row in rows:
        found.append(row)
        size += len(str(row.values.get(text_column, "")))
        if len(found) == CHUNK_ROWS or size > CHUNK_CHARACTERS:
            yield Chunk(number, start, found)
            number, start, size, found = number + 1, start + len(found), 0, []
    if found:
        yield Chunk(number, start, found)


class Target(Protocol):
    """Where output chunks go."""

    def reuse(self, chunk: Chunk) -> dict[str, Any] | None:
        """What is recorded for a chunk that an earlier, interrupted job has finished; None if it must be computed."""

    def write(self, chunk: OutputChunk) -> None: ...

    def finish(self, n_chunks: int) -> None: ...


class StandardOutput:
    """Chunks are printed and flushed as they are finished."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._print(encoder.header())

    def reuse(self, chunk: Chunk) -> None:
        return None

    def write(self, chunk: OutputChunk) -> None:
        self._print(self.encoder.encode(chunk.rows))

    def finish(self, n_chunks: int) -> None:
        pass

    def _print(self, content: bytes) -> None:
        sys.stdout.write(content.decode())
        sys.stdout.flush()


class OutputFile:
    """Chunks are collected in the working directory until the output is complete; use `open_output_file`."""

    def __init__(self, output: Path, directory: Path, encoder: Encoder, overwrite: bool) -> None:
        self.output, self.directory, self.encoder, self.overwrite = output, directory, encoder, overwrite

    def reuse(self, chunk: Chunk) -> dict[str, Any] | None:
        path, record = self._paths(chunk.number)
        try:
            found = read_json(record)
            is_same = found["hash"] == chunk.hash and found["checksum"] == file_checksum(path)
            return dict(found) if is_same else None
        except (EbmcalError, OSError, KeyError, TypeError):  # missing or incomplete
            return None

    def write(self, chunk: OutputChunk) -> None:
        path, record = self._paths(chunk.number)
        content = self.encoder.encode(chunk.rows)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        about = {"hash": chunk.hash, "checksum": hashlib.sha256(content).hexdigest()}
        write_json(record, about | {"counts": chunk.counts, "first_error": chunk.first_error})

    def finish(self, n_chunks: int) -> None:
        """Assemble the output, then remove the working directory and those of unfinished jobs for the same output."""
        if self.output.exists() and not self.overwrite:
            raise EbmcalError(f"{self.output} was created by another process in the meantime. Move it and run again.")
        chunks = [self._paths(i)[0] for i in range(n_chunks)]
        with atomic_write(self.output) as temporary:
            if self.encoder.format == "parquet":
                self.encoder.join_tables(chunks, temporary)
            else:
                self._concatenate(chunks, temporary)
        _remove_job(self.directory)
        for other in _jobs_of(self.output):
            with contextlib.suppress(EbmcalError), locked(other):  # one that is running stays
                _remove_job(other)

    def _concatenate(self, chunks: Sequence[Path], target: Path) -> None:
        with open(target, "wb") as joined:
            joined.write(self.encoder.header())
            for chunk in chunks:
                with open(chunk, "rb") as part:
                    shutil.copyfileobj(part, joined)

    def _paths(self, number: int) -> tuple[Path, Path]:
        return self.directory / f"{number:06d}.{self.encoder.format}", self.directory / f"{number:06d}.json"


@contextlib.contextmanager
def open_output_file(
    output: Path, encoder: Encoder, settings: Mapping[str, Any], overwrite: bool
) -> Iterator[OutputFile]:
    """The target for a file; `settings` is everything besides the input that the output depends on."""
    about = json.loads(json.dumps({**settings} | {"columns": encoder.columns, "format": encoder.format}, default=str))
    directory = output.with_name(f".{output.name}.ebmcal-{fingerprint(about, encoder.escape_formulas)}")
    if directory.exists() and not (directory / MARKER).exists() and {p.name for p in directory.iterdir()} - {".lock"}:
        raise EbmcalError(f"{directory} exists and is not a working directory of ebmcal predict. Move or delete it.")
    with locked(directory):
        write_json(directory / MARKER, about)
        yield OutputFile(output, directory, encoder, overwrite)


def _jobs_of(output: Path) -> list[Path]:
    """Working directories of unfinished jobs for an output."""
    marked = output.parent.glob(f".{_literal(output.name)}.ebmcal-{'[0-9a-f]' * 16}/{MARKER}")
    return sorted(path.parent for path in marked)


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _remove_job(directory: Path) -> None:
    (directory / MARKER).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
