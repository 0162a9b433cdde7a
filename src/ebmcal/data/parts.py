"""A part of a data set as files on disk: their format, their columns, and the one function that reads any of them."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ebmcal.data import columnar, delimited
from ebmcal.data.values import Columns, SourceRow, Tally
from ebmcal.errors import EbmcalError

SUFFIXES = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet",
    ".txt": "txt",
}  # fmt: skip


@dataclass(frozen=True)
class PartFiles:
    """Files that together make one part; `format` is csv, tsv, glue, jsonl, json, txt, parquet or arrow.

    `header` names the columns of files that have none; `encoding` is that of files of text, UTF-8 by default.
    """

    paths: tuple[Path, ...]
    format: str
    columns: Columns
    header: tuple[str, ...] | None = None
    encoding: str | None = None

    def check(self) -> None:
        """Raise unless every file is there, can be opened and has the columns."""
        for path in self.paths:
            check_file(path)
            header = self.header_of(path)
            self.columns.check(path, header, self._hint(header))

    def rows(self, tally: Tally) -> Iterator[SourceRow]:
        """All rows, numbered through from 0 across the files."""
        start = 0
        for path in self.paths:
            last = -1
            try:
                for row in self._read(path, tally):
                    last = row.number
                    yield row._replace(number=start + last) if start else row
            except EbmcalError as error:  # errors about one value do not know their file
                raise error if str(path) in str(error) else EbmcalError(f"{path}: {error}") from error
            start += last + 1

    def _read(self, path: Path, tally: Tally) -> Iterator[SourceRow]:
        if self.format in ("jsonl", "json"):
            return delimited.read_json_rows(path, self.format, self.columns, tally, self.encoding)
        if self.format == "txt":
            return delimited.read_lines(path, self.columns, tally, self.encoding)
        if self.format in ("parquet", "arrow"):
            return columnar.read_columnar(path, self.format, self.columns, tally)
        return delimited.read_delimited(path, self._dialect(), self.columns, tally)

    def header_of(self, path: Path) -> list[str]:
        if self.format in ("jsonl", "json"):
            return delimited.json_header(path, self.format, self.encoding)
        if self.format == "txt":  # its lines are the texts, whatever they are called
            return [self.columns.text]
        if self.format in ("parquet", "arrow"):
            return columnar.columnar_header(path, self.format)
        dialect = delimited.as_written(path, self._dialect(), self.columns.wanted())
        return delimited.delimited_header(path, dialect)

    def _hint(self, header: list[str]) -> str:
        return delimited.delimiter_hint(header, self._dialect()) if self.format in ("csv", "tsv", "glue") else ""

    def _dialect(self) -> delimited.Dialect:
        known = {"csv": delimited.CSV, "tsv": delimited.TSV, "glue": delimited.GLUE_TSV}[self.format]
        return delimited.Dialect(known.delimiter, known.quoted, self.header, self.encoding)

    @property
    def unit(self) -> str:
        return "row" if self.format in ("parquet", "arrow") else "line"


def format_of(path: Path) -> str:
    """The format by the file's ending.

    >>> format_of(Path("a/train.csv"))
    'csv'
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        ending = f"ends in {suffix!r}" if suffix else "has no ending"
        raise EbmcalError(f"{path} {ending}; known are {', '.join(SUFFIXES)}. Convert the file or rename it.")
    return SUFFIXES[suffix]


def check_file(path: Path) -> None:
    """Raise unless `path` is a file with something in it; guesses at misspelt names."""
    try:
        if path.is_dir():
            raise EbmcalError(f"{path} is a folder; a file was expected{_inside(path)}.")
        if not path.exists():
            raise EbmcalError(f"{path} does not exist.{_neighbours(path)}")
        if not path.is_file():
            raise EbmcalError(f"{path} is not a regular file; it is read more than once, so a pipe will not do.")
        if path.stat().st_size == 0:
            raise EbmcalError(f"{path} is empty (0 bytes).")
    except OSError as error:
        raise EbmcalError(f"Could not look at {path}: {error.strerror or error}.") from error


def _inside(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)[:5]
    return f" (it holds {', '.join(names)})" if names else ""


def _neighbours(path: Path) -> str:
    if not path.parent.is_dir():
        return f" Nor does its folder {path.parent}."
    names = sorted(p.name for p in path.parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {' or '.join(repr(name) for name in close)}?"
    return f" Its folder holds {', '.join(names[:8]) or 'nothing'}."
