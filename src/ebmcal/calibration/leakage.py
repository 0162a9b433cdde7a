"""Leakage checks: rows must not be those a calibrator was fitted on or a model was trained on; duplicates count once.

`check_held_out` validates predictions before anything is fitted on them for a model: by their metadata and the model's
`ebmcal.json`, and by content, from the run that a model belongs to or the sketch in `ebmcal.json` ("training_rows").

A sketch (`FittingRows`) holds 32-bit hashes of a sample of the rows, in several representations that survive other ids,
repeated prediction and rounding. If both sides have texts, these decide; otherwise top probabilities and logit gaps
rounded to several digits, and runs of consecutive rows. Rounded numbers of different rows coincide by chance, and texts
repeat, so only matches beyond chance count. Chance is estimated from the sample itself: the probability that a new row
equals one of the N₁ rows that are unique in a sample of m rows, with N₂ pairs of equal rows, is about 2 N₂ / m
(Good 1953).
"""

import base64
import contextlib
import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions import Predictions, softmax
from ebmcal.run_dir import predictions_of_model, read_card, weights_fingerprint
from ebmcal.storage import PathLike

#: What identifies a trained model, in its card and in the metadata of predictions.
IDENTITY = ("task", "method", "seed")
#: With a larger share of training rows, predictions are refused; fewer are left out.
MAX_TRAINING_SHARE = 0.1
#: The entry of `ebmcal.json` with `FittingRows.of_texts(...).to_json()` of the training texts.
TRAINING_ROWS = "training_rows"
#: In the metadata of held-out predictions: how many rows with training texts were left out.
N_TRAINING = "n_training_rows"

N_SAMPLED = 512  # fitting rows in a sketch
N_CHECKED = 20_000  # rows that are compared with a sketch
RUN = 4  # consecutive rows in a run
MIN_SHARE = 0.05  # a smaller share of known rows is ignored: it hardly changes a result
DEVIATIONS = 4.0  # beyond chance
MANY_COPIES = 10  # with more equal rows each, values come from bins, not from copies of texts
# Decimals to which top probabilities and logit gaps are rounded.
_PROB_DECIMALS, _GAP_DECIMALS = (4, 3, 2), (3, 2, 1)


# A smaller probability read from a file is taken to be rounded to zero; its logarithm has to stay finite.
PROB_FLOOR = 1e-12


class LeakageWarning(UserWarning):
    """Rows are used twice: to fit or train something, and to calibrate or evaluate it."""


def logits_of(probs: np.ndarray) -> np.ndarray:
    """Log-probabilities `[n, C]`, which serve as logits: softmax returns the probabilities.

    >>> logits_of(np.array([[1.0, 0.0]])).round(2).tolist()
    [[0.0, -27.63]]
    """
    return np.log(np.maximum(np.asarray(probs, dtype=np.float64), PROB_FLOOR))


def logits_in(predictions: Predictions) -> np.ndarray:
    """The logits `[n, C]` of predictions, or their log-probabilities if they have only probabilities."""
    return logits_of(predictions.probs) if predictions.logits is None else predictions.logits


def check_held_out(
    rows: Predictions, model_dir: PathLike | None, *, where: object = "These predictions", allow_mismatch: bool = False
) -> Predictions:
    """The labelled rows that may be used to calibrate a model; an error for training rows and for another model's.

    A few rows with training texts are left out with a warning. Without a model only the metadata are checked.
    `allow_mismatch` only checks that there are two classes.
    """
    rows = rows.labelled()
    check_two_classes(rows, where)
    if allow_mismatch:
        return rows
    hint = "Pass the model's predictions for rows that are not in its training file."
    if rows.meta.get("split") == "train":
        raise EbmcalError(f"{where}: predictions for training rows, on which the model is too often right. {hint}")
    if model_dir is None:
        return rows
    folder = Path(model_dir)
    if differences := model_differences(rows.meta, folder):
        raise EbmcalError(f"{where}: predictions of another model ({differences}). {hint}")
    if rows.logits is None and not rows.meta.get("weights") and read_card(folder).get("calibrator"):
        raise EbmcalError(
            f"{where}: probabilities that may be calibrated already, because the model has a calibrator; it would be "
            "applied twice. Pass the output of `ebmcal predict --raw` (columns logit_<class>), or a Parquet file of "
            "ebmcal, which names the calibrator."
        )
    if rows.meta.get("split") == "out_of_fold":  # training rows, predicted by models that were not trained on them
        return rows
    is_training, share = _find_training_rows(rows, folder)
    if share >= MAX_TRAINING_SHARE:
        raise EbmcalError(
            f"{where}: {share:.0%} of the {rows.n_rows:,} rows are training rows of the model, expected less than "
            f"{MAX_TRAINING_SHARE:.0%}. Pass rows that are not in its training file. Without such rows, train a new "
            "run with --calibration holdout and pass its calibration.parquet with --predictions."
        )
    if is_training.any():
        n_left = f"{is_training.sum():,} of {rows.n_rows:,}"
        message = f"{where}: {n_left} rows have training texts of the model; they are left out."
        warnings.warn(message, LeakageWarning, stacklevel=3)
        rows = rows.rows(~is_training).replace(meta=rows.meta | {N_TRAINING: int(is_training.sum())})
        check_two_classes(rows, where)
    return rows


def warn_of_training_rows(rows: Predictions, name: str) -> None:
    """Warn if predictions that name their model are for rows that it was trained on."""
    folder, share = Path(str(rows.meta.get("model") or "none")), 0.0
    if "split" in rows.meta or not (folder / "config.json").is_file():
        return  # predictions of a run, or of a model that is not there
    with contextlib.suppress(EbmcalError):  # the model may be damaged by now, which is no matter for its predictions
        if not model_differences(rows.meta, folder):
            _, share = _find_training_rows(rows, folder)
    if share >= MAX_TRAINING_SHARE:
        warnings.warn(
            f"{name}: about {share:.0%} of the {rows.n_rows:,} rows are training rows of the model: on new texts it is "
            "less accurate and more overconfident. Evaluate it on rows that are not in its training file.",
            LeakageWarning,
            stacklevel=3,
        )


def check_two_classes(rows: Predictions, where: object) -> None:
    """Raise if all labelled rows have the same label."""
    with error_context(where):
        seen = np.unique(rows.labelled().labels)
    if len(seen) < 2:
        raise EbmcalError(
            f"{where}: all labels are {rows.label_names[seen[0]]!r}, so a calibrator would predict only that class. "
            "Pass rows of at least two classes."
        )


def model_differences(meta: dict[str, Any], model_dir: Path) -> str:
    """How the model that made predictions, according to their metadata, differs from this one; empty if it does not."""
    if meta.get("ensemble"):
        return "the average of several models or of passes with dropout"
    card = read_card(model_dir)
    given = (read_card(str(meta["model"])) if meta.get("model") else {}) | meta
    found = [
        f"{name} {given[name]}, not {card[name]}"
        for name in IDENTITY
        if name in given and name in card and given[name] != card[name]
    ]
    if meta.get("weights") and meta["weights"] != weights_fingerprint(model_dir):
        found.append("other weights, or a temperature was folded in since")
    return ", ".join(found)


def _find_training_rows(rows: Predictions, model_dir: Path) -> tuple[np.ndarray, float]:
    """Which rows are training rows of a model [n], and their share; only the share if no single row is certain."""
    is_training = np.zeros(rows.n_rows, dtype=bool)
    path = predictions_of_model(model_dir, "train")
    if path is not None:
        train = Predictions.read(path)
        if train.texts is None or rows.texts is None:
            return is_training, FittingRows.of(train).share_among(rows)
        known = set(text_keys(train.texts, train.text_pairs))
        is_training = np.array([key in known for key in text_keys(rows.texts, rows.text_pairs)])
        return is_training, float(is_training.mean())
    sketch = read_card(model_dir).get(TRAINING_ROWS)
    try:
        return is_training, 0.0 if sketch is None else FittingRows.from_json(sketch).share_among(rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EbmcalError(
            f"{TRAINING_ROWS!r} in ebmcal.json of {model_dir} is damaged ({error}). Remove it."
        ) from error


def text_key(text: str, text_pair: str = "") -> str:
    """A text or pair without differences in spaces and letter case."""
    return "\0".join(" ".join(part.split()).casefold() for part in (text, text_pair))


def text_keys(texts: Sequence[str], text_pairs: Sequence[str] | None) -> list[str]:
    """The key of each text or pair."""
    return list(map(text_key, texts, text_pairs or [""] * len(texts)))


def distinct_rows(rows: Predictions) -> np.ndarray:
    """A group number for each row `[n]`, 0 first; exact duplicates share one.

    Duplicates have the same text and label; without texts the same logits (or probabilities) and label, unless these
    are so coarse (rounded, half precision) that different texts share them: then also the same id.

    >>> p = Predictions([0, 1, 0], ("no", "yes"), probs=[[0.5, 0.5]] * 3, texts=["a", "b", "a"])
    >>> distinct_rows(p).tolist()
    [0, 1, 0]
    """
    labels, none = rows.labels.tolist(), [""] * rows.n_rows
    if rows.texts is not None:
        keys: Any = zip(rows.texts, rows.text_pairs or none, labels, strict=True)
    else:
        values = np.ascontiguousarray(rows.probs if rows.logits is None else rows.logits, dtype=np.float32)
        keys = zip(map(bytes, values), labels, rows.ids.tolist() if _is_coarse(rows) else none, strict=True)
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _is_coarse(rows: Predictions) -> bool:
    """Whether different texts may well share a row: rounded values, half precision, shares of votes, bins."""
    values = (rows.probs if rows.logits is None else rows.logits)[:2000]
    with np.errstate(over="ignore"):
        is_half = values.astype(np.float16) == values
    is_half |= (values.astype(np.float32).view(np.uint32) & 0xFFFF) == 0  # bfloat16
    is_coarse = is_half.all(axis=1) | np.isclose(np.round(values, 4), values, rtol=0, atol=1e-7).all(axis=1)
    if rows.logits is None:
        # Shares of k votes. Rounded to d decimals, a row sums to k / 10^d with k near 10^d; divided by that sum, it is
        # whole numbers over k, too.
        some = values[:200, :2]
        for k in (*range(2, 1004), *range(9997, 10_004)):
            if np.isclose(np.rint(k * some), k * some, rtol=0, atol=1e-6).all(axis=1).mean() > 0.5:
                return True
    n_different = len(np.unique(values[:, : min(2, values.shape[1])], axis=0))
    return bool(is_coarse.mean() > 0.5) or n_different < len(values) / MANY_COPIES


class Sketch(NamedTuple):
    """Hashes of the sampled rows that are unique in the sample, and what is needed to estimate chance matches."""

    hashes: np.ndarray  # [N₁] uint32, sorted
    n_sampled: int
    n_pairs: int  # values that occur exactly twice in the sample

    @classmethod
    def of(cls, sampled: np.ndarray) -> "Sketch":
        values, counts = np.unique(sampled, return_counts=True)
        return cls(values[counts == 1], len(sampled), int(np.count_nonzero(counts == 2)))

    def share_found(self, hashes: np.ndarray) -> float:
        """The share of the sampled rows that is among other rows, beyond chance; 0 if that is not significant."""
        n_unique = len(self.hashes)
        if not n_unique:
            return 0.0
        found = np.count_nonzero(np.isin(self.hashes, hashes))
        per_pair = 2.0 * len(hashes) / (self.n_sampled * n_unique)
        chance = 1.0 - np.exp(-(self.n_pairs + 0.5) * per_pair)
        expected, slope = n_unique * chance, n_unique * (1.0 - chance) * per_pair
        deviation = np.sqrt(expected * (1.0 - chance) + slope**2 * (self.n_pairs + 1) + 1.0)
        if found <= expected + DEVIATIONS * deviation:
            return 0.0
        return float((found - expected) / (n_unique - expected))


@dataclass(frozen=True)
class FittingRows:
    """What is stored about fitting or training rows: their number and sketches by representation.

    >>> seen = FittingRows.of_texts([f"text {i}" for i in range(100)])
    >>> p = Predictions([0] * 100, ("a", "b"), probs=[[0.5, 0.5]] * 100, texts=[f"Text  {i}" for i in range(50, 150)])
    >>> round(seen.share_among(p), 1)
    0.5
    """

    n_rows: int
    sketches: dict[str, Sketch]

    @classmethod
    def of(cls, rows: Predictions) -> "FittingRows":
        """The sketch of labelled predictions."""
        arrays = cls.of_arrays(logits_in(rows), rows.labels)
        texts = {} if rows.texts is None else cls.of_texts(rows.texts, rows.text_pairs).sketches
        return cls(rows.n_rows, arrays.sketches | texts)

    @classmethod
    def of_arrays(cls, logits: np.ndarray, labels: np.ndarray) -> "FittingRows":
        """The sketch of logits `[n, C]` and labels `[n]`."""
        hashes = _row_hashes(logits, labels, N_SAMPLED)
        return cls(len(labels), {name: Sketch.of(sampled) for name, sampled in hashes.items()})

    @classmethod
    def of_texts(cls, texts: Sequence[str], text_pairs: Sequence[str] | None = None) -> "FittingRows":
        """The sketch of texts or pairs of texts."""
        return cls(len(texts), {"text": Sketch.of(_text_hashes(texts, text_pairs, N_SAMPLED))})

    def share_among(self, rows: Predictions) -> float:
        """The share of labelled rows that are fitting rows, estimated; 0 if there are none beyond chance."""
        if "text" in self.sketches and rows.texts is not None:
            hashes = {"text": _text_hashes(rows.texts, rows.text_pairs, N_CHECKED)}
        else:
            hashes = _row_hashes(logits_in(rows), rows.labels, N_CHECKED)
        shares = [
            self.sketches[name].share_found(found) * self.n_rows / len(found)
            for name, found in hashes.items()
            if name in self.sketches
        ]
        share = min(1.0, max(shares, default=0.0))
        return round(share, 3) if share >= MIN_SHARE else 0.0

    def to_json(self) -> dict[str, Any]:
        sketches = {}
        for name, (hashes, n_sampled, n_pairs) in self.sketches.items():
            text = base64.b64encode(hashes.astype("<u4").tobytes()).decode("ascii")
            sketches[name] = {"hashes": text, "n_sampled": n_sampled, "n_pairs": n_pairs}
        return {"n_rows": self.n_rows, "sketches": sketches}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "FittingRows":
        sketches = {}
        for name, part in value["sketches"].items():
            hashes = np.frombuffer(base64.b64decode(part["hashes"]), dtype="<u4").astype(np.uint32)
            sketches[str(name)] = Sketch(hashes, int(part["n_sampled"]), int(part["n_pairs"]))
        return cls(int(value["n_rows"]), sketches)


def _sample(n_rows: int, most: int) -> np.ndarray:
    """Positions of a fixed random sample of at most this many rows."""
    rng = np.random.default_rng(n_rows)
    return np.arange(n_rows) if n_rows <= most else rng.choice(n_rows, most, replace=False, shuffle=False)


def _text_hashes(texts: Sequence[str], pairs: Sequence[str] | None, most: int) -> np.ndarray:
    index = _sample(len(texts), most)
    keys = text_keys([texts[i] for i in index], [pairs[i] for i in index] if pairs else None)
    digests = b"".join(hashlib.blake2b(key.encode(), digest_size=4).digest() for key in keys)
    return np.frombuffer(digests, dtype="<u4").astype(np.uint32)


def _row_hashes(logits: np.ndarray, labels: np.ndarray, most: int) -> dict[str, np.ndarray]:
    """Hashes of a sample of rows, by representation."""
    index = _sample(len(labels), most)
    gaps, probs, best = _top_values(logits[index])
    hashes = {f"probs {d}": _hash_columns(best, *_rounded(probs, d)) for d in _PROB_DECIMALS}
    hashes |= {f"gaps {d}": _hash_columns(best, *_rounded(gaps, d)) for d in _GAP_DECIMALS}
    starts = index[index <= len(labels) - RUN]
    if len(starts):
        rows = (starts[:, None] + np.arange(RUN)).ravel()
        _, probs, best = _top_values(logits[rows])
        single = _hash_columns(best, labels[rows], *_rounded(probs, 2)).reshape(-1, RUN)
        hashes["run"] = _hash_columns(*single.T)
    return hashes


def _top_values(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each row: gaps between the largest logit and the next two, the probabilities of the three, the best class."""
    n_top = min(3, logits.shape[1])
    z = np.asarray(logits, dtype=np.float64)
    top, probs = (-np.sort(np.partition(-x, n_top - 1, axis=1)[:, :n_top], axis=1) for x in (z, softmax(z)))
    with np.errstate(over="ignore"):
        gaps = np.minimum(top[:, :1] - top[:, 1:], 1e6)
    return gaps, probs, z.argmax(axis=1)


def _rounded(values: np.ndarray, decimals: int) -> np.ndarray:
    """Columns `[k, n]` of values `[n, k]` as whole numbers of the last decimal."""
    return np.rint(values.T * 10.0**decimals).astype(np.int64)


def _hash_columns(*columns: np.ndarray) -> np.ndarray:
    """A 32-bit hash of each row of integer columns."""
    hashes = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in columns:
        hashes = (hashes ^ column.astype(np.int64).view(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(31)
    return (hashes >> np.uint64(32)).astype(np.uint32)
