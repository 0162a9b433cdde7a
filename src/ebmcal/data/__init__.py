"""Texts and labels: `load_task` turns a request into splits with an audit, `as_dataset` any data into one Dataset.

`files` reads rows, `memory` accepts Python objects, `tasks` has the built-in tasks, `splits` cuts and audits. Rows are
stored once as memory-mapped Arrow: the file in the cache directory is named by the content of the source and the
columns that were read; `info.json` next to it, written last, marks it as complete and holds the counts of the audit.
Importing this package is cheap: `datasets`, pyarrow and pandas are imported when data is read.
"""

import itertools
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal import storage
from ebmcal.data.files import (
    NOT_UTF8,
    NOT_UTF8_LABEL,
    PASS_ENCODING,
    SUFFIXES,
    Columns,
    TableSource,
    Tally,
    as_label,
    as_text,
    class_map,
    infer_label_names,
    listed,
    row_key,
)
from ebmcal.data.memory import object_source
from ebmcal.data.splits import (
    EVAL_SHARE,
    Part,
    audit_messages,
    audit_split,
    content_fingerprint,
    count_places,
    dataset_fingerprint,
    left_out_messages,
    make_splits,
    merge_option,
    row_places,
    similar_labels,
    stratified_folds,
    stratified_split,
    stratified_subset,
    text_keys,
)
from ebmcal.data.tasks import TASKS, Tables, Task, find_task, task_tables
from ebmcal.errors import EbmcalError, error_context, plural, require_extra, unknown_name
from ebmcal.progress import Reporter

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from ebmcal.config import RunConfig

__all__ = [
    "COLUMNS", "TASKS", "DataConfig", "Task", "TaskData", "as_dataset", "audit_messages", "check_sources",
    "dataset_fingerprint", "find_task", "load_task", "merge_option", "row_places", "similar_labels",
    "stratified_folds", "stratified_split", "stratified_subset", "text_keys",
]  # fmt: skip

#: The columns of every dataset in this package; text_pair only for pairs.
COLUMNS = ("id", "text", "text_pair", "label")

#: Settings of `DataConfig` for own data; a task has its own files and columns.
_OWN_DATA = (
    "train", "calibration", "test", "text_column", "text_pair_column", "label_column", "id_column", "encoding",
    "merge_labels",
)  # fmt: skip

_VERSION = 3  # of the cached tables; increase it when reading changes
_BATCH = 1000  # rows of a batch of the Arrow file
_ABSENT = object()


@dataclass(frozen=True)
class DataConfig:
    """Where the data is: a built-in `task` (with `data_dir` or `hub`), or own data in `train` (and more).

    `train`, `calibration` and `test` are paths or objects as in `as_dataset`. Without `test`, a tenth of the training
    rows is split off. Without `calibration`, `calibration_share` of them is; None splits off no calibration rows.
    `merge_labels` maps labels to the labels they are read as.
    """

    task: str | None = None
    data_dir: Path | None = None
    hub: bool = False
    train: Any = None
    calibration: Any = None
    test: Any = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    encoding: str | None = None
    merge_labels: Mapping[str, str] | None = None
    max_train_rows: int | None = None
    max_eval_rows: int | None = None
    split_seed: int = 0
    calibration_share: float | None = None

    @classmethod
    def from_run(cls, config: "RunConfig", in_memory: Mapping[str, Any]) -> "DataConfig":
        """The data of a run; `in_memory` replaces paths by objects."""
        names = set(cls.__dataclass_fields__) & set(type(config).model_fields) - {"calibration"}
        values = {name: getattr(config, name) for name in names} | {"calibration": config.calibration_file}
        values["merge_labels"] = config.merge_labels or None
        share = EVAL_SHARE if config.calibration == "holdout" else None
        return cls(**values | {k: v for k, v in in_memory.items() if k != "ood"}, calibration_share=share)


@dataclass(frozen=True)
class TaskData:
    """The splits of a task: "train", "test" and, if there is one, "calibration" and "test_mismatched".

    Datasets have the columns id (str), text, text_pair (pairs only) and label (int64, a `ClassLabel`).
    """

    name: str
    metric: str
    label_names: tuple[str, ...]
    is_pair: bool
    splits: "dict[str, Dataset]"
    audit: dict[str, Any]
    fingerprints: dict[str, str]  # split -> `dataset_fingerprint`


def load_task(data: DataConfig, cache_dir: Path, reporter: Reporter | None = None) -> TaskData:
    r"""Read, check, split and audit the data of a run. Files are converted once and cached in `cache_dir`.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "mood.csv").write_text("text,label\n" + "".join(
    ...     f"film {i},{'good' if i % 2 else 'bad'}\n" for i in range(60)))
    >>> task = load_task(DataConfig(train=folder / "mood.csv", calibration_share=0.1), folder / "cache")
    >>> task.label_names, {name: len(split) for name, split in task.splits.items()}
    (('bad', 'good'), {'train': 48, 'calibration': 6, 'test': 6})
    """
    require_extra("train", "datasets")
    task = find_task(data.task) if data.task else None
    sources = check_sources(data)
    stored = {part: store_table(*source, Path(cache_dir), reporter) for part, source in sources.items()}
    for part, (source, _) in sources.items():
        with error_context(f"{part} data {source.name}"):
            _check_rows(stored[part], source.encoding)
    relabelled = _merge_labels(stored, data.merge_labels or {})
    names, parts = _label_parts(sources, stored, task, data.merge_labels or {})
    splits = make_splits(parts, data.calibration_share, data.split_seed)
    for name, split in splits.items():
        if not len(split.rows):
            n_texts = plural(splits["train"].rows["key"].nunique(), "distinct text")
            raise EbmcalError(
                f"The {name} split would have no rows: the training data has {n_texts}, too few to split for "
                f"{plural(len(names), 'label')} (copies of a text stay together). Pass {name} data, or choose another "
                "label column if these are not labels."
            )
        limit = data.max_train_rows if name == "train" else data.max_eval_rows
        splits[name] = split.limited(limit, data.split_seed, every_class=name == "train")
    records: dict[str, Any] = {}
    earlier: dict[str, pd.DataFrame] = {}
    for name, split in splits.items():
        records[name] = audit_split(split.rows, names, split.source, earlier)
        earlier |= {name: split.rows} if name in ("train", "calibration") else {}
    files = {name: _file_record(stored[name], part.rows, sources[name][1].id, task) for name, part in parts.items()}
    files = {name: record | {"relabelled": relabelled[name]} for name, record in files.items()}
    is_pair = sources["train"][1].pair is not None
    return TaskData(
        name=task.name if task else _own_name(sources["train"][0]),
        metric=task.metric if task else "accuracy",
        label_names=names,
        is_pair=is_pair,
        splits={name: split.dataset.select(split.rows.index.to_numpy()) for name, split in splits.items()},
        audit={"files": files, "splits": records},
        fingerprints={n: content_fingerprint(is_pair, split.keys, split.labels) for n, split in splits.items()},
    )


def check_sources(data: DataConfig) -> Tables:
    """The tables of a request with their columns; raises for missing files and columns, reading only headers."""
    task = find_task(data.task) if data.task else None
    unused = [n for n in (_OWN_DATA if task else ("data_dir", "hub")) if getattr(data, n) is not DataConfig.__dict__[n]]
    if unused and (task or data.train is not None):
        kind = f"your own files, but task is {task.name}" if task else "built-in tasks, but train is set"
        raise EbmcalError(f"{', '.join(unused)}: only for {kind}. Remove one of them.")
    if task:
        return task_tables(task, data.data_dir, data.hub)
    if data.train is None:
        raise EbmcalError("No data given. Set task to a built-in task (see `ebmcal tasks`) or train to a file.")
    columns = Columns(data.text_column, data.text_pair_column, data.label_column or "label", data.id_column)
    tables: Tables = {}
    for part in ("train", "calibration", "test"):
        if getattr(data, part) is not None:
            with error_context(f"{part} data"):
                tables[part] = _as_source(getattr(data, part), columns, data.encoding)
    if len({columns.pair is None for _, columns in tables.values()}) > 1:
        raise EbmcalError(f"Some of the data ({', '.join(tables)}) has pairs and some has single texts. Use one kind.")
    return tables


def as_dataset(
    data: Any,
    *,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    label_names: Sequence[str] | None = None,
    encoding: str | None = None,
    cache_dir: Path | None = None,
    reporter: Reporter | None = None,
) -> "Dataset":
    """Any data as a Dataset with the columns id, text, text_pair (pairs only) and label (-1 if unlabelled).

    `data`: a path of CSV, TSV, JSONL, JSON, Parquet or text lines (also .gz), a DataFrame (pandas, polars), an Arrow
    table, a `datasets.Dataset`, a dict of columns, (texts, labels), a list of texts or of (text, text) pairs. Without
    `text_column`, "text", "sentence" or the only column is read. Labels are read from `label_column` only, as indices
    of `label_names` or, without them, of the labels found. Without `id_column`, ids are row numbers from 0.
    With `cache_dir`, files are converted there and memory-mapped. A Dataset of this form is returned unchanged.

    >>> dataset = as_dataset((["fine film", "dull film"], ["good", "bad"]))
    >>> dataset["label"][:], dataset.features["label"].names, dataset["id"][:]
    ([1, 0], ['bad', 'good'], ['0', '1'])
    """
    require_extra("train", "datasets")
    named = Columns(text_column, text_pair_column, label_column, id_column)
    if _is_standard(data):
        own_names = getattr(data.features["label"], "names", None)
        if own_names is None or label_names is None or own_names == list(label_names):
            return data
        named = Columns("text", "text_pair" if "text_pair" in data.column_names else None, "label", "id")
    source, columns = _as_source(data, named, encoding)
    stored = store_table(source, columns, cache_dir, reporter)
    for message in left_out_messages(source.name, stored.info):
        reporter.info(message) if reporter else warnings.warn(message, stacklevel=2)
    with error_context(source.name):
        if source.path:
            _check_rows(stored, encoding)
        names = tuple(label_names or ())
        return _encode_labels(stored, source, names, bool(names), "label_names")[0]


def _as_source(data: Any, columns: Columns, encoding: str | None = None) -> tuple[TableSource, Columns]:
    """The table behind a path or an object, and its columns, which exist."""
    if not isinstance(data, str | os.PathLike):
        return object_source(data, columns)
    path = Path(os.path.expanduser(data))
    is_text = " " in path.name and path.suffix.lower() not in (*SUFFIXES, ".gz")
    if isinstance(data, str) and (is_text or not path.suffix) and not os.path.exists(path):
        raise EbmcalError(f"There is no file {data!r:.80}. To pass a text, use a list: [text].")
    source = TableSource.from_path(path, encoding)
    return source, source.resolve(columns)


def _is_standard(data: Any) -> bool:
    """Whether this is a Dataset as `load_task` and `as_dataset` produce it: class names, or no labels at all."""
    features = getattr(data, "features", None) or {}
    if type(data).__module__ != "datasets.arrow_dataset" or not {"id", "text", "label"} <= set(features):
        return False
    kinds = {name: getattr(kind, "dtype", None) for name, kind in features.items()}
    if not all(kinds[name] == ("int64" if name == "label" else "string") and name in COLUMNS for name in kinds):
        return False
    return hasattr(features["label"], "names") or not (np.asarray(data["label"]) >= 0).any()


def _own_name(source: TableSource) -> str:
    """A name for the user's task: that of the file, or of its directory if the file is just called train."""
    if source.path is None:
        return "in-memory data"
    stem = source.path.name.partition(".")[0] or source.path.name
    return source.path.resolve().parent.name or stem if stem.lower() in ("train", "training", "data") else stem


@dataclass(frozen=True)
class StoredTable:
    """The rows of a source. `info` has the number of rows, the unit of places and the groups of the tally."""

    dataset: "Dataset"  # id, text, [text_pair], label (as written), key, place
    info: dict[str, Any]

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """Per row: label (as written, a categorical), key (64 bits of the texts), place, is_empty."""
        import pyarrow.compute as pc

        table = self.dataset.data.table
        frame = table.select(["key", "place"]).to_pandas()
        frame["label"] = table["label"].dictionary_encode().unify_dictionaries().to_pandas()
        frame["is_empty"] = False
        for name in [name for name in ("text", "text_pair") if name in table.column_names]:
            is_empty = pc.or_(pc.equal(pc.binary_length(table[name]), 0), pc.utf8_is_space(table[name]))
            frame["is_empty"] |= is_empty.to_numpy()
        return frame


def store_table(
    source: TableSource, columns: Columns, cache_dir: Path | None = None, reporter: Reporter | None = None
) -> StoredTable:
    """Convert a source to Arrow: a file in `cache_dir` (memory-mapped), or in memory."""
    import pyarrow as pa
    from datasets import Dataset

    if cache_dir is None or source.path is None:
        sink = pa.BufferOutputStream()
        info = _convert(source, columns, sink)
        return StoredTable(Dataset.from_buffer(sink.getvalue()), info)
    content = [storage.file_checksum(source.path), source.format, source.header, source.encoding]
    directory = cache_dir / "data" / storage.fingerprint(_VERSION, content, vars(columns))
    if stored := _read_cached(directory):
        return stored
    inform = (reporter or Reporter()).info
    with storage.locked(directory, on_wait=lambda owner: inform(f"{source.name}: waiting for {owner}, which reads it")):
        storage.remove_temporary_files(directory)
        if stored := _read_cached(directory):
            return stored
        with storage.atomic_write(directory / "data.arrow") as temporary:
            with pa.OSFile(str(temporary), "wb") as file:
                info = _convert(source, columns, file)
            info["checksum"] = storage.file_checksum(temporary)
        storage.write_json(directory / "info.json", info)
        return StoredTable(Dataset.from_file(str(directory / "data.arrow")), info)


def _read_cached(directory: Path) -> StoredTable | None:
    """The cached conversion; None if it is missing, incomplete or corrupt."""
    import pyarrow as pa
    from datasets import Dataset

    path = directory / "data.arrow"
    try:
        info = storage.read_json(directory / "info.json")
        if info["checksum"] != storage.file_checksum(path):
            return None
        return StoredTable(Dataset.from_file(str(path)), info)
    except (EbmcalError, KeyError, TypeError, OSError, ValueError, pa.ArrowException):
        return None


def _convert(source: TableSource, columns: Columns, sink: Any) -> dict[str, Any]:
    """Write the rows as an Arrow stream and return the info."""
    import pyarrow as pa

    pair = [("text_pair", pa.string())] if columns.pair else []
    fields = [("id", pa.string()), ("text", pa.string()), *pair, ("label", pa.string())]
    schema = pa.schema([*fields, ("key", pa.uint64()), ("place", pa.int64())])
    tally, n_rows = Tally(source.unit), 0
    rows = _clean_rows(source, columns, tally)
    with error_context(source.name), pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(itertools.islice(rows, _BATCH)):
            lists = zip(zip(*batch, strict=True), schema.types, strict=True)
            writer.write_batch(pa.record_batch([pa.array(values, kind) for values, kind in lists], schema=schema))
            n_rows += len(batch)
    return {"file": Path(source.name).name, "rows": n_rows, "unit": source.unit, **tally.as_dict()}


def _clean_rows(source: TableSource, columns: Columns, tally: Tally) -> Iterator[tuple[Any, ...]]:
    """Rows in the order of the schema; rows that cannot be used are counted and left out."""
    names = columns.texts()
    with source.open(columns, tally) as table:
        for row in table.rows:
            if row.error is not None and source.format in ("json", "jsonl"):
                raise EbmcalError(f"{source.unit} {row.place}: {row.error}.")
            texts = [] if row.error else [row.values.get(name, _ABSENT) for name in names]
            if row.error or any(text is _ABSENT for text in texts):
                tally.add("left_out", row.error or "too few fields", row.place)
                continue
            cleaned = [as_text(text, name, row.place, tally) for text, name in zip(texts, names, strict=True)]
            id_, label = str(row.number), None
            if columns.id is not None:
                id_ = as_text(row.values.get(columns.id), columns.id, row.place, tally)
                if not id_:
                    raise EbmcalError(f"Column {columns.id!r} has no id in {tally.unit} {row.place}. Fill it in.")
            if columns.label is not None:
                label = as_label(row.values.get(columns.label), columns.label, row.place, tally)
            yield id_, *cleaned, label, row_key(*cleaned), row.place


def _check_rows(stored: StoredTable, encoding: str | None) -> None:
    """Raise if there are no rows, only empty texts, labels in another encoding, or more than 1% of such texts."""
    info = stored.info
    if info["rows"] == 0:
        n_left_out = sum(entry["count"] for entry in info["left_out"].values())
        reason = f" ({n_left_out:,} left out: {', '.join(info['left_out'])})" if n_left_out else ""
        raise EbmcalError(f"There are no rows to read{reason}.")
    if stored.rows["is_empty"].all():
        raise EbmcalError("All texts are empty. Choose another text column.")
    none = {"count": 0, "first": []}
    texts, labels = (info["cleaned"].get(reason, none) for reason in (NOT_UTF8, NOT_UTF8_LABEL))
    if encoding is None and (labels["count"] or texts["count"] > max(1, info["rows"] / 100)):
        found, what = (labels, "The labels of ") if labels["count"] else (texts, "")
        places = ", ".join(map(str, found["first"]))
        raise EbmcalError(
            f"{what}{found['count']:,} of {plural(info['rows'], 'row')} are not UTF-8 (first {info['unit']}s: "
            f"{places}). {PASS_ENCODING}"
        )


def _encode_labels(
    stored: StoredTable, source: TableSource, names: tuple[str, ...], by_number: bool, owner: str
) -> "tuple[Dataset, pd.DataFrame, tuple[str, ...]]":
    """The texts (still memory-mapped) with classes, the rows with classes, -1 for none, and the class names.

    `owner`: what the given `names` are called in messages. `by_number`: labels may be written as numbers.
    """
    import datasets
    import pyarrow as pa

    rows = stored.rows
    found = rows["label"].cat.categories.tolist()
    names = names or source.label_names or infer_label_names(found)
    classes = class_map(names, by_number)
    if unknown := [label for label in found if label not in classes]:
        places = [rows.loc[rows["label"] == label, "place"] for label in unknown[:5]]
        shown = [
            f"{label[:60]!r} ({plural(len(at), 'row')}, first in {source.unit} {at.iloc[0]})"
            for label, at in zip(unknown, places, strict=False)
        ]
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        known = [name for name, i in classes.items() if i >= 0]
        close = {name.casefold(): name for name in names}.get(unknown[0].casefold())
        guess = f" Did you mean {close!r}?" if close else ""
        noun = "label" if len(unknown) == 1 else "labels"
        problem = f"{noun} {', '.join(shown)}{more}: not in {owner} ({listed(known, 20)})"
        raise EbmcalError(f"{problem}.{guess} Correct or remove these rows.")
    table = np.array([*(classes[label] for label in found), -1], dtype=np.int64)
    rows = rows.assign(label=table[rows["label"].cat.codes])  # code -1, no label, picks the last entry
    kind = datasets.ClassLabel(names=list(names)) if names else datasets.Value("int64")
    info = datasets.DatasetInfo(features=datasets.Features({"label": kind}))
    labels = datasets.Dataset(pa.table({"label": rows["label"].to_numpy()}), info)  # from_dict would encode one by one
    texts = stored.dataset.select_columns([name for name in COLUMNS[:3] if name in stored.dataset.column_names])
    return datasets.concatenate_datasets([texts, labels], axis=1), rows, names


def _merge_labels(stored: Mapping[str, StoredTable], merged: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Replace labels in the rows of all tables; per table, label → the label it became, the rows and their places."""
    known = dict.fromkeys(label for table in stored.values() for label in table.rows["label"].cat.categories)
    found: dict[str, dict[str, Any]] = {part: {} for part in stored}
    for old, new in merged.items():
        for name in (old, new):
            if name not in known:
                raise EbmcalError(f"merge_labels (--merge-labels): {unknown_name('label', name, known)}")
        if new in merged:
            raise EbmcalError(
                f"merge_labels (--merge-labels): {old}={new}, but {new!r} is itself merged. Name the last."
            )
        for part, table in stored.items():
            at = table.rows["label"] == old
            found[part][old] = {"to": new, **count_places(table.rows[at])}
    for table in stored.values() if merged else ():
        table.rows["label"] = table.rows["label"].map(lambda label: merged.get(label, label)).astype("category")
    return found


def _label_parts(
    sources: Tables, stored: dict[str, StoredTable], task: Task | None, merged: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, Part]]:
    """The class names, and the labelled rows of each table."""
    names = task.label_names if task else ()
    by_number, parts = bool(names), dict[str, Part]()
    for name, (source, columns) in sources.items():
        source = replace(source, label_names=tuple(label for label in source.label_names if label not in merged))
        with error_context(f"{name} data {source.name}"):
            owner = f"the labels of {task.name if task and name == 'train' else 'the training data'}"
            dataset, rows, names = _encode_labels(stored[name], source, names, by_number, owner)
            rows = rows[rows["label"] >= 0]
            if not len(rows):
                raise EbmcalError(f"No row has a label in column {columns.label!r}.")
            if task is None:  # the rows of a published task stay as they are
                rows = rows[~rows["is_empty"]]
            if not len(rows):
                raise EbmcalError("The texts of all labelled rows are empty. Choose another text column.")
            if name == "train" and rows["label"].nunique() < 2:
                raise EbmcalError(
                    f"All labelled rows have the class {names[rows['label'].iloc[0]]!r}; expected at least two "
                    f"classes. Check the label column {columns.label!r}."
                )
            parts[name] = Part(dataset, rows, {key: stored[name].info[key] for key in ("file", "unit")})
    return names, parts


def _file_record(stored: StoredTable, used: "pd.DataFrame", id_column: str | None, task: Task | None) -> dict[str, Any]:
    # Counted here and not while reading: only a task knows that "-" or -1 means no label.
    rows = stored.rows
    repeated = rows.iloc[:0]
    if id_column is not None:  # row numbers are unique
        repeated = rows[stored.dataset.data.column("id").to_pandas().duplicated().to_numpy()]
    unused = rows.drop(used.index)
    is_empty = unused["is_empty"] & unused["label"].notna() & (task is None)
    counts = {"missing_labels": count_places(unused[~is_empty]), "repeated_ids": count_places(repeated)}
    info = {name: value for name, value in stored.info.items() if name != "checksum"}
    if is_empty.any():
        info["left_out"] = info["left_out"] | {"an empty text": count_places(unused[is_empty])}
    return info | counts | {"labelled_rows": len(used), "numbering": None if id_column else _numbering(stored)}


def _numbering(stored: StoredTable) -> dict[str, Any]:
    """What ids that are row numbers count: lines of the file from "first" if each row is one line, else rows."""
    table = stored.dataset.data.table
    offsets = np.unique(table["place"].to_numpy() - table["id"].cast("int64").to_numpy())
    return {"unit": stored.info["unit"], "first": int(offsets[0])} if len(offsets) == 1 else {"unit": "row", "first": 0}
