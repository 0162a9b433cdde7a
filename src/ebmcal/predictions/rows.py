"""`Predictions`: what a classifier said about rows of text, the one type where the two halves meet.

Made by the training half or read from a file that any model wrote; metrics, calibrators, plots and the report take it.
How files spell it is in `columns` (meaning) and `files` (bytes).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, errors_of
from ebmcal.predictions.arrays import as_labels, as_logits, as_probs, as_scores, softmax
from ebmcal.predictions.columns import to_columns, to_fields, without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns, write_columns


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits or probabilities of n rows over C classes, with labels, energies, ids and texts where known.

    float32 and float64 are kept as given; float16 and bfloat16 become float32 (exactly), integers float64.

    >>> p = Predictions(labels=[1, -1], label_names=("no", "yes"), probs=[[0.25, 0.75], [0.5, 0.5]])
    >>> p.n_rows, p.confidences(), p.labelled().ids
    (2, array([0.75, 0.5 ]), array(['0'], dtype='<U1'))
    >>> p.labels_, Predictions([0], ("no", "yes"), logits=[[0.0, 0.0]]).probs
    (array(['yes', 'no'], dtype='<U3'), array([[0.5, 0.5]]))
    """

    labels: np.ndarray  # [n] int64, -1 = label unknown
    label_names: tuple[str, ...]  # C names
    logits: np.ndarray | None = None  # [n, C]; given is one of logits, probs
    # [n, C]; of logits: softmax. A factory, so that the class has no `probs` and `__getattr__` is asked. Those that are
    # not given are None until `__post_init__`, hence the ignored types here and below.
    probs: np.ndarray = field(default_factory=lambda: None)  # type: ignore[arg-type, return-value]
    energies: np.ndarray | None = None  # [n], low = looks like data
    ids: np.ndarray = field(default=None)  # type: ignore[arg-type]  # [n] of str; default "0".."n-1"
    texts: list[str] | None = None
    text_pairs: list[str] | None = None
    distances: dict[str, np.ndarray] | None = None  # name → [n], high = far from the training texts
    meta: dict[str, Any] = field(default_factory=dict)  # task, method, seed, split, model, calibrator ... JSON-able
    human: np.ndarray | None = None  # [n, C], shares of the human labels of a row, where there are several

    def __post_init__(self) -> None:
        n_rows, n_classes = self._check_matrix()
        self._set("labels", as_labels(self.labels, n_classes, n_rows, unknown_allowed=True))
        self._set("label_names", _checked_names(self.label_names, n_classes))
        if self.energies is not None:
            as_scores(self.energies, "energies", n_rows)
            self._set("energies", _floats(np.asarray(self.energies)))
        if self.human is not None:
            self._set("human", _shares(self.human, n_rows, n_classes))
        if self.distances is not None:
            self._set("distances", {k: as_scores(v, f"distance_{k}", n_rows) for k, v in self.distances.items()})
        self._set("ids", _checked_ids(self.ids, n_rows))
        if not isinstance(self.meta, dict):
            raise EbmcalError(f"meta must be a dictionary; {type(self.meta).__name__} came.")
        for name in ("ids", "texts", "text_pairs"):
            values = getattr(self, name)
            if values is not None and len(values) != n_rows:
                raise EbmcalError(f"{name} has {len(values)} rows and the predictions have {n_rows}.")

    def _check_matrix(self) -> tuple[int, int]:
        if self.logits is None or not self._are_probs_derived():
            as_probs(logits=self.logits, probs=self.probs)
            self._set("probs", _floats(np.asarray(self.probs)))
            return self.probs.shape
        as_logits(self.logits)
        self._set("logits", _floats(np.asarray(self.logits)))
        del self.__dict__["probs"]  # `__getattr__` makes them when they are asked for
        return self.logits.shape

    def _are_probs_derived(self) -> bool:
        """Whether probs are None, or those of these logits: `dataclasses.replace` hands both on."""
        return self.probs is None or np.array_equal(self.probs, softmax(self.logits))

    def __getattr__(self, name: str) -> Any:
        if name != "probs" or self.__dict__.get("logits") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._set("probs", softmax(self.logits))
        return self.probs

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the class is frozen; only construction comes here

    @property
    def n_rows(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        return len(self.label_names)

    @property
    def labels_(self) -> np.ndarray:
        """The name of the predicted class of each row [n], of str."""
        return np.array(self.label_names)[self.predicted()]

    def probabilities(self) -> np.ndarray:
        """P(y|x) [n, C], float64."""
        return self.probs.astype(np.float64, copy=False)

    def confidences(self) -> np.ndarray:
        """The largest probability of each row [n]."""
        return self.probabilities().max(axis=1)

    def predicted(self) -> np.ndarray:
        """The class of largest probability of each row [n]; the first one of a tie."""
        return (self.logits if self.logits is not None else self.probs).argmax(axis=1)

    def require_energies(self) -> np.ndarray:
        """The energies [n]; an error where there are none."""
        if self.energies is None:
            raise EbmcalError("These predictions have no energies. Take a model of ebmcal, or give the column energy.")
        return self.energies

    def entropies(self) -> np.ndarray:
        """Entropy of P(·|x) in nats [n]."""
        probs = self.probabilities()
        return -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(axis=1)

    def labelled(self) -> "Predictions":
        """Only the rows whose label is known; an error if there is none."""
        known = self.labels >= 0
        if not known.any():
            raise EbmcalError("No row has a label (all are −1), so nothing can be judged against labels.")
        return self if known.all() else self.rows(np.flatnonzero(known))

    def rows(self, index: np.ndarray) -> "Predictions":
        """The rows at these positions, in this order."""
        picked: dict[str, Any] = {}
        for name in ("labels", "logits", "probs", "energies", "ids", "texts", "text_pairs", "human"):
            values = None if name == "probs" and self.logits is not None else getattr(self, name)
            picked[name] = [values[i] for i in index] if isinstance(values, list) else values
            if isinstance(values, np.ndarray):
                picked[name] = values[index]
        if self.distances is not None:
            picked["distances"] = {name: values[index] for name, values in self.distances.items()}
        return dataclasses.replace(self, **picked)

    def in_order(self, label_names: Sequence[str]) -> "Predictions":
        """The same rows with their classes in another order.

        >>> p = Predictions([1], ("no", "yes"), probs=[[0.25, 0.75]]).in_order(["yes", "no"])
        >>> p.labels, p.probs
        (array([0]), array([[0.75, 0.25]]))
        """
        names = tuple(label_names)
        if names == self.label_names:
            return self
        order = [self.label_names.index(name) for name in names]
        kind = "probs" if self.logits is None else "logits"
        matrices = {"logits": None, "probs": None, kind: getattr(self, kind)[:, order]}
        labels = np.append(np.argsort(order), -1)[self.labels]  # the last place is for -1, unknown
        human = None if self.human is None else self.human[:, order]
        return dataclasses.replace(self, labels=labels, label_names=names, human=human, **matrices)

    def with_probs(self, probs: np.ndarray, **meta: Any) -> "Predictions":
        """The same rows with these probabilities instead of logits; `meta` is added to what is there."""
        return dataclasses.replace(self, logits=None, probs=probs, meta=self.meta | meta)

    def write(self, path: str | PathLike[str]) -> None:
        """Write by suffix, .parquet, .csv, .jsonl or .npz, whole or not at all.

        Parquet and NPZ keep the order of the classes, their names and `meta`; CSV and JSONL have no place for `meta`.
        """
        write_columns(path, to_columns(vars(self), Path(path).suffix.lower()))

    @classmethod
    def read(
        cls, path: str | PathLike[str], *, label_names: Sequence[str] | None = None, normalize: bool = False
    ) -> "Predictions":
        """Read what `write` wrote or what somebody else's model wrote: see `ebmcal.predictions.columns`.

        `label_names` puts the classes in that order, or names the classes of a file that numbers them; `normalize`
        divides probabilities that were rounded by the sum of their row; "-" is what is piped in. Error rows of
        `ebmcal predict` are left out, with a warning.
        """
        columns = without_error_rows(read_columns(path), path)
        with errors_of(path):
            return cls.of(columns, label_names, normalize=normalize)

    @classmethod
    def of(
        cls, columns: FileColumns, label_names: Sequence[str] | None = None, *, normalize: bool = False
    ) -> "Predictions":
        """Predictions in the columns of a file; the options are those of `read`."""
        fields = to_fields(columns, label_names)
        if normalize and fields.get("probs") is not None:
            fields["probs"] = normalized(fields["probs"])
        return cls(**fields)


def align(predictions: Sequence[Predictions]) -> list[Predictions]:
    """The predictions with their rows in the order of the first, matched by id, so that rows can be paired.

    >>> a = Predictions([0, 1], ("no", "yes"), probs=[[1.0, 0.0], [0.0, 1.0]], ids=["x", "y"])
    >>> align([a, a.rows([1, 0])])[1].ids.tolist()
    ['x', 'y']
    """
    first = predictions[0]
    order = _positions(first)
    return [first] + [_like(first, order, other, place) for place, other in enumerate(predictions[1:], start=2)]


def normalized(probs: np.ndarray) -> np.ndarray:
    """Probabilities [n, C] that were rounded, divided by the sums of their rows; an error where that is not it.

    >>> normalized(np.array([[0.33, 0.33, 0.33]])).round(3)
    array([[0.333, 0.333, 0.333]])
    """
    sums = np.asarray(probs, dtype=np.float64).sum(axis=1)
    # Rounded to two decimals, each class is off by 0.005 at most; of very many classes half of a row may be lost.
    most = min(0.5, 0.01 * probs.shape[1])
    far = np.flatnonzero(~(np.abs(sums - 1) <= most))
    if len(far):
        raise EbmcalError(
            f"probs[{far[0]}] sums to {sums[far[0]]:.6g}; rounding moves the sum of {probs.shape[1]} classes by "
            f"{most:.2g} at most. Is a class missing, or are these logits (logit_<class>)?"
        )
    return probs / sums[:, None]


def _like(first: Predictions, order: dict[str, int], other: Predictions, place: int) -> Predictions:
    where = _positions(other)
    lone = next((i for i in (*order, *where) if i not in where or i not in order), None)
    if lone is not None:
        holder = "the first" if lone in order else f"number {place}"
        raise EbmcalError(
            f"The row with id {str(lone)!r} is only in {holder} of the predictions; they must be of the same rows."
        )
    if other.label_names != first.label_names:
        raise EbmcalError(f"Classes differ: {first.label_names} and, in number {place}, {other.label_names}.")
    out = other.rows(np.array([where[i] for i in order]))
    differ = np.flatnonzero(out.labels != first.labels)
    if len(differ):
        raise EbmcalError(
            f"The row with id {out.ids[differ[0]]!r} has another label in number {place} than in the first."
        )
    return out


def _positions(predictions: Predictions) -> dict[str, int]:
    where: dict[str, int] = {}
    for position, row_id in enumerate(predictions.ids):
        if where.setdefault(row_id, position) != position:
            raise EbmcalError(
                f"The id {row_id!r} is on rows {where[row_id]} and {position}; to compare, ids must be unique."
            )
    return where


def _shares(counts: Any, n_rows: int, n_classes: int) -> np.ndarray:
    """Counts or shares of human labels as shares, rows summing to one."""
    found = np.asarray(counts, dtype=np.float64)
    if found.shape != (n_rows, n_classes):
        raise EbmcalError(f"human must be [n, C] = {[n_rows, n_classes]}; {list(found.shape)} came.")
    bad = np.flatnonzero(~(np.isfinite(found).all(axis=1) & (found >= 0).all(axis=1) & (found.sum(axis=1) > 0)))
    if len(bad):
        raise EbmcalError(
            f"human[{bad[0]}] is {found[bad[0]].tolist()}: every row needs a human label, and counts are 0 or more."
        )
    return found / found.sum(axis=1, keepdims=True)


def _floats(array: np.ndarray) -> np.ndarray:
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
        raise EbmcalError(f"{len(names)} label names came for {n_classes} classes: {', '.join(names)}.")
    if len(set(names)) != len(names) or "" in names:
        raise EbmcalError(f"Label names must be different and not empty; {list(names)} came.")
    return names
