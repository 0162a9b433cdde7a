"""Rows of a dataset: which go where (splits), their texts by position, and what is irregular in them (audit).

Splits are seeded and stratified, and depend on the texts and the seed, not on the order of the file: each distinct text
gets a pseudo-random position from its 64-bit key and the seed; a split takes the first positions of each class. Rows
with the same text stay together, so no text is in two parts of a split. The audit is a JSON-able record with messages.
"""

import difflib
import hashlib
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.data.files import N_PLACES, NOT_UTF8, NOT_UTF8_LABEL, NUL, SPACES, listed, row_key
from ebmcal.errors import EbmcalError, plural

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset


EVAL_SHARE = 0.1  # of the training rows, for a split that was not given


@dataclass(frozen=True)
class Part:
    """Rows of a table: label (class), key, place, is_empty. The index is the row of the dataset."""

    dataset: "Dataset"
    rows: "pd.DataFrame"
    source: dict[str, str]  # the "file" and the "unit" of the places

    @property
    def keys(self) -> np.ndarray:
        return self.rows["key"].to_numpy()

    @property
    def labels(self) -> np.ndarray:
        return self.rows["label"].to_numpy()

    def take(self, positions: np.ndarray) -> "Part":
        return replace(self, rows=self.rows.iloc[positions])

    def limited(self, limit: int | None, seed: int, every_class: bool) -> "Part":
        """A stratified subset, if there are more rows than `limit`."""
        if limit is None or limit >= len(self.rows):
            return self
        return self.take(stratified_subset(self.keys, self.labels, limit, seed, every_class))


def make_splits(parts: dict[str, Part], calibration_share: float | None, seed: int) -> dict[str, Part]:
    """The splits of a task from the parts that were given; None: no calibration rows are split off."""
    train = parts["train"]
    if "dev" in parts:
        calibration, test = (parts["dev"].take(half) for half in halves(len(parts["dev"].rows)))
        splits = {"train": train, "calibration": calibration, "test": test}
        if other := parts.get("dev_mismatched"):
            splits["test_mismatched"] = other.take(halves(len(other.rows))[1])
        return splits
    missing = [name for name in ("calibration", "test") if name not in parts]
    shares = {"calibration": calibration_share or EVAL_SHARE, "test": EVAL_SHARE}
    rest, *cut = stratified_split(train.keys, train.labels, tuple(shares[n] for n in missing), seed)
    chosen = dict(zip(missing, cut, strict=True))
    if "calibration" in chosen and calibration_share is None:  # the test split stays the same
        rest = np.sort(np.concatenate([rest, chosen.pop("calibration")]))
    splits = parts | {name: train.take(rows) for name, rows in chosen.items()} | {"train": train.take(rest)}
    return {name: splits[name] for name in ("train", "calibration", "test") if name in splits}


def halves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The published rule for GLUE: dev is cut in two by position, first half calibration, second half test."""
    return np.arange(n // 2), np.arange(n // 2, n)


def stratified_split(keys: np.ndarray, labels: np.ndarray, shares: tuple[float, ...], seed: int) -> list[np.ndarray]:
    """Row indices of the remainder and of one part per share, each in ascending order, stratified by label.

    keys [n] uint64, labels [n] int64. Every class keeps at least one text in the remainder.

    >>> keys, labels = np.arange(100, dtype=np.uint64), np.arange(100) % 2
    >>> [len(part) for part in stratified_split(keys, labels, (0.1, 0.1), seed=0)]
    [80, 10, 10]
    """
    distinct, inverse, class_of = _distinct(keys, labels)
    counts = np.unique(class_of, return_counts=True)[1]
    groups = np.split(np.lexsort((_positions(distinct, seed), class_of)), np.cumsum(counts)[:-1])
    part = np.zeros(len(distinct), dtype=np.int8)
    used = np.zeros_like(counts)
    for p, share in enumerate(shares, start=1):
        sizes = _quotas(counts, round(share * len(distinct)), least=0, most=counts - 1 - used)
        for group, start, size in zip(groups, used, sizes, strict=True):
            part[group[start : start + size]] = p
        used += sizes
    return [np.flatnonzero(part[inverse] == p) for p in range(len(shares) + 1)]


def stratified_folds(keys: np.ndarray, labels: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """[n] the fold, 0 to n_folds - 1, of each row. Folds differ by at most one distinct text, also within a class.

    keys [n] uint64, labels [n] int64. Rows with equal keys are in the same fold. A class with fewer distinct texts
    than folds is missing in some of them; a class with one distinct text is never in the training part of its fold.

    >>> folds = stratified_folds(np.arange(10, dtype=np.uint64), np.arange(10) % 2, 5, seed=0)
    >>> np.bincount(folds).tolist()
    [2, 2, 2, 2, 2]
    """
    distinct, inverse, class_of = _distinct(keys, labels)
    if n_folds < 2:
        raise EbmcalError(f"n_folds is {n_folds}; expected at least 2.")
    if n_folds > len(distinct):
        raise EbmcalError(
            f"{n_folds} folds need at least {n_folds} different training texts, got {len(distinct):,}. Add rows, use "
            "fewer folds (--folds), or calibrate on other rows (--calibration FILE)."
        )
    fold = np.empty(len(distinct), dtype=np.int64)
    fold[np.lexsort((_positions(distinct, seed + 2), class_of))] = np.arange(len(distinct)) % n_folds
    return fold[inverse]


def stratified_subset(
    keys: np.ndarray, labels: np.ndarray, size: int, seed: int, every_class: bool = True
) -> np.ndarray:
    """`size` row indices in ascending order with the label shares of all rows, with `every_class` if requested.

    >>> len(stratified_subset(np.arange(100, dtype=np.uint64), np.arange(100) % 3, 10, seed=0))
    10
    """
    if size >= len(keys):
        return np.arange(len(keys))
    classes, counts = np.unique(labels, return_counts=True)
    if every_class and size < len(classes):
        raise EbmcalError(
            f"{plural(size, 'row')} cannot hold {len(classes)} classes. Allow at least {len(classes)} rows."
        )
    sizes = _quotas(counts, size, least=int(every_class), most=counts)
    order = np.lexsort((np.arange(len(keys)), _positions(keys, seed + 1), labels))
    groups = np.split(order, np.cumsum(counts)[:-1])
    return np.sort(np.concatenate([group[:n] for group, n in zip(groups, sizes, strict=True)]))


def _quotas(counts: np.ndarray, size: int, least: int, most: np.ndarray) -> np.ndarray:
    """Rows per class that add up to `size` where the bounds allow it, by largest remainders."""
    exact = counts * size / counts.sum()
    quotas = np.clip(np.floor(exact).astype(np.int64), least, most)
    while quotas.sum() < size and (quotas < most).any():
        quotas[np.argmax(np.where(quotas < most, exact - quotas, -np.inf))] += 1
    while quotas.sum() > size and (quotas > least).any():
        quotas[np.argmax(np.where(quotas > least, quotas - exact, -np.inf))] -= 1
    return quotas


def _distinct(keys: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct keys, the index of each row among them, and one class for each: the lowest of its rows."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    class_of = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(class_of, inverse, labels)
    return distinct, inverse, class_of


def _positions(keys: np.ndarray, seed: int) -> np.ndarray:
    """splitmix64 of key and seed: a pseudo-random order that is the same on every machine."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


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


#: A text, or a pair of texts; the second is None for single texts.
TextPair = tuple[str, str | None]


class Texts:
    """The texts (columns text, text_pair), labels (-1 if unknown) and ids of a dataset.

    >>> from datasets import Dataset
    >>> texts = Texts(Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}))
    >>> texts[[1, 0]], texts.labels.tolist()
    ([('b', None), ('a', None)], [1, 0])
    """

    def __init__(self, dataset: "Dataset") -> None:
        from datasets import Dataset

        has = dataset.column_names
        if "text" not in has:
            raise EbmcalError(f"Noise is made from a column `text` (and `text_pair`); got {', '.join(has)}.")
        self.dataset, self.is_pair = dataset, "text_pair" in has
        self._rows = Dataset(dataset.data).select_columns(["text", *["text_pair"][: self.is_pair]])
        # Resolved here: `datasets` would resolve selected rows one by one, in Python, at every read.
        selected = dataset._indices
        self._positions = np.arange(len(dataset)) if selected is None else selected.column(0).to_numpy()
        self.labels = np.array(dataset["label"][:] if "label" in has else [-1] * len(dataset), dtype=np.int64)
        self.ids = [str(i) for i in (dataset["id"][:] if "id" in has else range(len(dataset)))]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, indices: Sequence[int] | np.ndarray) -> list[TextPair]:
        rows = self._rows[self._positions[np.asarray(indices, dtype=np.int64)].tolist()]
        return list(zip(rows["text"], rows.get("text_pair", [None] * len(rows["text"])), strict=True))


class ShuffledOrder:
    """The numbers 0 … n-1 in endless rounds, each round in a new order: none is used twice before all are used once.

    >>> order = ShuffledOrder(3, seed=0)
    >>> sorted(order[i] for i in range(3)), sorted(order[i] for i in range(3, 6))
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self._round, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, position: int) -> int:
        round_, offset = divmod(position, self.n)
        if round_ != self._round:
            self._round, self._order = round_, np.random.default_rng([self.seed, round_]).permutation(self.n)
        return int(self._order[offset])


FEW_ROWS = 100  # of a split
FEW_LABEL_ROWS = 5
NO_LABEL_NAMES = ("nan", "null", "none", "na", "n/a", "nil", "missing", "unknown", "?")

#: Finding -> (what the rows have, what was done about them).
_FINDINGS = {
    "missing_labels": ("no label", "left out"),
    "repeated_ids": ("the id of an earlier row", "kept, but rows cannot be matched by id"),
    NOT_UTF8: (
        NOT_UTF8,
        "replaced by \ufffd; if the file has another encoding, pass it (--encoding latin-1, cp1252, …)",
    ),
    NOT_UTF8_LABEL: (NOT_UTF8_LABEL, "characters replaced by \ufffd"),
    NUL: (NUL, "replaced by spaces"),
    SPACES: (SPACES, "removed"),
    "empty_texts": ("an empty text", "kept, as in the published task"),
    "duplicates": ("the text of an earlier row", "kept, copies stay in one split"),
    "conflicting_duplicates": ("the text of an earlier row but another label", "kept; check the labels"),
}


def audit_split(
    rows: "pd.DataFrame", names: tuple[str, ...], source: dict[str, Any], earlier: "dict[str, pd.DataFrame]"
) -> dict[str, Any]:
    """Counts for the rows (label, key, place, is_empty) of a split, and for the texts it shares with earlier splits.

    `source`: the "file" and "unit" (line or row) of the places.
    """
    counts = rows["label"].value_counts()
    is_copy = rows.duplicated("key")
    conflicts = is_copy & (rows["label"] != rows.groupby("key")["label"].transform("first"))
    return {
        "rows": len(rows),
        **source,
        "label_counts": {name: int(counts.get(i, 0)) for i, name in enumerate(names)},
        "label_places": {names[i]: int(place) for i, place in rows.groupby("label")["place"].first().items()},
        "empty_texts": count_places(rows[rows["is_empty"]]),
        "duplicates": count_places(rows[is_copy]),
        "conflicting_duplicates": count_places(rows[conflicts]),
        "shared": {name: count_places(rows[rows["key"].isin(other["key"])]) for name, other in earlier.items()},
    }


def count_places(rows: "pd.DataFrame") -> dict[str, Any]:
    """{"count", "first"}: the number of rows and where the first of them are."""
    return {"count": len(rows), "first": rows["place"].iloc[:N_PLACES].tolist()}


def row_places(ids: Iterable[Any], audit: Any) -> list[str]:
    """Where training rows are: their line or, in files without one line per row, their row; own ids as they are.

    >>> row_places(["5"], {"files": {"train": {"numbering": {"unit": "line", "first": 2}}}})
    ['line 7']
    """
    try:
        numbering = audit["files"]["train"]["numbering"]
        return [f"{numbering['unit']} {int(id_) + numbering['first']}" for id_ in ids]
    except (KeyError, TypeError, ValueError):
        return list(map(str, ids))


def audit_messages(audit: dict[str, Any]) -> list[str]:
    """The audit in sentences: what was found, what was done, and the lines or rows of the file (not the ids).

    >>> found = {"rows": 200, "unit": "line", "file": "mine.csv", "duplicates": {"count": 1, "first": [7]}}
    >>> audit_messages({"files": {}, "splits": {"train": found}})
    ['train: 1 row with the text of an earlier row: kept, copies stay in one split (line 7 of mine.csv).']
    """
    messages = [m for part, record in audit["files"].items() for m in _file_messages(part, record)]
    messages += [m for name, record in audit["splits"].items() for m in _split_messages(name, record)]
    return messages + list(_label_messages(audit["splits"].get("train", {})))


def _file_messages(part: str, record: dict[str, Any]) -> Iterator[str]:
    yield from left_out_messages(part, record)
    found = {key: record[key] for key in ("missing_labels", "repeated_ids")} | record["cleaned"]
    yield from _messages(part, record, {_FINDINGS[key]: entry for key, entry in found.items()})
    merged = {
        (f"the label {old!r}", f"relabelled {it['to']!r}"): it for old, it in record.get("relabelled", {}).items()
    }
    yield from _messages(part, record, merged)
    yield from (f"{part}: {note}: detected from the header." for note in record["notes"])


def left_out_messages(name: str, info: dict[str, Any]) -> Iterator[str]:
    """The rows of a table that could not be read."""
    yield from _messages(name, info, {(reason, "left out"): entry for reason, entry in info["left_out"].items()})


def _split_messages(name: str, record: dict[str, Any]) -> Iterator[str]:
    found = {words: record[key] for key, words in _FINDINGS.items() if key in record}
    too_good = f"kept, so results on {name} may be too good"
    found |= {(f"a text that is also in {other}", too_good): n for other, n in record.get("shared", {}).items()}
    yield from _messages(name, record, found)
    n, absent = record["rows"], [label for label, count in record.get("label_counts", {}).items() if not count]
    if name != "train" and 0 < n < FEW_ROWS:
        uncertain = f"an accuracy measured on so few is uncertain by up to ±{98 / n**0.5:.0f} points"
        yield f"{name}: only {plural(n, 'row')}: {uncertain}."
    if absent:
        yield f"{name}: no rows with {'label' if len(absent) == 1 else 'labels'} {listed(absent)}: not evaluated there."


def _messages(name: str, source: dict[str, Any], found: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """One message per finding; places are lines or rows of the file, not ids."""
    for (what, done), entry in found.items():
        if n := entry["count"]:
            yield f"{name}: {plural(n, 'row')} with {what}: {done} ({_where(source, entry['first'], n)})."


def _where(source: dict[str, Any], places: list[int], n: int) -> str:
    shown = ", ".join(map(str, places)) + (", …" if n > len(places) else "")
    start = ", counting from 0" if source["unit"] == "row" else ""
    return f"{source['unit']}{'' if n == 1 else 's'} {shown} of {source['file']}{start}"


def _label_messages(train: dict[str, Any]) -> Iterator[str]:
    """Labels that may be another label, no label, or too rare."""
    counts, places = train.get("label_counts", {}), train.get("label_places", {})
    shown = {name: f"{name!r} ({plural(n, 'row')})" for name, n in counts.items()}
    for name, other in similar_labels({name: n for name, n in counts.items() if name in places}):
        may_be = f"{shown[name]} may be the same label as {shown[other]}"
        first = f"{'first in ' * (counts[name] > 1)}{_where(train, [places[name]], 1)}"
        yield (
            f"labels: {may_be}: kept as separate classes. If they are the same, correct {name!r} ({first}) or merge "
            f"them: {merge_option([(name, other)])}"
        )
    for name in counts:
        if name.casefold() in NO_LABEL_NAMES:
            yield f"labels: {shown[name]} is kept as a class. If it means no label, leave the field empty."
    if rare := [name for name, n in counts.items() if 0 < n < FEW_LABEL_ROWS]:
        some = ", ".join(shown[name] for name in rare[:20]) + (", …" if len(rare) > 20 else "")
        yield (
            f"labels: {plural(len(rare), 'label')} with fewer than {FEW_LABEL_ROWS} training rows: {some}: kept as "
            "classes of the model, but too rare to learn or to evaluate. Add rows, remove these, or merge labels: "
            "--merge-labels RARE=OTHER"
        )


def merge_option(pairs: Iterable[tuple[str, str]]) -> str:
    """The options of `ebmcal run` that merge labels.

    >>> merge_option([("complant", "complaint")])
    '--merge-labels complant=complaint'
    """
    return " ".join(f"--merge-labels {shlex.quote(f'{name}={other}')}" for name, other in pairs)


def similar_labels(counts: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Labels that differ in case, width or punctuation, and rare labels that look like a misspelt frequent one.

    The rarer label of a pair comes first.
    """
    numbers = {name for name in counts if re.fullmatch(r"[-+\d.,]+", name)}  # -1 is not 1
    plain = {name: unicodedata.normalize("NFKC", name).casefold() for name in counts}
    plain |= {name: re.sub(r"[\W_]+", " ", plain[name]).strip() for name in counts.keys() - numbers}
    # "type 1" and "type 2" are not misspelt
    letters = {name: "" if name in numbers else re.sub(r"\d", "", name) for name in counts}
    for name, n in counts.items():
        alike = [other for other in counts if other > name and plain[other] == plain[name] != ""]
        yield from ((name, other) if n < counts[other] else (other, name) for other in alike)
        frequent = [o for o, m in counts.items() if m >= 10 * n > 0 and plain[o] != plain[name]]
        frequent = [other for other in frequent if letters[other] != letters[name]]
        yield from ((name, other) for other in difflib.get_close_matches(name, frequent, n=1, cutoff=0.85))
