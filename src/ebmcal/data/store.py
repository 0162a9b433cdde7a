"""Rows of a source → Arrow, written in batches and memory-mapped through `datasets`.

A file is converted once: the Arrow file in the cache directory is named by the content of the source and by the
columns that were read; `info.json` next to it, written last, marks it as complete and holds the counts.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.data.tables import TableSource
from ebmcal.data.text_files import RawRow, find_value
from ebmcal.data.values import NOT_UTF8, Columns, Tally, as_label, as_text, row_key
from ebmcal.errors import EbmcalError, error_context
from ebmcal.progress import Reporter
from ebmcal.storage import atomic_write, fingerprint, locked, read_json, remove_temporary_files, write_json

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

VERSION = 1  # increase it when reading changes
_BATCH_ROWS, _BATCH_CHARACTERS = 4096, 4_000_000
_ABSENT = object()


@dataclass(frozen=True)
class StoredTable:
    """The rows of a source as a Dataset: id, text, [text_pair], label (as written), key, place.

    `info` has the number of rows, the unit of `place` and the groups of the tally.
    """

    dataset: "Dataset"
    info: dict[str, Any]

    @cached_property
    def keys(self) -> np.ndarray:
        """[n] uint64"""
        return self.dataset.data.column("key").to_numpy()

    @cached_property
    def places(self) -> np.ndarray:
        """[n] int64"""
        return self.dataset.data.column("place").to_numpy()

    @cached_property
    def is_empty(self) -> np.ndarray:
        """[n] bool: the text, or one of a pair, consists of white space."""
        import pyarrow.compute as pc

        empty = np.zeros(len(self.dataset), dtype=bool)
        for name in self.dataset.column_names:
            if name in ("text", "text_pair"):
                texts = self.dataset.data.column(name)
                empty |= pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts)).to_numpy()
        return empty

    def label_codes(self) -> tuple[list[str], np.ndarray]:
        """The distinct labels, and for each row the index of its label, -1 if it has none."""
        import pyarrow.compute as pc

        column = self.dataset.data.column("label")
        values = pc.unique(column).drop_null()
        codes = pc.fill_null(pc.index_in(column, value_set=values), -1)
        return values.to_pylist(), codes.to_numpy().astype(np.int64)


def store_table(
    source: TableSource,
    columns: Columns,
    cache_dir: Path | None = None,
    reporter: Reporter | None = None,
) -> StoredTable:
    """Convert a source to Arrow: in `cache_dir` (memory-mapped), or in memory if that is None."""
    from datasets import Dataset

    if cache_dir is None or source.table is not None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        info = _convert(source, columns, sink)
        return StoredTable(Dataset.from_buffer(sink.getvalue()), info)
    directory = cache_dir / "data" / fingerprint(VERSION, source.fingerprint(), vars(columns))
    stored = _read_cached(directory)
    if stored is None:
        inform = (reporter or Reporter()).info
        with locked(directory, on_wait=lambda owner: inform(f"{source.name}: waiting for {owner}, which reads it too")):
            remove_temporary_files(directory)
            stored = _read_cached(directory) or _write_cached(source, columns, directory)
    return stored


def _read_cached(directory: Path) -> StoredTable | None:
    """The cached conversion; None if it is missing, incomplete or corrupt."""
    import pyarrow as pa
    from datasets import Dataset

    path = directory / "data.arrow"
    try:
        info = read_json(directory / "info.json")
        if info["n_bytes"] != path.stat().st_size:
            return None
        return StoredTable(Dataset.from_file(str(path)), info)
    except (EbmcalError, KeyError, TypeError, OSError, ValueError, pa.ArrowException):
        return None


def _write_cached(source: TableSource, columns: Columns, directory: Path) -> StoredTable:
    import pyarrow as pa

    with atomic_write(directory / "data.arrow") as temporary:
        with pa.OSFile(str(temporary), "wb") as sink:
            info = _convert(source, columns, sink)
        info["n_bytes"] = temporary.stat().st_size
    write_json(directory / "info.json", info)
    stored = _read_cached(directory)
    if stored is None:
        raise EbmcalError(f"Could not read back {directory}. Check the disk or use another cache directory.")
    return stored


def _convert(source: TableSource, columns: Columns, sink: Any) -> dict[str, Any]:
    """Write the rows as an Arrow stream and return the info."""
    import pyarrow as pa

    tally, schema, n_rows = Tally(source.unit), _schema(columns), 0
    with error_context(source.name), pa.ipc.new_stream(sink, schema) as writer:
        for batch in _batches(_clean_rows(source, columns, tally)):
            arrays = [
                pa.array(values, kind) for values, kind in zip(zip(*batch, strict=True), schema.types, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            n_rows += len(batch)
    return {"file": Path(source.name).name, "rows": n_rows, "unit": source.unit, **tally.as_dict()}


def _schema(columns: Columns) -> "pa.Schema":
    import pyarrow as pa

    pair = [("text_pair", pa.string())] if columns.pair else []
    numbers = [("key", pa.uint64()), ("place", pa.int64())]
    return pa.schema([("id", pa.string()), ("text", pa.string()), *pair, ("label", pa.string()), *numbers])


def _clean_rows(source: TableSource, columns: Columns, tally: Tally) -> Iterator[tuple[Any, ...]]:
    """Rows in the order of the schema; rows that cannot be used are counted and left out."""
    names = columns.texts()
    for row in source.rows(columns, tally):
        if row.error is not None and source.format in ("json", "jsonl"):
            raise EbmcalError(f"{source.unit} {row.place}: {row.error}.")
        texts = [] if row.error else [find_value(row.values, name, _ABSENT) for name in names]
        if row.error or any(text is _ABSENT for text in texts):
            tally.add("left_out", row.error or "too few fields", row.place)
        elif columns.where is None or str(row.values.get(columns.where[0])) == columns.where[1]:
            cleaned = [as_text(text, name, row.place, tally) for text, name in zip(texts, names, strict=True)]
            id_, label = _id_and_label(row, columns, tally)
            yield id_, *cleaned, label, row_key(*cleaned), row.place


def _id_and_label(row: RawRow, columns: Columns, tally: Tally) -> tuple[str, str | None]:
    id_, label = str(row.number), None
    if columns.label is not None:
        label = as_label(find_value(row.values, columns.label), columns.label, row.place, tally)
    if columns.id is not None:
        id_ = as_text(find_value(row.values, columns.id), columns.id, row.place, tally)
        if not id_:
            raise EbmcalError(f"Column {columns.id!r} has no id in {tally.unit} {row.place}. Fill it in.")
    return id_, label


def _batches(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Lists of rows of limited length, also for very long texts."""
    batch: list[tuple[Any, ...]] = []
    n_characters = 0
    for row in rows:
        batch.append(row)
        n_characters += len(row[1])
        if len(batch) >= _BATCH_ROWS or n_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch


def check_rows(stored: StoredTable, encoding: str | None) -> None:
    """Raise if there are no rows, only empty texts, or mostly texts in another encoding."""
    info = stored.info
    if info["rows"] == 0:
        n_left_out = sum(entry["count"] for entry in info["left_out"].values())
        reason = f" ({n_left_out:,} were left out: {', '.join(info['left_out'])})" if n_left_out else ""
        raise EbmcalError(f"There are no rows to read{reason}.")
    if stored.is_empty.all():
        raise EbmcalError("All texts are empty. Choose another text column.")
    damaged = info["cleaned"].get(NOT_UTF8, {"count": 0, "first": []})
    if encoding is None and damaged["count"] > info["rows"] / 2:
        places = ", ".join(map(str, damaged["first"]))
        raise EbmcalError(
            f"{damaged['count']:,} of {info['rows']:,} rows are not UTF-8 (first {info['unit']}s: {places}). Pass the "
            "encoding of the file (--encoding latin-1, cp1252, …), or utf-8 to replace the invalid characters."
        )


def text_keys(dataset: "Dataset") -> np.ndarray:
    """[n] uint64: a stable key of the texts of each row; rows with equal texts have equal keys."""
    return _keys_and_labels(dataset)[0]


def dataset_fingerprint(dataset: "Dataset") -> str:
    """16 hex digits of the texts and labels in order, independent of ids and of where they are stored."""
    return content_fingerprint("text_pair" in dataset.column_names, *_keys_and_labels(dataset))


def _keys_and_labels(dataset: "Dataset") -> tuple[np.ndarray, np.ndarray]:
    """[n] uint64 text keys and [n] int64 labels (-1 without a label column), in one pass with bounded memory."""
    names = [name for name in ("text", "text_pair") if name in dataset.column_names]
    has_labels = "label" in dataset.column_names
    keys, labels = np.empty(len(dataset), np.uint64), np.full(len(dataset), -1, np.int64)
    start = 0
    for batch in dataset.select_columns([*names, *["label"][:has_labels]]).with_format("arrow").iter(batch_size=4096):
        rows = slice(start, start + batch.num_rows)
        keys[rows] = list(map(row_key, *(batch[name].to_pylist() for name in names)))
        if has_labels:
            labels[rows] = batch["label"].to_numpy()
        start += batch.num_rows
    return keys, labels


def content_fingerprint(is_pair: bool, keys: np.ndarray, labels: np.ndarray) -> str:
    """`dataset_fingerprint` from the text keys [n] and the labels [n]."""
    digest = hashlib.sha256(f"{is_pair} {len(keys)}".encode())
    for start in range(0, len(keys), 65536):
        digest.update(keys[start : start + 65536].astype("<u8").tobytes())
        digest.update(labels[start : start + 65536].astype("<i8").tobytes())
    return digest.hexdigest()[:16]
