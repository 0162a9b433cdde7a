"""`Predictions`: the output of a classifier for rows of text, with the true labels where they are known.

Created by the training half or read from a file that any model wrote; metrics, calibrators, plots and reports use it.
`arrays` validates what goes into it, `columns` defines the columns of a file, `files` the formats.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions.arrays import as_labels, as_logits, as_probs, as_scores, normalized, softmax
from ebmcal.predictions.columns import to_columns, to_fields, without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns, write_columns
from ebmcal.storage import PathLike

__all__ = ["Predictions", "align", "ensemble"]

_FIELDS = ("labels", "label_names", "energies", "ids", "texts", "text_pairs", "distances", "meta", "human")


class Predictions:
    """Logits or probabilities of n rows over C classes, with labels, energies, ids and texts where known.

    Attributes: `labels` int64 [n] (−1 = unknown); `label_names` (C names); `logits` [n, C] or None; `probs` float64
    [n, C] (softmax of the logits if those were given); `energies` [n] or None (low = data-like); `ids` [n] of str
    (default "0".."n-1"); `texts`, `text_pairs`: lists of n strings or None; `distances`: name → [n] (high = far from
    the training texts) or None; `human` [n, C] or None: shares of several human labels per row; `meta`: JSON-able
    dictionary (task, method, seed, split, model, calibrator, …). Treat the object as immutable; `replace` copies.

    >>> p = Predictions(labels=[1, -1], label_names=("no", "yes"), probs=[[0.25, 0.75], [0.5, 0.5]])
    >>> p
    Predictions(2 rows, 1 labelled, classes no, yes)
    >>> p.predicted, p.predicted_labels, p.confidence
    (array([1, 0]), array(['yes', 'no'], dtype='<U3'), array([0.75, 0.5 ]))
    >>> Predictions([0], ("no", "yes"), logits=[[0.0, 0.0]]).probs
    array([[0.5, 0.5]])
    """

    def __init__(
        self,
        labels: Any,
        label_names: Sequence[str],
        logits: Any = None,
        probs: Any = None,
        *,
        energies: Any = None,
        ids: Any = None,
        texts: Sequence[str] | None = None,
        text_pairs: Sequence[str] | None = None,
        distances: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        human: Any = None,
    ) -> None:
        self.logits: np.ndarray | None = None
        if logits is not None and probs is None:
            n_rows, n_classes = as_logits(logits).shape
            self.logits = _floats(np.asarray(logits))
        else:
            self.__dict__["probs"] = as_probs(logits=logits, probs=probs)  # takes precedence over the property
            n_rows, n_classes = self.probs.shape
        labels = np.full(n_rows, -1) if labels is None else labels
        self.labels = as_labels(labels, n_classes, n_rows, unknown_allowed=True)
        self.label_names = _checked_names(label_names, n_classes)
        self.energies = None
        if energies is not None:
            as_scores(energies, "energies", n_rows)
            self.energies = _floats(np.asarray(energies))
        self.ids = _checked_ids(ids, n_rows)
        self.texts = None if texts is None else list(texts)
        self.text_pairs = None if text_pairs is None else list(text_pairs)
        self.distances = (
            None if distances is None else {k: as_scores(v, f"distance_{k}", n_rows) for k, v in distances.items()}
        )
        self.meta = dict(meta or {})
        self.human = None if human is None else _shares(human, n_rows, n_classes)
        for name in ("ids", "texts", "text_pairs"):
            values = getattr(self, name)
            if values is not None and len(values) != n_rows:
                raise EbmcalError(f"{name} has {len(values)} rows, the predictions have {n_rows}.")

    def __repr__(self) -> str:
        names = ", ".join(self.label_names[:5]) + (", …" if self.n_classes > 5 else "")
        return f"Predictions({self.n_rows:,} rows, {(self.labels >= 0).sum():,} labelled, classes {names})"

    def __len__(self) -> int:
        return self.n_rows

    @functools.cached_property
    def probs(self) -> np.ndarray:
        """P(y|x) [n, C], float64."""
        return softmax(self.logits)

    @property
    def n_rows(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        return len(self.label_names)

    @property
    def predicted(self) -> np.ndarray:
        """The class with the largest probability of each row [n]; of a tie the first."""
        return (self.logits if self.logits is not None else self.probs).argmax(axis=1)

    @property
    def predicted_labels(self) -> np.ndarray:
        """The name of the predicted class of each row [n], of str."""
        return np.array(self.label_names)[self.predicted]

    @property
    def confidence(self) -> np.ndarray:
        """The largest probability of each row [n]."""
        return self.probs.max(axis=1)

    @property
    def entropy(self) -> np.ndarray:
        """Entropy of P(·|x) in nats [n]."""
        return -(self.probs * np.log(np.where(self.probs > 0, self.probs, 1.0))).sum(axis=1)

    def require_energies(self) -> np.ndarray:
        """The energies [n]; an error if there are none."""
        if self.energies is None:
            raise EbmcalError("These predictions have no energies. Use a model of ebmcal or add a column 'energy'.")
        return self.energies

    def replace(self, **changes: Any) -> "Predictions":
        """A copy with some attributes changed; new `probs` replace the logits and vice versa.

        >>> Predictions([0], ("no", "yes"), logits=[[0.0, 0.0]]).replace(ids=["a"]).ids
        array(['a'], dtype=object)
        """
        if "logits" not in changes and "probs" not in changes:
            kind = "probs" if self.logits is None else "logits"
            changes[kind] = getattr(self, kind)
        return Predictions(**{name: getattr(self, name) for name in _FIELDS} | changes)

    def labelled(self) -> "Predictions":
        """Only the rows with a known label; an error if there are none."""
        known = self.labels >= 0
        if not known.any():
            raise EbmcalError("No row has a label (all are −1); labels are needed here.")
        return self if known.all() else self.rows(np.flatnonzero(known))

    def rows(self, index: Any) -> "Predictions":
        """The rows at these positions, in this order; a boolean mask works too."""
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        picked: dict[str, Any] = {}
        for name in ("labels", "energies", "ids", "human", "probs" if self.logits is None else "logits"):
            values = getattr(self, name)
            picked[name] = None if values is None else values[index]
        for name in ("texts", "text_pairs"):
            values = getattr(self, name)
            picked[name] = None if values is None else [values[i] for i in index]
        if self.distances is not None:
            picked["distances"] = {name: values[index] for name, values in self.distances.items()}
        return self.replace(**picked)

    def reorder(self, label_names: Sequence[str]) -> "Predictions":
        """The same rows with the classes in another order.

        >>> p = Predictions([1], ("no", "yes"), probs=[[0.25, 0.75]]).reorder(["yes", "no"])
        >>> p.labels, p.probs
        (array([0]), array([[0.75, 0.25]]))
        """
        names = tuple(label_names)
        if names == self.label_names:
            return self
        if sorted(names) != sorted(self.label_names):
            raise EbmcalError(f"the classes are {', '.join(self.label_names[:20])}; expected {', '.join(names[:20])}.")
        places = {name: i for i, name in enumerate(self.label_names)}
        order = [places[name] for name in names]
        kind = "probs" if self.logits is None else "logits"
        labels = np.append(np.argsort(order), -1)[self.labels]  # the last entry is for −1, unknown
        human = None if self.human is None else self.human[:, order]
        return self.replace(labels=labels, label_names=names, human=human, **{kind: getattr(self, kind)[:, order]})

    def with_probs(self, probs: np.ndarray, **meta: Any) -> "Predictions":
        """The same rows with these probabilities instead of logits; `meta` entries are added."""
        return self.replace(probs=probs, meta=self.meta | meta)

    def write(self, path: PathLike) -> None:
        """Write atomically in the format of the suffix: .parquet, .csv, .jsonl or .npz.

        Parquet and NPZ keep class order, class names and `meta`; CSV and JSONL cannot store `meta`.
        """
        suffix = Path(path).suffix.lower()
        kind = "probs" if self.logits is None else "logits"
        fields = {name: getattr(self, name) for name in _FIELDS}
        write_columns(path, to_columns(fields, kind, getattr(self, kind), suffix))

    @classmethod
    def read(
        cls,
        path: PathLike,
        *,
        label_names: Sequence[str] | None = None,
        normalize: bool = False,
        labels_required: bool = True,
    ) -> "Predictions":
        """Read what `write` wrote or what another model wrote: see `ebmcal.predictions.columns`.

        `label_names` reorders the classes, or names the classes of a file that numbers them; `normalize` divides
        rounded probabilities by the sum of their row; without `labels_required` a file may have no column `label`;
        "-" reads standard input. Error rows of `ebmcal predict` are dropped with a warning.
        """
        columns = without_error_rows(read_columns(path), path)
        with error_context(path):
            return cls.from_columns(columns, label_names, normalize=normalize, labels_required=labels_required)

    @classmethod
    def from_columns(
        cls,
        columns: FileColumns,
        label_names: Sequence[str] | None = None,
        *,
        normalize: bool = False,
        labels_required: bool = True,
    ) -> "Predictions":
        """Predictions from the columns of a file; options as in `read`."""
        fields = to_fields(columns, label_names, labels_required=labels_required)
        if normalize and "probs" in fields:
            fields["probs"] = normalized(fields["probs"])
        found = cls(**fields)
        return found if label_names is None else found.reorder(label_names)


def _shares(counts: Any, n_rows: int, n_classes: int) -> np.ndarray:
    """Counts or shares of human labels as shares, rows summing to one."""
    try:
        found = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EbmcalError(f"human: expected numbers of shape (n, C): {error}.") from error
    if found.shape != (n_rows, n_classes):
        raise EbmcalError(f"human: expected shape (n, C) = {(n_rows, n_classes)}, got {found.shape}.")
    bad = np.flatnonzero(~(np.isfinite(found).all(axis=1) & (found >= 0).all(axis=1) & (found.sum(axis=1) > 0)))
    if len(bad):
        raise EbmcalError(
            f"human[{bad[0]}] is {found[bad[0]].tolist()}; every row needs at least one human label and counts ≥ 0."
        )
    return found / found.sum(axis=1, keepdims=True)


def _floats(array: np.ndarray) -> np.ndarray:
    """float32 and float64 as they are, float16 and bfloat16 as float32 (exact), integers as float64."""
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def _checked_ids(ids: Any, n_rows: int) -> np.ndarray:
    if ids is None:
        return np.arange(n_rows).astype(f"U{len(str(n_rows))}")
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "U":
        return ids
    return np.array([str(i) for i in ids], dtype=object)


def _checked_names(names: Sequence[str], n_classes: int) -> tuple[str, ...]:
    names = tuple(str(name) for name in names)
    if len(names) != n_classes:
        raise EbmcalError(f"Expected {n_classes} label names, got {len(names)}: {', '.join(names[:20])}.")
    if len(set(names)) != len(names) or "" in names:
        raise EbmcalError(f"Label names must be unique and not empty, got {', '.join(map(repr, names[:20]))}.")
    return names


def align(predictions: Sequence[Predictions]) -> list[Predictions]:
    """The predictions with their rows in the order of the first, matched by id, so that rows can be paired.

    >>> a = Predictions([0, 1], ("no", "yes"), probs=[[1.0, 0.0], [0.0, 1.0]], ids=["x", "y"])
    >>> align([a, a.rows([1, 0])])[1].ids.tolist()
    ['x', 'y']
    """
    first = predictions[0]
    order = _positions(first)
    return [first] + [_aligned(first, order, other, place) for place, other in enumerate(predictions[1:], start=2)]


def ensemble(predictions: Sequence[Predictions]) -> Predictions:
    """Mean probabilities of predictions for the same rows, matched by id; labels and classes must agree.

    Energies are averaged if all members have them. `meta["ensemble"]` holds the metadata of the members.

    >>> sure = Predictions([1, 0], ("no", "yes"), probs=[[0.0, 1.0], [1.0, 0.0]], ids=["a", "b"])
    >>> vague = Predictions([0, 1], ("no", "yes"), probs=[[0.6, 0.4], [0.4, 0.6]], ids=["b", "a"])
    >>> ensemble([sure, vague]).probs.tolist()
    [[0.2, 0.8], [0.8, 0.2]]
    """
    if len(predictions) < 2:
        raise EbmcalError(f"An ensemble needs the predictions of at least two models, got {len(predictions)}.")
    members = align([rows.reorder(predictions[0].label_names) for rows in predictions])
    energies = [rows.energies for rows in members if rows.energies is not None]
    metas = [rows.meta for rows in members]
    shared = {name: value for name, value in metas[0].items() if all(meta.get(name) == value for meta in metas)}
    return members[0].replace(
        probs=np.mean([rows.probs for rows in members], axis=0),
        energies=np.mean(energies, axis=0) if len(energies) == len(members) else None,
        distances=None,
        meta=shared | {"ensemble": metas},
    )


def _aligned(first: Predictions, order: dict[str, int], other: Predictions, place: int) -> Predictions:
    where = _positions(other)
    lone = next((i for i in (*order, *where) if i not in where or i not in order), None)
    if lone is not None:
        holder = "the first" if lone in order else f"number {place}"
        raise EbmcalError(
            f"The row with id {str(lone)!r} is only in {holder} of the predictions; expected the same rows."
        )
    if other.label_names != first.label_names:
        raise EbmcalError(f"Classes differ: {first.label_names} and, in number {place}, {other.label_names}.")
    out = other.rows([where[i] for i in order])
    differ = np.flatnonzero(out.labels != first.labels)
    if len(differ):
        raise EbmcalError(
            f"The row with id {out.ids[differ[0]]!r} has another label in number {place} than in the first."
        )
    return out


def _positions(predictions: Predictions) -> dict[str, int]:
    where: dict[str, int] = {}
    for position, row_id in enumerate(predictions.ids.tolist()):
        if where.setdefault(row_id, position) != position:
            raise EbmcalError(
                f"The id {row_id!r} is on rows {where[row_id]} and {position}; ids must be unique to match rows."
            )
    return where
