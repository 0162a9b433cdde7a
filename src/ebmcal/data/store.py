"""Rows of any source → one Arrow file in the cache, written a batch at a time and opened memory-mapped.

The file is named by what it was made from (contents of the source, columns, format), so that it is made once and
shared; a JSON file beside it holds its checksum and the counts of the reading. A damaged pair is made again.
"""

import hashlib
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ebmcal.data.parts import PartFiles
from ebmcal.data.values import SourceRow, Tally
from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import read_json, sweep, write_json, writing
from ebmcal.storage.checksums import checksum, fingerprint
from ebmcal.storage.locks import locked

VERSION = 2  # raise it when reading changes, so that old cache files are not used
MAX_LABELS = 1000
_BATCH_ROWS, _BATCH_CHARS = 4096, 4_000_000
_RELEASE_BYTES = 1 << 25
_FAULT_BYTES = 1 << 16  # what the system maps around one row that is looked at


class MappedFile:
    """Opened when first looked at and shared by all splits of a part; other processes map it again by its path."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self._touched = 0

    def gather(self, rows: np.ndarray, is_pair: bool) -> list[tuple[str, str | None]]:
        """The texts at `rows` [k], in that order, as (text, text of the pair or None)."""
        found: list[Any] = [None] * len(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for b in np.unique(which):
            where = np.flatnonzero(which == b)
            local = pa.array(rows[where] - self._starts[b])
            text = self._batches[b].column("text").take(local).to_pylist()
            pair = self._batches[b].column("pair").take(local).to_pylist() if is_pair else [None] * len(text)
            for i, row in zip(where, zip(text, pair, strict=True), strict=True):
                found[i] = row
            self._count(self._batches[b], len(where))
        return found

    def numbers(self, name: str, kind: type) -> np.ndarray:
        """A column of numbers, copied out of the file: [n] of `kind`."""
        column = np.empty(sum(batch.num_rows for batch in self._batches), kind)
        for start, batch in zip(self._starts, self._batches, strict=True):
            column[start : start + batch.num_rows] = batch.column(name).to_numpy()
            self._count(batch, batch.num_rows)
        return column

    def release(self) -> None:
        """Give the pages read so far back to the system; they are read again when they are needed."""
        self._touched = 0
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _count(self, batch: pa.RecordBatch, n_rows: int) -> None:
        # Mapped pages count as resident memory of the process until the system wants them back; a pass over a large
        # split would seem to hold all of it.
        self._touched += min(batch.nbytes, n_rows * _FAULT_BYTES)
        if self._touched >= _RELEASE_BYTES:
            self.release()

    @cached_property
    def _map(self) -> mmap.mmap:
        try:
            with open(self.path, "rb") as handle:
                return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise EbmcalError(
                f"Could not open {self.path}: {error}. If it was deleted, run the same command again to remake it."
            ) from error

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        try:
            reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._map)))
            return [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except (pa.ArrowException, OSError) as error:
            raise EbmcalError(f"{self.path} is damaged: {error}. Delete it to have it made again.") from error

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0] + [batch.num_rows for batch in self._batches])[:-1]

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_touched": 0}


@dataclass(frozen=True)
class StoredPart:
    """An Arrow file and what is known of it: `codes` index `info["labels"]`, -1 = no label; `keys` hash the texts."""

    file: MappedFile
    info: dict[str, Any]
    ids: np.ndarray  # [n] int64, row number in the source
    codes: np.ndarray  # [n] int32
    keys: np.ndarray  # [n] uint64
    empty: np.ndarray  # [n] bool: the text, or one of a pair, is blank

    @property
    def label_values(self) -> list[str]:
        return [entry["value"] for entry in self.info["labels"]]


def store_part(part: PartFiles, cache_dir: Path, say: Callable[[str], None] = lambda line: None) -> StoredPart:
    """The part as a memory-mapped Arrow file; read from the source only when the cache has no sound copy."""
    sums = [checksum(path) for path in part.paths]
    key = fingerprint(VERSION, sums, part.format, part.header, vars(part.columns), part.encoding)
    path = Path(cache_dir) / f"texts-{key}.arrow"
    info = _sound_info(path)
    if info is None:
        if path.exists() or path.with_suffix(".json").exists():
            say(f"data: the cached copy of {part.paths[0].name} ({path.name}) is lost or damaged: made again")
        with locked(path.with_suffix(".lock"), waiting=lambda holder: say(f"data: waits for {holder}")):
            for place in (path, path.with_suffix(".json")):
                sweep(place)
            info = _sound_info(path) or _make(part, sums, path)
    file = MappedFile(path)
    ids, codes, keys = file.numbers("id", np.int64), file.numbers("code", np.int32), file.numbers("key", np.uint64)
    return StoredPart(file, info, ids, codes, keys, file.numbers("empty", bool))


def row_key(text: str, pair: str | None) -> int:
    """64 bits that stand for the contents of a row; equal texts have equal keys.

    >>> row_key("a", None) == row_key("a", None), row_key("a", "b") == row_key("ab", "")
    (True, False)
    """
    content = f"{len(text)} {text}{pair or ''}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _make(part: PartFiles, sums: list[str], path: Path) -> dict[str, Any]:
    tally = Tally(part.unit)
    with writing(path) as aside:
        info = _write(part.rows(tally), part.columns.pair is not None, aside, part.paths[0].name)
        info |= tally.as_dict() | {"arrow_sha256": checksum(aside)}
    info |= {"sources": [{"file": p.name, "sha256": s} for p, s in zip(part.paths, sums, strict=True)]}
    write_json(path.with_suffix(".json"), {"fingerprint": fingerprint(info), "info": info})
    return info


def _write(rows: Iterable[SourceRow], is_pair: bool, aside: Path, source: str) -> dict[str, Any]:
    counts = _Counts(source)
    with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, _schema(is_pair)) as writer:
        buffer: list[tuple[Any, ...]] = []
        chars = 0
        for row in rows:
            numbers = row.number, counts.code(row), row_key(row.text, row.pair), int(is_empty(row))
            buffer.append((row.text, row.pair, *numbers))
            chars += len(row.text) + len(row.pair or "")
            if len(buffer) >= _BATCH_ROWS or chars >= _BATCH_CHARS:
                writer.write_batch(_batch(buffer, is_pair))
                buffer, chars = [], 0
        if buffer:
            writer.write_batch(_batch(buffer, is_pair))
    return counts.as_dict()


def _schema(is_pair: bool) -> pa.Schema:
    texts = [("text", pa.string())] + ([("pair", pa.string())] if is_pair else [])
    return pa.schema([*texts, ("id", pa.int64()), ("code", pa.int32()), ("key", pa.uint64()), ("empty", pa.uint8())])


def _batch(buffer: list[tuple[Any, ...]], is_pair: bool) -> pa.RecordBatch:
    text, pair, *numbers = zip(*buffer, strict=True)
    columns = [text, pair, *numbers] if is_pair else [text, *numbers]
    schema = _schema(is_pair)
    arrays = [pa.array(column, type=kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def is_empty(row: SourceRow) -> bool:
    """Whether the text, or one text of a pair, has nothing but white space."""
    return not row.text.strip() or (row.pair is not None and not row.pair.strip())


class _Counts:
    """What can only be known after the last row: how many, the labels met, empty texts."""

    def __init__(self, source: str):
        self.source = source
        self.rows = 0
        self.longest = 0
        self.labels: dict[str, list[int]] = {}  # value -> [code, rows, first row]
        self.tally = Tally("row")

    def code(self, row: SourceRow) -> int:
        self.rows += 1
        self.longest = max(self.longest, len(row.text) + len(row.pair or ""))
        if is_empty(row):
            self.tally.add("empty", "texts", row.number)
        if row.label is None:
            return -1
        entry = self.labels.setdefault(row.label, [len(self.labels), 0, row.number])
        entry[1] += 1
        if len(self.labels) > MAX_LABELS:
            raise EbmcalError(
                f"The label column of {self.source} has more than {MAX_LABELS:,} different values (row {row.number}: "
                f"{row.label[:60]!r}): it holds texts or a quantity, not classes. Choose another label column."
            )
        return entry[0]

    def as_dict(self) -> dict[str, Any]:
        none = {"count": 0, "first_rows": []}
        known = self.tally.as_dict(("empty",))
        return {
            "rows": self.rows,
            "longest_text": self.longest,
            "labels": [{"value": v, "rows": n, "first_row": first} for v, (_, n, first) in self.labels.items()],
            "empty_texts": known["empty"].get("texts", none),
        }


def _sound_info(path: Path) -> dict[str, Any] | None:
    """The JSON beside a cache file when both are whole, else None."""
    beside = path.with_suffix(".json")
    if not (path.is_file() and beside.is_file()):
        return None
    try:
        read = read_json(beside)
        sound = read["fingerprint"] == fingerprint(read["info"]) and read["info"]["arrow_sha256"] == checksum(path)
        return read["info"] if sound else None
    except (EbmcalError, KeyError, TypeError, OSError):
        return None
