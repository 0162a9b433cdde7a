"""`load_data`: from what the user asked for to splits of texts with an audit. The one entry to the data code."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.data.audit import audit_split
from ebmcal.data.labels import check_seen, class_map, classes_of, infer_names
from ebmcal.data.parts import PartFiles, check_file, format_of
from ebmcal.data.sources import DataSource, ResolvedSource, resolve_source
from ebmcal.data.splits import halves, stratified_split, stratified_subset
from ebmcal.data.store import StoredPart, store_part
from ebmcal.data.texts import Texts
from ebmcal.data.values import FIRST, NOT_UTF8, Columns
from ebmcal.errors import EbmcalError
from ebmcal.storage.checksums import fingerprint

EVAL_SHARE = 0.1  # of the training file, for a calibration or test split that was not given


@dataclass(frozen=True)
class TaskData:
    """Splits "train", "calibration", "test" (and "test_mismatched"), with the audit of what was odd."""

    task_name: str
    metric: str
    label_names: tuple[str, ...]
    is_pair: bool
    splits: dict[str, Texts]
    audit: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """16 hex digits of label names and the contents of all splits."""
        return fingerprint(self.label_names, self.is_pair, {n: s.fingerprint for n, s in self.splits.items()})


def load_data(source: DataSource, cache_dir: Path, say: Callable[[str], None] = lambda line: None) -> TaskData:
    r"""Read, check and split the data of a run; Arrow files are kept in `cache_dir` and found again; damage is said.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "mood.csv").write_text("text,label\n" + "fine film,good\ndull film,bad\n" + "".join(
    ...     f"film {i},{'good' if i % 2 else 'bad'}\n" for i in range(58)))
    >>> data = load_data(DataSource(train=folder / "mood.csv"), folder / "cache")
    >>> data.label_names, {name: len(split) for name, split in data.splits.items()}
    (('bad', 'good'), {'train': 48, 'calibration': 6, 'test': 6})
    """
    resolved = resolve_source(source)
    stored = {part: store_part(files, cache_dir, say) for part, files in resolved.parts.items()}
    names, labelled = _labelled(resolved, stored)
    splits = _splits(labelled, source.split_seed)
    _check_splits(splits, names, resolved.parts["train"].paths[0])
    splits = {name: _limited(name, split, source) for name, split in splits.items()}
    audit = {"files": _file_records(stored, labelled)}
    del stored, labelled  # their arrays are as large as those of the splits, and the audit sorts
    audit["splits"] = _split_records(splits, names)
    return TaskData(resolved.name, resolved.metric, names, splits["train"].is_pair, splits, audit)


def load_texts(
    path: Path,
    cache_dir: Path,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str | None = None,
    label_names: tuple[str, ...] | None = None,
    say: Callable[[str], None] = lambda line: None,
    encoding: str | None = None,
) -> Texts:
    """All rows of one file, labels optional: to predict on it, or as text from elsewhere.

    Labels are classes of `label_names` (inferred when None); rows without one are kept with label -1.
    """
    path = Path(path)
    check_file(path)
    columns = Columns(text_column, text_pair_column, label_column)
    part = PartFiles((path,), format_of(path), columns, encoding=encoding)
    part.check()
    stored = store_part(part, Path(cache_dir), say)
    _check_rows(stored, str(path), encoding)
    names = label_names or infer_names(stored.label_values, path)
    classes = classes_of(stored, class_map(tuple(names), by_number=label_names is not None), str(path))
    return Texts.of(stored, text_pair_column is not None, classes)


def load_other_texts(
    path: Path,
    cache_dir: Path,
    text_column: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    encoding: str | None = None,
) -> Texts:
    """Texts from elsewhere: the column `text`, that of the run's own files, `sentence`, or the only one of the file."""
    path = Path(path)
    check_file(path)
    columns = PartFiles((path,), format_of(path), Columns("text"), encoding=encoding).header_of(path)
    known = [name for name in ("text", text_column, "sentence") if name in columns]
    chosen = (known or (columns if len(columns) == 1 else ["text"]))[0]
    return load_texts(path, cache_dir, chosen, say=say, encoding=encoding)


def _labelled(resolved: ResolvedSource, stored: dict[str, StoredPart]) -> tuple[tuple[str, ...], dict[str, Texts]]:
    """Class names, and each part without the rows that have no label."""
    for part, kept in stored.items():
        _check_rows(kept, f"the {part} file {resolved.parts[part].paths[0]}", resolved.parts[part].encoding)
    names = resolved.label_names or infer_names(stored["train"].label_values, resolved.parts["train"].paths[0])
    mapping = class_map(names, by_number=resolved.label_names is not None)
    labelled = {}
    for part, kept in stored.items():
        who = f"{resolved.name} does not have" if part == "train" else "training never saw"
        file = f"the {part} file {resolved.parts[part].paths[0]}"
        classes = classes_of(kept, mapping, f"T{file[1:]}", who)
        texts = Texts.of(kept, resolved.parts[part].columns.pair is not None, classes)
        labelled[part] = texts.take(np.flatnonzero(classes >= 0)) if (classes < 0).any() else texts
        if len(labelled[part]) == 0:
            raise EbmcalError(f"No row of {file} has a label in column {resolved.parts[part].columns.label!r}.")
        if part == "train":
            _check_two_classes(labelled[part], names, file, resolved.parts[part].columns.label)
    return names, labelled


def _check_two_classes(train: Texts, names: tuple[str, ...], file: str, column: str | None) -> None:
    seen = np.unique(train.labels)
    if len(seen) < 2:
        raise EbmcalError(
            f"The labelled rows of {file} have one class only ({names[seen[0]]!r}); at least two are needed. "
            f"Check the label column {column!r}."
        )


def _check_rows(stored: StoredPart, what: str, encoding: str | None = None) -> None:
    info = stored.info
    if info["rows"] == 0:
        aside = sum(entry["count"] for entry in info["set_aside"].values())
        broken = f" ({aside:,} were set aside as broken)" if aside else ""
        raise EbmcalError(f"There are no rows to read in {what}{broken}.")
    if info["empty_texts"]["count"] == info["rows"]:
        raise EbmcalError(f"Every text of {what} is empty. Choose another text column.")
    n_hurt = info["cleaned"].get(NOT_UTF8, {"count": 0})["count"]
    if encoding is None and n_hurt > info["rows"] / 2:
        raise EbmcalError(
            f"{n_hurt:,} of the {info['rows']:,} rows of {what} are not UTF-8: characters would be lost. Name the "
            "encoding of the file (--encoding latin-1, cp1252, …), or utf-8 to take them as they are."
        )


def _splits(parts: dict[str, Texts], seed: int) -> dict[str, Texts]:
    if "dev" in parts:
        calibration, test = (parts["dev"].take(half) for half in halves(len(parts["dev"])))
        splits = {"train": parts["train"], "calibration": calibration, "test": test}
        if "dev_mismatched" in parts:
            other = parts["dev_mismatched"]
            splits["test_mismatched"] = other.take(halves(len(other))[1])
        return splits
    wanted = [name for name in ("calibration", "test") if name not in parts]
    train = parts["train"]
    cut = stratified_split(train.keys, train.labels, (EVAL_SHARE,) * len(wanted), seed)
    made = dict(zip(wanted, (train.take(rows) for rows in cut[1:]), strict=True))
    first = train if not wanted else train.take(cut[0])
    every = parts | made
    return {"train": first, "calibration": every["calibration"], "test": every["test"]}


def _check_splits(splits: dict[str, Texts], names: tuple[str, ...], file: Path) -> None:
    train = splits["train"]
    for name, split in splits.items():
        if len(split) == 0:
            raise EbmcalError(
                f"The {name} split has no rows: the training rows of {file} have {len(np.unique(train.keys)):,} "
                "different texts, too few to cut one off (equal texts stay together). Give the split as a file."
            )
        check_seen(train.labels, split.labels, split.ids, names, f"The {name} split")


def _limited(name: str, split: Texts, source: DataSource) -> Texts:
    limit = source.max_train_rows if name == "train" else source.max_eval_rows
    if limit is None or limit >= len(split):
        return split
    every_class = name == "train"
    return split.take(stratified_subset(split.keys, split.labels, limit, source.split_seed, every_class))


def _file_records(stored: dict[str, StoredPart], labelled: dict[str, Texts]) -> dict[str, Any]:
    records = {}
    for part, kept in stored.items():
        all_labelled = len(labelled[part]) == len(kept.ids)
        ids = kept.ids[:0] if all_labelled else np.setdiff1d(kept.ids, labelled[part].ids, assume_unique=True)
        # Counted here and not while reading: only a task knows that its files write "-" or -1 for no label.
        missing = {"count": len(ids), "first_rows": [int(i) for i in ids[:FIRST]]}
        known = {k: v for k, v in kept.info.items() if k != "arrow_sha256"}
        records[part] = known | {"labelled_rows": len(labelled[part]), "missing_labels": missing}
    return records


def _split_records(splits: dict[str, Texts], names: tuple[str, ...]) -> dict[str, Any]:
    earlier = {"train": [], "calibration": ["train"]}
    return {
        name: audit_split(split, names, {n: splits[n] for n in earlier.get(name, ["train", "calibration"])})
        for name, split in splits.items()
    }
