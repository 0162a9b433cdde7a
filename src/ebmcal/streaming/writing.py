"""Rows of the output as CSV, JSON lines or Parquet: to standard output, or into the chunks that make the file.

Chunks lie in `OUTPUT.part/`, each whole or absent, with a line in `done.jsonl` for each: a job that was killed goes on
behind the last one. When all are there they are put together and the folder goes.
"""

import contextlib
import csv
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions.files import META_KEY
from ebmcal.storage.atomic import explaining_disk, read_json, write_json, writing

FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
JOB, DONE = "job.json", "done.jsonl"

Rows = list[dict[str, Any]]


def format_of_output(output: Path | None, given: str | None, input_kind: str) -> str:
    """The format by the output's ending; of standard output as given, else CSV for tables and JSON lines for the rest.

    >>> format_of_output(Path("new.parquet"), None, "csv"), format_of_output(None, None, "lines")
    ('parquet', 'jsonl')
    """
    if output is not None and output.is_dir():
        raise EbmcalError(f"{output} is a folder; name a file in it.")
    if output is not None:
        if output.suffix.lower() not in FORMATS:
            raise EbmcalError(f"{output}: {unknown_name('suffix', output.suffix, FORMATS)}")
        return FORMATS[output.suffix.lower()]
    if given not in (None, "csv", "jsonl"):
        raise unknown_name("format of standard output", str(given), ("csv", "jsonl"))
    return given or ("csv" if input_kind in ("csv", "tsv") else "jsonl")


def check_output(output: Path, source: str | Path, overwrite: bool) -> None:
    """Refuse, before any work, a place where the output cannot or must not go."""
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise EbmcalError(f"{output} is the input. Choose another output.")
    if output.exists() and not overwrite:
        raise EbmcalError(f"{output} is there already. Choose another name, or say --overwrite.")
    with explaining_disk(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(output.parent, os.W_OK):
            raise EbmcalError(f"Could not write in {output.parent}: no permission. Choose another folder.")


def encoded(rows: Rows, kind: str, columns: list[str]) -> str:
    """Rows as lines of CSV (without a header) or of JSON."""
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str, allow_nan=False) + "\n" for row in rows)
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return target.getvalue()


def header_line(columns: list[str]) -> str:
    return encoded([dict(zip(columns, columns, strict=True))], "csv", columns)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


class ToStdout:
    """Rows to standard output, flushed at each chunk so that a reader sees them."""

    n_done = 0

    def __init__(self, kind: str, columns: list[str]) -> None:
        self.kind, self.columns = kind, columns
        if kind == "csv":
            sys.stdout.write(header_line(columns))

    def write(self, rows: Rows, counts: dict[str, int]) -> None:
        sys.stdout.write(encoded(rows, self.kind, self.columns))
        sys.stdout.flush()

    def earlier(self) -> list[dict[str, int]]:
        return []

    def finish(self) -> None:
        pass


class ToFile:
    """Rows to a file by way of chunks; `job` says what it is made from, so that another job does not go on with it."""

    def __init__(
        self, output: Path, kind: str, columns: list[str], types: Any, note: Any, job: dict[str, Any], anew: bool
    ) -> None:
        self.output, self.kind, self.columns, self.types, self.note = output, kind, columns, types, note
        self.folder = part_folder(output)
        self.done = _take_up(self.folder, job, anew)
        self.n_done = len(self.done)

    def earlier(self) -> list[dict[str, int]]:
        """What was counted in the chunks that were there already."""
        return list(self.done)

    def write(self, rows: Rows, counts: dict[str, int]) -> None:
        with writing(self._chunk(self.n_done)) as aside:
            if self.kind == "parquet":
                _write_table(aside, rows, self.columns, self.types)
            else:
                aside.write_text(encoded(rows, self.kind, self.columns), encoding="utf-8", newline="")
        with explaining_disk(self.folder), open(self.folder / DONE, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(counts) + "\n")
        self.n_done += 1

    def finish(self) -> None:
        """Put the chunks together in the place of the output, and remove them."""
        chunks = [self._chunk(i) for i in range(self.n_done)]
        with writing(self.output) as aside:
            if self.kind == "parquet":
                _join_tables(chunks, aside, self.note)
            else:
                with open(aside, "wb") as target:
                    target.write(header_line(self.columns).encode() if self.kind == "csv" else b"")
                    for chunk in chunks:
                        with open(chunk, "rb") as source:
                            shutil.copyfileobj(source, target)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _chunk(self, i: int) -> Path:
        return self.folder / f"{i:06d}"


def part_folder(output: Path) -> Path:
    """Where the chunks of an output are until it is whole."""
    return output.with_name(output.name + ".part")


def _take_up(folder: Path, job: dict[str, Any], anew: bool) -> list[dict[str, int]]:
    """What is done of the same job; an error where the folder is of another one, unless it may be begun anew."""
    kept = read_json(folder / JOB) if (folder / JOB).exists() else None
    done = [] if kept is None else list(_whole_lines(folder / DONE))
    differ = [name for name in job if kept is not None and kept.get(name) != job[name]]
    if differ and done and not anew:
        raise EbmcalError(
            f"{folder} holds the beginning of another job: {', '.join(differ)} differ. Delete the folder or say "
            "--overwrite to begin anew, or choose another output."
        )
    done = [] if differ else done
    write_json(folder / JOB, job, checked=True)
    with writing(folder / DONE) as aside:  # without half a line
        aside.write_text("".join(json.dumps(counts) + "\n" for counts in done), encoding="utf-8")
    return done


def _whole_lines(path: Path) -> Iterator[dict[str, int]]:
    """The counts of each finished chunk; a line that the kill cut off ends them."""
    if path.exists():
        with contextlib.suppress(ValueError):
            for line in path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)


def _write_table(path: Path, rows: Rows, columns: list[str], types: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [_array([row.get(c) for row in rows], types.get(c)) for c in columns]
    pq.write_table(pa.table(dict(zip(columns, arrays, strict=True))), path, compression="zstd")


def _array(values: list[Any], kind: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values, type=kind)
    except (pa.ArrowException, OverflowError, TypeError):  # values of several kinds in one column of JSON
        return pa.array(
            [None if v is None else v if isinstance(v, str) else json.dumps(v, default=str) for v in values]
        )


def _join_tables(chunks: list[Path], target: Path, note: Any) -> None:
    """One file of all chunks, a row group each; columns that differ in type between chunks become text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(chunk) for chunk in chunks]
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException:
        by_name = {name: {s.field(name).type for s in schemas} - {pa.null()} for name in schemas[0].names}
        schema = pa.schema([(n, next(iter(t)) if len(t) == 1 else pa.string()) for n, t in by_name.items()])
    schema = schema.with_metadata({META_KEY: json.dumps(note).encode()})
    with pq.ParquetWriter(target, schema, compression="zstd", write_page_checksum=True) as writer:
        for chunk in chunks:
            writer.write_table(pq.read_table(chunk).cast(schema))
