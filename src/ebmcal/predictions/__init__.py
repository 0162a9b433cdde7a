"""`Predictions`, the output of a classifier, and the validation of arrays: labels, logits, probabilities. No torch.

Predictions are made by the training half or read from a file that any model wrote (`files`). Every function of the
evaluation half that takes `logits=` or `probs=` validates them first, so that a bad row is an `EbmcalError` that names
it. Whether an array holds logits or probabilities is declared, never guessed. Large arrays are processed in chunks of
rows that fit the processor's cache: one pass, no temporary of the input's size.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError, RowError, error_context, plural
from ebmcal.predictions.files import FileColumns, read_columns, to_columns, to_fields, write_columns
from ebmcal.storage import PathLike

# Rounding to bfloat16 moves each probability by at most 2⁻⁸ of itself (truncating: 2⁻⁷), and so their sum.
SUM_TOLERANCE = 2.0**-7
# 120 KB of float64: in cache, and below the 128 KB from which malloc maps fresh pages for every temporary.
CHUNK_ENTRIES = 15 * 1024

_FIELDS = ("labels", "label_names", "energies", "ids", "texts", "text_pairs", "distances", "meta")


class Predictions:
    """Logits or probabilities of n rows over C classes, with labels, energies, ids and texts where known.

    Attributes: `labels` int64 [n] (−1 = unknown); `label_names` (C names); `logits` [n, C] or None; `probs` float64
    [n, C] (softmax of the logits if those were given); `energies` [n] or None (low = data-like); `ids` [n] of str
    (default "0".."n-1"); `texts`, `text_pairs`: lists of n strings or None; `distances`: name → [n] (high = far from
    the training texts) or None; `meta`: JSON-able dictionary (task, method, seed, split, model, calibrator, …). Treat
    the object as immutable; `replace` copies.

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
    ) -> None:
        self.logits: np.ndarray | None = None
        if logits is not None and probs is None:
            self.logits = as_logits(logits)
            n_rows, n_classes = self.logits.shape
        else:
            self.__dict__["probs"] = as_probs(logits=logits, probs=probs)  # takes precedence over the property
            n_rows, n_classes = self.probs.shape
        labels = np.full(n_rows, -1) if labels is None else labels
        self.labels = as_labels(labels, n_classes, n_rows, unknown_allowed=True)
        self.label_names = _checked_names(label_names, n_classes)
        self.energies = None
        if energies is not None:
            as_scores(energies, "energies", n_rows)
            self.energies = _as_floats(np.asarray(energies), "energies")
        if ids is not None:
            is_text = isinstance(ids, np.ndarray) and ids.dtype.kind == "U"
            self.__dict__["ids"] = ids if is_text else np.array([str(i) for i in ids], dtype=object)
        self.texts = None if texts is None else list(texts)
        self.text_pairs = None if text_pairs is None else list(text_pairs)
        self.distances = None
        if distances is not None:
            self.distances = {name: as_scores(v, f"distance_{name}", n_rows) for name, v in distances.items()}
        self.meta = dict(meta or {})
        for name in ("ids", "texts", "text_pairs"):
            if self.__dict__.get(name) is not None:
                _check_length(self.__dict__[name], name, n_rows)

    def __repr__(self) -> str:
        names = ", ".join(self.label_names[:5]) + (", …" if self.n_classes > 5 else "")
        return f"Predictions({plural(self.n_rows, 'row')}, {(self.labels >= 0).sum():,} labelled, classes {names})"

    def __len__(self) -> int:
        return self.n_rows

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """The ids [n] of str; by default the row numbers, made when needed, because many rows make them large."""
        return np.arange(self.n_rows).astype(f"U{len(str(self.n_rows))}")

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

    @property
    def _matrix(self) -> dict[str, np.ndarray]:
        return {"probs": self.probs} if self.logits is None else {"logits": self.logits}

    def replace(self, **changes: Any) -> "Predictions":
        """A copy with some attributes changed; new `probs` replace the logits and vice versa.

        >>> Predictions([0], ("no", "yes"), logits=[[0.0, 0.0]]).replace(ids=["a"]).ids
        array(['a'], dtype=object)
        """
        matrix = {} if "logits" in changes or "probs" in changes else self._matrix
        return Predictions(**{name: getattr(self, name) for name in _FIELDS} | matrix | changes)

    def labelled(self) -> "Predictions":
        """Only the rows with a known label; an error if there are none."""
        known = self.labels >= 0
        if not known.any():
            raise EbmcalError(
                "No row has a label (all are −1), and labels are needed here. Name their column when predicting: "
                "label_column=… (--label-column)."
            )
        return self if known.all() else self.rows(np.flatnonzero(known))

    def rows(self, index: Any) -> "Predictions":
        """The rows at these positions, in this order; a boolean mask works too."""
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        arrays = {name: getattr(self, name) for name in ("labels", "energies", "ids")} | self._matrix
        picked: dict[str, Any] = {name: values[index] for name, values in arrays.items() if values is not None}
        for name in ("texts", "text_pairs"):
            if (values := getattr(self, name)) is not None:
                picked[name] = [values[i] for i in index]
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
        labels = np.append(np.argsort(order), -1)[self.labels]  # the last entry is for −1, unknown
        matrix = {kind: values[:, order] for kind, values in self._matrix.items()}
        return self.replace(labels=labels, label_names=names, **matrix)

    def with_probs(self, probs: np.ndarray, **meta: Any) -> "Predictions":
        """The same rows with these probabilities instead of logits; `meta` entries are added."""
        return self.replace(probs=probs, meta=self.meta | meta)

    def write(self, path: PathLike) -> None:
        """Write atomically in the format of the suffix: .parquet, .csv or .jsonl.

        Parquet keeps class order, class names and `meta`; CSV and JSONL cannot store `meta`.
        """
        fields = {name: getattr(self, name) for name in _FIELDS}
        ((kind, matrix),) = self._matrix.items()
        write_columns(path, to_columns(fields, kind, matrix, Path(path).suffix.lower()))

    @classmethod
    def read(
        cls,
        path: PathLike,
        *,
        label_names: Sequence[str] | None = None,
        normalize: bool = False,
        labels_required: bool = True,
    ) -> "Predictions":
        """Read what `write` wrote or what another model wrote: see `ebmcal.predictions.files`.

        `label_names` reorders the classes, or names the classes of a file that numbers them; `normalize` divides
        rounded probabilities by the sum of their row; without `labels_required` a file may have no column `label`;
        "-" reads standard input. Error rows of `ebmcal predict` are dropped with a warning.
        """
        columns = read_columns(path)
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
        with columns.name_rows():
            fields = to_fields(columns, label_names, labels_required=labels_required)
            if normalize and "probs" in fields:
                fields["probs"] = _normalized(fields["probs"])
            found = cls(**fields)
        return found if label_names is None else found.reorder(label_names)


def align(predictions: Sequence[Predictions]) -> list[Predictions]:
    """The predictions with their rows in the order of the first, matched by id, so that rows can be paired.

    >>> a = Predictions([0, 1], ("no", "yes"), probs=[[1.0, 0.0], [0.0, 1.0]], ids=["x", "y"])
    >>> align([a, a.rows([1, 0])])[1].ids.tolist()
    ['x', 'y']
    """
    first = predictions[0]
    order, aligned = _positions(first), [first]
    for number, other in enumerate(predictions[1:], start=2):
        where = _positions(other)
        lone = next((i for i in (*order, *where) if i not in where or i not in order), None)
        if lone is not None:
            holder = "the first predictions" if lone in order else f"predictions number {number}"
            without = [i for i, p in ((1, first), (number, other)) if p.ids.tolist() == _row_numbers(len(p))]
            if without:
                holder += f" (the ids of number {without[0]} are row numbers; a column of other ids must be named `id`)"
            raise EbmcalError(f"The row with id {lone!r} is only in {holder}; expected the same rows.")
        if other.label_names != first.label_names:
            raise EbmcalError(f"Classes differ: {first.label_names} and, in number {number}, {other.label_names}.")
        rows = other.rows([where[i] for i in order])
        if len(differ := np.flatnonzero(rows.labels != first.labels)):
            name = str(rows.ids[differ[0]])
            raise EbmcalError(f"The row with id {name!r} has another label in number {number} than in the first.")
        aligned.append(rows)
    return aligned


def _row_numbers(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def _positions(predictions: Predictions) -> dict[str, int]:
    where: dict[str, int] = {}
    for position, row_id in enumerate(predictions.ids.tolist()):
        if where.setdefault(row_id, position) != position:
            raise EbmcalError(
                f"The id {row_id!r} is on rows {where[row_id]} and {position}, counting from 0; ids must be unique."
            )
    return where


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


def chunks(n_rows: int, n_classes: int) -> Iterator[slice]:
    """Slices of rows that hold about `CHUNK_ENTRIES` numbers each."""
    step = max(1, CHUNK_ENTRIES // max(1, n_classes))
    return (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def softmax(logits: Any) -> np.ndarray:
    """Probabilities of logits [n, C], stable, in float64.

    >>> softmax([[1000.0, 1000.0]])
    array([[0.5, 0.5]])
    """
    # Hand-written because scipy's softmax is several times slower for few classes and many rows (benchmarks/metrics.py)
    # and allocates several arrays of the size of the input.
    logits = as_logits(logits)
    out = np.empty(logits.shape, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):  # exp(-1e4) is 0, as it should be
        for part in chunks(*logits.shape):
            block = np.array(logits[part].T, dtype=np.float64, order="C")  # [C, rows]: reductions are fast along axis 0
            block -= block.max(axis=0)
            np.exp(block, out=block)
            block /= block.sum(axis=0)
            out[part] = block.T
    return out


def as_logits(logits: Any) -> np.ndarray:
    """Validate logits [n, C]: a matrix of finite numbers with at least one row and one column; see `_as_floats`."""
    array = _as_matrix(logits, "logits")
    with np.errstate(invalid="ignore", over="ignore"):
        for part in chunks(*array.shape):
            block = array[part].astype(np.float64, copy=False)
            # NaN and infinity spoil the sum; a sum that merely overflowed passes the closer look.
            if not np.isfinite(block.sum()):
                _raise_if_not_finite(block, "logits", part.start)
    return array


def as_probs(*, logits: Any = None, probs: Any = None) -> np.ndarray:
    """Validate exactly one of logits [n, C] and probs [n, C]; probabilities [n, C], float64.

    Rows of `probs` must sum to one within 2⁻⁷ = 0.0078, the largest error of rounding to bfloat16; they are not
    rescaled.

    >>> as_probs(logits=[[0.0, 0.0]])
    array([[0.5, 0.5]])
    """
    if (logits is None) == (probs is None):
        given = "neither" if logits is None else "both"
        raise EbmcalError(f"Pass exactly one of logits= and probs=, each of shape (n, C); got {given}.")
    return softmax(logits) if probs is None else _checked_probs(_as_matrix(probs, "probs"))


def as_labels_and_probs(labels: Any, *, logits: Any = None, probs: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """`as_probs` for functions that need a label on every row: (labels int64 [n], probs float64 [n, C])."""
    out = as_probs(logits=logits, probs=probs)
    return as_labels(labels, out.shape[1], len(out)), out


def as_labels(labels: Any, n_classes: int, n_rows: int, *, unknown_allowed: bool = False) -> np.ndarray:
    """Validate integer labels [n] in 0..C-1, and −1 (unknown) where that is allowed; int64."""
    array = _as_array(labels, "labels")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        got = f"{array.dtype} of shape {array.shape}"
        raise EbmcalError(f"labels: expected integers of shape (n,), got {got}. Map class names to 0..C-1.")
    _check_length(array, "labels", n_rows)
    lowest = -1 if unknown_allowed else 0
    array = array.astype(np.int64, copy=False)
    if not unknown_allowed and array.view(np.uint64).max() < n_classes:  # as unsigned, negatives are huge: one pass
        return array
    if array.min() < lowest or array.max() >= n_classes:
        row = int(np.flatnonzero((array < lowest) | (array >= n_classes))[0])
        advice = "Leave out rows without a label. " if array[row] < 0 else ""
        problem = f" is {array[row]}; with {n_classes} columns a label must be {lowest}..{n_classes - 1}. {advice}"
        raise RowError(
            "labels", f"{problem}Check that the columns are all the classes, in the order of the labels.", row
        )
    return array


def as_scores(scores: Any, name: str, n_rows: int | None = None) -> np.ndarray:
    """Validate one finite number per row [n], such as energies or confidences; float64."""
    array = _as_array(scores, name)
    if array.ndim != 1 or not len(array):
        got = f"{array.dtype} of shape {array.shape}"
        raise EbmcalError(f"{name}: expected numbers of shape (n,) with n ≥ 1, got {got}.")
    if n_rows is not None:
        _check_length(array, name, n_rows)
    array = _as_floats(array, name).astype(np.float64, copy=False)
    _raise_if_not_finite(array, name)
    return array


def _normalized(probs: np.ndarray) -> np.ndarray:
    """Rounded probabilities [n, C] divided by the sums of their rows; an error if rounding cannot explain the sums."""
    sums = np.asarray(probs, dtype=np.float64).sum(axis=1)
    # Rounded to two decimals, each class is off by 0.005 at most; with very many classes half of a row may be lost.
    largest = min(0.5, 0.01 * probs.shape[1])
    if len(bad := np.flatnonzero(~(np.abs(sums - 1) <= largest))):
        problem = f" sums to {sums[bad[0]]:.6g}; rounding moves the sum of {probs.shape[1]} classes by at most"
        advice = "Is a class missing, or are these logits (columns logit_<class>)?"
        raise RowError("probs", f"{problem} {largest:.2g}. {advice}", bad[0])
    return probs / sums[:, None]


def _checked_names(names: Sequence[str], n_classes: int) -> tuple[str, ...]:
    names = tuple(str(name) for name in names)
    if len(names) != n_classes:
        raise EbmcalError(f"Expected {plural(n_classes, 'label name')}, got {len(names)}: {', '.join(names[:20])}.")
    if len(set(names)) != len(names) or "" in names:
        raise EbmcalError(f"Label names must be unique and not empty, got {', '.join(map(repr, names[:20]))}.")
    return names


def _check_length(values: Any, name: str, n_rows: int) -> None:
    if len(values) != n_rows:
        n = plural(len(values), "row")
        raise EbmcalError(f"{name} has {n}, the predictions have {n_rows:,}. Expected the same rows.")


def _as_matrix(values: Any, name: str) -> np.ndarray:
    array = _as_array(values, name)
    if array.ndim != 2:
        hint = " For P(class 1) of a binary classifier pass np.stack([1 - p, p], axis=1)." if array.ndim == 1 else ""
        got = f"{array.dtype} of shape {array.shape}"
        raise EbmcalError(f"{name}: expected shape (n_rows, n_classes), got {got}.{hint}")
    if 0 in array.shape:
        raise EbmcalError(f"{name}: expected at least one row and one class, got shape {array.shape}.")
    return _as_floats(array, name)


def _as_array(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values)
    # Tensors that numpy cannot hold (bfloat16, on a device, with gradients) and ragged lists.
    except (TypeError, ValueError, RuntimeError) as error:
        raise EbmcalError(f"{name}: not an array ({error}). For a tensor pass x.detach().float().cpu().") from error


def _as_floats(array: np.ndarray, name: str) -> np.ndarray:
    """float32 and float64 as they are, float16 and bfloat16 as float32 (exact), integers as float64."""
    if array.dtype == np.float32 or array.dtype.kind in "iu":
        return array if array.dtype == np.float32 else array.astype(np.float64)
    # bfloat16 and its kin (ml_dtypes) are of kind "V"; raw bytes are too and do not convert.
    if array.dtype.kind == "f" or (array.dtype.kind == "V" and "float" in array.dtype.name):
        return array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64, copy=False)
    raise EbmcalError(f"{name}: expected numbers, got {array.dtype} of shape {array.shape}.")


def _checked_probs(array: np.ndarray) -> np.ndarray:
    out = array.astype(np.float64, copy=False)
    ones = np.ones(out.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        for part in chunks(len(out), -(-out.shape[1] // 4)):  # the only temporary is one number per row
            block = out[part]
            sums = block @ ones  # NaN and infinity anywhere in a row end up here
            if not (block.min() >= 0.0 and sums.max() <= 1.0 + SUM_TOLERANCE and sums.min() >= 1.0 - SUM_TOLERANCE):
                _raise_bad_probs(block, part.start)
    return out


def _raise_bad_probs(block: np.ndarray, start: int) -> None:
    _raise_if_not_finite(block, "probs", start)
    outside = np.argwhere((block < 0.0) | (block > 1.0 + SUM_TOLERANCE))
    if len(outside):
        row, column = outside[0]
        advice = "Divide percentages by 100; pass logits as logits= (in a file: columns logit_<class>)."
        problem = f" is {block[row, column]:.6g}, which is not a probability. {advice}"
        raise RowError("probs", problem, start + row, column)
    sums = block.sum(axis=1)
    row = int(np.argmax(np.abs(sums - 1.0)))
    advice = "Include a column for every class. If the probabilities were rounded, pass normalize=True (--normalize)."
    problem = f" sums to {sums[row]:.6g}; every row must sum to one within {SUM_TOLERANCE:.4f}. {advice}"
    raise RowError("probs", problem, start + row)


def _raise_if_not_finite(block: np.ndarray, name: str, start: int = 0) -> None:
    bad = np.argwhere(~np.isfinite(block))
    if len(bad):
        problem = f" is {block[tuple(bad[0])]}; every number must be finite. Fix or remove that row."
        raise RowError(name, problem, start + bad[0][0], *bad[0][1:])
