"""`load_task`: from a request to splits with an audit; `as_dataset`: any data as one `datasets.Dataset`."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.data.audit import audit_split, count_places, left_out_messages
from ebmcal.data.columns import NOT_UTF8, Columns, class_map, infer_label_names, listed
from ebmcal.data.files import SUFFIXES
from ebmcal.data.splits import content_fingerprint, halves, stratified_split, stratified_subset
from ebmcal.data.tables import StoredTable, TableSource, store_table
from ebmcal.data.tasks import Task, find_task, task_tables
from ebmcal.errors import EbmcalError, error_context, require_extra
from ebmcal.progress import Reporter

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

#: The columns of every dataset in this package; text_pair only for pairs.
COLUMNS = ("id", "text", "text_pair", "label")

#: Settings of `DataConfig` for own data; a task has its own files and columns.
_OWN_DATA = (
    "train", "calibration", "test", "text_column", "text_pair_column", "label_column", "id_column", "encoding",
)  # fmt: skip

EVAL_SHARE = 0.1  # of the training rows, for a test split that was not given


@dataclass(frozen=True)
class DataConfig:
    """Where the data is: a built-in `task` (with `data_dir` or `hub`), or own data in `train` (and more).

    `train`, `calibration` and `test` are paths or objects as in `as_dataset`. Without `test`, a tenth of the training
    rows is split off. Without `calibration`, `calibration_share` of them is; None splits off no calibration rows.

    >>> DataConfig(train="train.csv", text_column="review").task is None
    True
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
    max_train_rows: int | None = None
    max_eval_rows: int | None = None
    split_seed: int = 0
    calibration_share: float | None = None


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
    unused = [n for n in (_OWN_DATA if task else ("data_dir", "hub")) if getattr(data, n) is not DataConfig.__dict__[n]]
    if unused and (task or data.train is not None):
        kind = f"your own files, but task is {task.name}" if task else "built-in tasks, but train is set"
        raise EbmcalError(f"{', '.join(unused)}: only for {kind}. Remove one of them.")
    sources = _own_tables(data) if task is None else task_tables(task, data.data_dir, data.hub)
    stored = {part: store_table(*source, Path(cache_dir), reporter) for part, source in sources.items()}
    names, parts = _label_parts(sources, stored, task)
    splits = _make_splits(parts, data)
    _check_splits(splits, names)
    splits = {name: _limit(name, split, data) for name, split in splits.items()}
    audit = {
        "files": {name: _file_record(stored[name], part, sources[name][1].id) for name, part in parts.items()},
        "splits": _audit_splits(splits, names),
    }
    datasets = {name: split.dataset.select(split.rows.index.to_numpy()) for name, split in splits.items()}
    is_pair = "text_pair" in datasets["train"].column_names
    title, metric = (task.name, task.metric) if task else (_own_name(sources["train"][0]), "accuracy")
    fingerprints = {name: content_fingerprint(is_pair, split.keys, split.labels) for name, split in splits.items()}
    return TaskData(title, metric, names, is_pair, datasets, audit, fingerprints)


@dataclass(frozen=True)
class _Part:
    """Rows of a table: label (class), key, place, is_empty. The index is the row of the dataset."""

    dataset: "Dataset"
    rows: "pd.DataFrame"
    unit: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> np.ndarray:
        return self.rows["key"].to_numpy()

    @property
    def labels(self) -> np.ndarray:
        return self.rows["label"].to_numpy()

    def take(self, positions: np.ndarray) -> "_Part":
        return replace(self, rows=self.rows.iloc[positions])


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
    source, columns = as_source(data, named, encoding)
    stored = store_table(source, columns, cache_dir, reporter)
    for message in left_out_messages(source.name, stored.info):
        reporter.info(message) if reporter else warnings.warn(message, stacklevel=2)
    with error_context(source.name):
        if source.path:
            _check_rows(stored, encoding)
        names = tuple(label_names or ())
        return _encode_labels(stored, source, names, bool(names), "label_names")[0]


def as_source(data: Any, columns: Columns, encoding: str | None = None) -> tuple[TableSource, Columns]:
    """The table behind a path or an object, and its columns, which exist."""
    if not isinstance(data, str | os.PathLike):
        from ebmcal.data.memory import object_source

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


def _own_tables(data: DataConfig) -> dict[str, tuple[TableSource, Columns]]:
    if data.train is None:
        raise EbmcalError("No data given. Set task to a built-in task (see `ebmcal tasks`) or train to a file.")
    columns = Columns(data.text_column, data.text_pair_column, data.label_column or "label", data.id_column)
    tables = {}
    for part in ("train", "calibration", "test"):
        if getattr(data, part) is not None:
            with error_context(f"{part} data"):
                tables[part] = as_source(getattr(data, part), columns, data.encoding)
    if len({columns.pair is None for _, columns in tables.values()}) > 1:
        raise EbmcalError(f"Some of the data ({', '.join(tables)}) has pairs and some has single texts. Use one kind.")
    return tables


def _own_name(source: TableSource) -> str:
    """A name for the user's task: that of the file, or of its directory if the file is just called train."""
    if source.path is None:
        return "in-memory data"
    stem = source.path.name.partition(".")[0] or source.path.name
    return source.path.resolve().parent.name or stem if stem.lower() in ("train", "training", "data") else stem


def _check_rows(stored: StoredTable, encoding: str | None) -> None:
    """Raise if there are no rows, only empty texts, or mostly texts in another encoding."""
    info = stored.info
    if info["rows"] == 0:
        n_left_out = sum(entry["count"] for entry in info["left_out"].values())
        reason = f" ({n_left_out:,} were left out: {', '.join(info['left_out'])})" if n_left_out else ""
        raise EbmcalError(f"There are no rows to read{reason}.")
    if stored.rows["is_empty"].all():
        raise EbmcalError("All texts are empty. Choose another text column.")
    damaged = info["cleaned"].get(NOT_UTF8, {"count": 0, "first": []})
    if encoding is None and damaged["count"] > info["rows"] / 2:
        places = ", ".join(map(str, damaged["first"]))
        raise EbmcalError(
            f"{damaged['count']:,} of {info['rows']:,} rows are not UTF-8 (first {info['unit']}s: {places}). Pass the "
            "encoding of the file (--encoding latin-1, cp1252, …), or utf-8 to replace the invalid characters."
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
        verb = "is" if len(unknown) == 1 else "are"
        known = listed([name for name, i in classes.items() if i >= 0], 20)
        close = {name.casefold(): name for name in names}.get(unknown[0].casefold())
        guess = f" Did you mean {close!r}?" if close else ""
        raise EbmcalError(
            f"{_describe_labels(rows, unknown, unknown, source.unit)} {verb} not in {owner} ({known}).{guess} Correct "
            "or remove these rows."
        )
    table = np.array([*(classes[label] for label in found), -1], dtype=np.int64)
    rows = rows.assign(label=table[rows["label"].cat.codes])  # code -1, no label, picks the last entry
    kind = datasets.ClassLabel(names=list(names)) if names else datasets.Value("int64")
    info = datasets.DatasetInfo(features=datasets.Features({"label": kind}))
    labels = datasets.Dataset(pa.table({"label": rows["label"].to_numpy()}), info)  # from_dict would encode one by one
    texts = stored.dataset.select_columns([name for name in COLUMNS[:3] if name in stored.dataset.column_names])
    return datasets.concatenate_datasets([texts, labels], axis=1), rows, names


def _describe_labels(rows: "pd.DataFrame", labels: Sequence[Any], names: Sequence[str], unit: str) -> str:
    """Labels with their number of rows and the first place, for a message."""
    shown = []
    for label, name in list(zip(labels, names, strict=True))[:5]:
        places = rows.loc[rows["label"] == label, "place"]
        n_rows = f"{len(places):,} {'row' if len(places) == 1 else 'rows'}"
        shown.append(f"{name[:60]!r} ({n_rows}, first in {unit} {places.iloc[0]})")
    more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
    return f"the {'label' if len(labels) == 1 else 'labels'} {', '.join(shown)}{more}"


def _label_parts(
    sources: dict[str, tuple[TableSource, Columns]], stored: dict[str, StoredTable], task: Task | None
) -> tuple[tuple[str, ...], dict[str, _Part]]:
    """The class names, and the labelled rows of each table."""
    names, by_number, parts = (task.label_names, bool(task.label_names), {}) if task else ((), False, {})
    for name, (source, columns) in sources.items():
        with error_context(f"{name} data {source.name}"):
            _check_rows(stored[name], source.encoding)
            owner = f"the labels of {task.name if task and name == 'train' else 'the training data'}"
            dataset, rows, names = _encode_labels(stored[name], source, names, by_number, owner)
            rows = rows[rows["label"] >= 0]
            if not len(rows):
                raise EbmcalError(f"No row has a label in column {columns.label!r}.")
            if name == "train" and rows["label"].nunique() < 2:
                raise EbmcalError(
                    f"All labelled rows have the class {names[rows['label'].iloc[0]]!r}; expected at least two "
                    f"classes. Check the label column {columns.label!r}."
                )
            parts[name] = _Part(dataset, rows, source.unit)
    return names, parts


def _make_splits(parts: dict[str, _Part], data: DataConfig) -> dict[str, _Part]:
    train = parts["train"]
    if "dev" in parts:
        calibration, test = (parts["dev"].take(half) for half in halves(len(parts["dev"])))
        splits = {"train": train, "calibration": calibration, "test": test}
        if other := parts.get("dev_mismatched"):
            splits["test_mismatched"] = other.take(halves(len(other))[1])
        return splits
    missing = [name for name in ("calibration", "test") if name not in parts]
    shares = {"calibration": data.calibration_share or EVAL_SHARE, "test": EVAL_SHARE}
    rest, *cut = stratified_split(train.keys, train.labels, tuple(shares[n] for n in missing), data.split_seed)
    chosen = dict(zip(missing, cut, strict=True))
    if "calibration" in chosen and data.calibration_share is None:  # the test split stays the same
        rest = np.sort(np.concatenate([rest, chosen.pop("calibration")]))
    splits = parts | {name: train.take(rows) for name, rows in chosen.items()} | {"train": train.take(rest)}
    return {name: splits[name] for name in ("train", "calibration", "test") if name in splits}


def _check_splits(splits: dict[str, _Part], names: tuple[str, ...]) -> None:
    train = splits["train"].rows
    for name, split in splits.items():
        if not len(split):
            raise EbmcalError(
                f"The {name} split would have no rows: the training data has {train['key'].nunique():,} distinct "
                f"texts, too few to split (copies of a text stay together). Pass {name} data."
            )
        if unseen := sorted(set(split.rows["label"]) - set(train["label"])):
            described = _describe_labels(split.rows, unseen, [names[c] for c in unseen], split.unit)
            raise EbmcalError(f"The {name} split has {described}, which the training rows lack. Add or remove rows.")


def _limit(name: str, split: _Part, data: DataConfig) -> _Part:
    limit = data.max_train_rows if name == "train" else data.max_eval_rows
    if limit is None or limit >= len(split):
        return split
    return split.take(stratified_subset(split.keys, split.labels, limit, data.split_seed, every_class=name == "train"))


def _audit_splits(splits: dict[str, _Part], names: tuple[str, ...]) -> dict[str, Any]:
    records: dict[str, Any] = {}
    earlier: dict[str, pd.DataFrame] = {}
    for name, split in splits.items():
        records[name] = audit_split(split.rows, names, split.unit, earlier)
        earlier |= {name: split.rows} if name in ("train", "calibration") else {}
    return records


def _file_record(stored: StoredTable, labelled: _Part, id_column: str | None) -> dict[str, Any]:
    # Counted here and not while reading: only a task knows that "-" or -1 means no label.
    rows = stored.rows
    counts = {
        "missing_labels": count_places(rows.drop(labelled.rows.index)),
        "repeated_ids": count_places(rows.iloc[:0]),
    }
    if id_column is not None:  # row numbers are unique
        ids = stored.dataset.data.column("id").to_pandas()
        counts["repeated_ids"] = count_places(rows[ids.duplicated().to_numpy()])
    info = {name: value for name, value in stored.info.items() if name != "n_bytes"}
    return info | counts | {"labelled_rows": len(labelled)}
