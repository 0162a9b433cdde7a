"""The output: rows as CSV, JSON lines or Parquet, on standard output or in a file. No torch.

Chunks of `out.csv` are collected in the working directory `.out.csv.ebmcal` next to it. Chunk 12 is
`000012.csv` plus `000012.json`, which holds the fingerprint of the job (the model and all settings), the hash of the
input rows and the checksum of the chunk. A killed job reuses a chunk if all three match and computes it again if not,
so neither rows of another input nor a truncated chunk can end up in the output.
"""

import contextlib
import csv
import hashlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebmcal.bulk_prediction.rows import Chunk, OutputChunk
from ebmcal.errors import EbmcalError
from ebmcal.predictions.files import META_KEY
from ebmcal.storage import atomic_write, file_checksum, locked, read_json, remove_temporary_files, write_json

SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_OUR_FILES = re.compile(r"(\d+|all)\.\w+|\.lock|\..*\.tmp")

#: What spreadsheets take for the start of a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Encoder:
    """Rows to bytes of a format: `header`, then `encode` for each chunk, or `join_tables` for Parquet."""

    format: str
    columns: list[str]
    escape_formulas: bool = False
    types: dict[str, Any] = field(default_factory=dict)  # Arrow types of columns, where known
    note: dict[str, Any] = field(default_factory=dict)  # label names and meta, stored in Parquet files

    def header(self) -> bytes:
        """The first line of a CSV; nothing for other formats."""
        return self._csv([self.columns]) if self.format == "csv" else b""

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        if self.format == "jsonl":
            return "".join(f"{_json(row)}\n" for row in rows).encode()
        if self.format == "csv":
            return self._csv([[row.get(column) for column in self.columns] for row in rows])
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {name: _array([row.get(name) for row in rows], self.types.get(name)) for name in self.columns}
        target = io.BytesIO()
        pq.write_table(pa.table(arrays), target, compression="zstd")
        return target.getvalue()

    def _csv(self, rows: Sequence[Sequence[Any]]) -> bytes:
        target = io.StringIO()
        plain = csv.writer(target, lineterminator="\n")
        quoted = csv.writer(target, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in rows:
            cells = [self._cell(value) for value in row]
            # csv quotes a field only for characters of its own line terminator; readers also end lines at \r
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (quoted if has_return else plain).writerow(cells)
        return target.getvalue().encode()

    def _cell(self, value: Any) -> Any:
        if isinstance(value, bool | list | dict):
            value = _json(value)
        is_formula = self.escape_formulas and isinstance(value, str) and value.startswith(FORMULA_STARTS)
        return f"'{value}" if is_formula else value

    def join_tables(self, chunks: Sequence[Path], target: Path) -> None:
        """One Parquet file of all chunks; a column whose types have no common one becomes a string."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        def join(schema: Any) -> None:
            schema = schema.with_metadata({META_KEY: json.dumps(self.note).encode()})
            with pq.ParquetWriter(target, schema, compression="zstd", write_page_checksum=True) as writer:
                for chunk in chunks:
                    writer.write_table(pq.read_table(chunk).cast(schema))

        schemas = [pq.read_schema(chunk) for chunk in chunks]
        try:
            join(pa.unify_schemas(schemas, promote_options="permissive"))
        except pa.ArrowException:  # also for integers that are too large for floats
            types = {name: {schema.field(name).type for schema in schemas} - {pa.null()} for name in self.columns}
            join(pa.schema([(name, t.pop() if len(t) == 1 else pa.string()) for name, t in types.items()]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _array(values: list[Any], type_: Any) -> Any:
    """An Arrow array; lists, objects and values of several types, which JSON may have, become strings."""
    import pyarrow as pa

    try:
        if type_ is not None or not any(isinstance(value, list | dict) for value in values):
            return pa.array(values, type=type_)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    return pa.array([v if v is None or isinstance(v, str) else _json(v) for v in values], pa.string())


class StandardOutput:
    """Chunks are printed and flushed as they are finished."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._print(encoder.header())

    def reuse(self, chunk: Chunk) -> dict[str, Any] | None:
        """What is recorded for a chunk that an earlier, interrupted job has finished; None if it must be computed."""
        return None

    def write(self, chunk: OutputChunk) -> None:
        self._print(self.encoder.encode(chunk.rows))

    def finish(self, n_chunks: int) -> None:
        """Called after the last chunk."""

    def _print(self, content: bytes) -> None:
        sys.stdout.write(content.decode())
        sys.stdout.flush()


class OutputFile(StandardOutput):
    """Chunks are collected in the working directory until the output is complete; use `open_output`."""

    def __init__(self, encoder: Encoder, output: Path, directory: Path, job: str, overwrite: bool) -> None:
        self.encoder, self.output, self.directory, self.job, self.overwrite = encoder, output, directory, job, overwrite

    def reuse(self, chunk: Chunk) -> dict[str, Any] | None:
        path, record = self._paths(chunk.number)
        try:
            found: dict[str, Any] = read_json(record)
            expected = (self.job, chunk.hash, file_checksum(path))
            return found if (found["job"], found["hash"], found["checksum"]) == expected else None
        except (EbmcalError, OSError, KeyError, TypeError):  # missing or incomplete
            return None

    def write(self, chunk: OutputChunk) -> None:
        path, record = self._paths(chunk.number)
        content = self.encoder.encode(chunk.rows)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        about = {"job": self.job, "hash": chunk.hash, "checksum": hashlib.sha256(content).hexdigest()}
        write_json(record, about | {"counts": chunk.counts, "first_error": chunk.first_error})

    def finish(self, n_chunks: int) -> None:
        """Assemble the output, then remove the working directory."""
        if self.output.exists() and not self.overwrite:
            raise EbmcalError(f"{self.output} was created by another process in the meantime. Move it and run again.")
        chunks = [self._paths(i)[0] for i in range(n_chunks)]
        with atomic_write(self.output) as temporary:
            if self.encoder.format == "parquet":
                self.encoder.join_tables(chunks, temporary)
            else:
                with open(temporary, "wb") as joined:
                    joined.write(self.encoder.header())
                    joined.writelines(chunk.read_bytes() for chunk in chunks)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _paths(self, number: int) -> tuple[Path, Path]:
        return self.directory / f"{number:06d}.{self.encoder.format}", self.directory / f"{number:06d}.json"


@contextlib.contextmanager
def open_output(output: Path | None, encoder: Encoder, job: str, overwrite: bool) -> Iterator[StandardOutput]:
    """Where chunks go; `job` is the fingerprint of everything besides the input that the output depends on."""
    if output is None:
        yield StandardOutput(encoder)
        return
    directory = output.with_name(f".{output.name}.ebmcal")
    if directory.is_dir() and not all(_OUR_FILES.fullmatch(path.name) for path in directory.iterdir()):
        raise EbmcalError(f"{directory} exists and is not a working directory of ebmcal predict. Move or delete it.")
    with locked(directory):
        remove_temporary_files(output)
        yield OutputFile(encoder, output, directory, job, overwrite)
