"""`load_task`: from a request to splits with an audit; `as_dataset`: any data as one `datasets.Dataset`."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.data.audit import audit_split, count_places, left_out_messages
from ebmcal.data.labels import class_map, describe_labels, encode_labels, infer_label_names
from ebmcal.data.memory import as_source
from ebmcal.data.sources import DataConfig, TaskSources, resolve_sources
from ebmcal.data.splits import Split, halves, stratified_split, stratified_subset
from ebmcal.data.store import StoredTable, check_rows, content_fingerprint, dataset_fingerprint, store_table
from ebmcal.data.tables import TableSource
from ebmcal.data.values import Columns, Tally
from ebmcal.errors import EbmcalError, error_context, require_extra
from ebmcal.progress import Reporter

if TYPE_CHECKING:
    from datasets import Dataset

#: The columns of every dataset in this package; text_pair only for pairs.
COLUMNS = ("id", "text", "text_pair", "label")

EVAL_SHARE = 0.1  # of the training rows, for a test split that was not given


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

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Split → fingerprint of its texts and labels, independent of paths."""
        return {name: dataset_fingerprint(split) for name, split in self.splits.items()}


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
    reporter = reporter or Reporter()
    sources = resolve_sources(data)
    stored = {}
    for part, (source, columns) in sources.parts.items():
        stored[part] = store_table(source, columns, Path(cache_dir), reporter)
    names, parts = _label_parts(sources, stored)
    splits = _make_splits(parts, data)
    _check_splits(splits, names)
    splits = {name: _limit(name, split, data) for name, split in splits.items()}
    files = {part: _file_record(stored[part], split, data.id_column is not None) for part, split in parts.items()}
    earlier = {name: [n for n in ("train", "calibration") if n in splits and n != name] for name in splits}
    earlier["train"] = []
    records = {n: audit_split(split, names, {e: splits[e] for e in earlier[n]}) for n, split in splits.items()}
    datasets = {name: split.dataset for name, split in splits.items()}
    is_pair = "text_pair" in datasets["train"].column_names
    task = TaskData(sources.name, sources.metric, names, is_pair, datasets, {"files": files, "splits": records})
    # The keys are known: computing the fingerprints now saves reading all texts again.
    vars(task)["fingerprints"] = {n: content_fingerprint(is_pair, s.keys, s.labels) for n, s in splits.items()}
    return task


def as_dataset(
    data: Any,
    *,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    label_names: Sequence[str] | None = None,
    encoding: str | None = None,
    keep_columns: bool = False,
    cache_dir: Path | None = None,
    reporter: Reporter | None = None,
) -> "Dataset":
    """Any data as a Dataset with the columns id, text, text_pair (pairs only) and label (-1 if unlabelled).

    `data`: a path of CSV, TSV, JSONL, JSON, Parquet or text lines (also .gz), "-" for standard input, a DataFrame
    (pandas, polars), an Arrow table, a `datasets.Dataset`, a dict of columns, (texts, labels), a list of texts or of
    (text, text) pairs. Without `text_column`, "text", "sentence" or the only column is read. Labels are read from
    `label_column` only, as indices of `label_names` or, without them, of the labels found. Without `id_column`, ids
    are row numbers from 0. `keep_columns` keeps the other columns, except those with a name of `COLUMNS`.
    With `cache_dir`, files are converted there and memory-mapped. A Dataset of this form is returned unchanged.

    >>> dataset = as_dataset((["fine film", "dull film"], ["good", "bad"]))
    >>> dataset["label"][:], dataset.features["label"].names, dataset["id"][:]
    ([1, 0], ['bad', 'good'], ['0', '1'])
    """
    require_extra("train", "datasets")
    named = Columns(text_column, text_pair_column, label_column, id_column, other=keep_columns)
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
        if source.paths:
            check_rows(stored, encoding)
        values, codes = stored.label_codes()
        names = tuple(label_names or source.label_names or infer_label_names(values))
        mapping = class_map(names, by_number=label_names is not None)
        labels = encode_labels(values, codes, stored.places, mapping, source.unit, "label_names")
    dataset = _with_labels(stored, labels, names)
    return _with_other_columns(dataset, source, columns, stored.places) if keep_columns else dataset


def _is_standard(data: Any) -> bool:
    """Whether this is a Dataset as `load_task` and `as_dataset` produce it: class names, or no labels at all."""
    features = getattr(data, "features", None) or {}
    if type(data).__module__ != "datasets.arrow_dataset" or not {"id", "text", "label"} <= set(features):
        return False
    kinds = {name: getattr(kind, "dtype", None) for name, kind in features.items()}
    if not all(kinds[name] == ("int64" if name == "label" else "string") and name in COLUMNS for name in kinds):
        return False
    return hasattr(features["label"], "names") or not (np.asarray(data["label"]) >= 0).any()


def _with_labels(stored: StoredTable, labels: np.ndarray, names: tuple[str, ...]) -> "Dataset":
    """The stored texts (still memory-mapped) with classes instead of labels as written."""
    import datasets
    import pyarrow as pa

    kind = datasets.ClassLabel(names=list(names)) if names else datasets.Value("int64")
    info = datasets.DatasetInfo(features=datasets.Features({"label": kind}))
    classes = datasets.Dataset(pa.table({"label": labels}), info)  # from_dict would encode value by value
    texts = stored.dataset.select_columns([name for name in COLUMNS[:3] if name in stored.dataset.column_names])
    return datasets.concatenate_datasets([texts, classes], axis=1)


def _with_other_columns(dataset: "Dataset", source: TableSource, columns: Columns, places: np.ndarray) -> "Dataset":
    """Add the user's other columns; values of different types in one column become JSON strings."""
    import datasets
    import pyarrow as pa

    kept = set(places.tolist())
    rows = [row.values for row in source.rows(columns, Tally()) if row.place in kept]
    names = dict.fromkeys(name for row in rows for name in row if name not in (*COLUMNS, *columns.names()))
    values = {name: [row.get(name) for row in rows] for name in names}
    for name in names:
        try:
            pa.array(values[name])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            values[name] = [None if value is None else json.dumps(value, default=str) for value in values[name]]
    return datasets.concatenate_datasets([dataset, datasets.Dataset.from_dict(values)], axis=1) if names else dataset


def _label_parts(sources: TaskSources, stored: dict[str, StoredTable]) -> tuple[tuple[str, ...], dict[str, Split]]:
    """Class names, and the labelled rows of each part."""
    names, parts = sources.label_names, {}
    for part, (source, columns) in sources.parts.items():
        with error_context(f"{part} data {source.name}"):
            table = stored[part]
            check_rows(table, source.encoding)
            values, codes = table.label_codes()
            names = names or source.label_names or infer_label_names(values)
            owner = f"the labels of {sources.name if part == 'train' else 'the training data'}"
            mapping = class_map(names, by_number=bool(sources.label_names))
            labels = encode_labels(values, codes, table.places, mapping, source.unit, owner)
            dataset = _with_labels(table, labels, names)
            split = Split(dataset, labels, table.keys, table.places, table.is_empty, source.unit)
            parts[part] = split.take(np.flatnonzero(labels >= 0)) if (labels < 0).any() else split
            _check_labels(parts[part], names, columns, part)
    return names, parts


def _check_labels(split: Split, names: tuple[str, ...], columns: Columns, part: str) -> None:
    if len(split) == 0:
        raise EbmcalError(f"No row has a label in column {columns.label!r}.")
    seen = np.unique(split.labels)
    if part == "train" and len(seen) < 2:
        raise EbmcalError(
            f"All labelled rows have the class {names[seen[0]]!r}; expected at least two classes. Check the label "
            f"column {columns.label!r}."
        )


def _make_splits(parts: dict[str, Split], data: DataConfig) -> dict[str, Split]:
    if "dev" in parts:
        calibration, test = (parts["dev"].take(half) for half in halves(len(parts["dev"])))
        splits = {"train": parts["train"], "calibration": calibration, "test": test}
        if "dev_mismatched" in parts:
            other = parts["dev_mismatched"]
            splits["test_mismatched"] = other.take(halves(len(other))[1])
        return splits
    train, missing = parts["train"], [name for name in ("calibration", "test") if name not in parts]
    shares = {"calibration": data.calibration_share or EVAL_SHARE, "test": EVAL_SHARE}
    rest, *cut = stratified_split(train.keys, train.labels, tuple(shares[n] for n in missing), data.split_seed)
    rows = dict(zip(missing, cut, strict=True))
    if "calibration" in rows and data.calibration_share is None:  # the test split stays the same
        rest = np.sort(np.concatenate([rest, rows.pop("calibration")]))
    splits = parts | {name: train.take(chosen) for name, chosen in rows.items()}
    splits["train"] = train.take(rest) if len(rest) < len(train) else train
    return {name: splits[name] for name in ("train", "calibration", "test") if name in splits}


def _check_splits(splits: dict[str, Split], names: tuple[str, ...]) -> None:
    train = splits["train"]
    for name, split in splits.items():
        if len(split) == 0:
            raise EbmcalError(
                f"The {name} split would have no rows: the training data has {len(np.unique(train.keys)):,} distinct "
                f"texts, too few to split (copies of a text stay together). Pass {name} data."
            )
        unseen = sorted(set(split.labels.tolist()) - set(train.labels.tolist()))
        if unseen:
            entries = [(names[c], np.flatnonzero(split.labels == c)) for c in unseen]
            described = describe_labels(entries, split.places, split.unit)
            raise EbmcalError(f"The {name} split has {described}, which the training rows lack. Add or remove rows.")


def _limit(name: str, split: Split, data: DataConfig) -> Split:
    limit = data.max_train_rows if name == "train" else data.max_eval_rows
    if limit is None or limit >= len(split):
        return split
    return split.take(stratified_subset(split.keys, split.labels, limit, data.split_seed, every_class=name == "train"))


def _file_record(stored: StoredTable, labelled: Split, has_ids: bool) -> dict[str, Any]:
    # Counted here and not while reading: only a task knows that "-" or -1 means no label.
    is_missing = ~np.isin(stored.places, labelled.places)
    repeated = np.zeros(len(is_missing), dtype=bool)
    if has_ids:  # row numbers are unique
        repeated = stored.dataset.data.column("id").to_pandas().duplicated().to_numpy()
    counts = {
        "missing_labels": count_places(is_missing, stored.places),
        "repeated_ids": count_places(repeated, stored.places),
    }
    info = {name: value for name, value in stored.info.items() if name != "n_bytes"}
    return info | counts | {"labelled_rows": len(labelled)}
