"""Sketches of fitting or training rows, small enough to store, that recognise these rows by content.

A sketch holds 32-bit hashes of a sample of the rows, in several representations that survive other ids, repeated
prediction and rounding. If both sides have texts, these decide; otherwise top
probabilities and logit gaps rounded to several digits, and runs of consecutive rows. Rounded numbers of different rows
coincide by chance, and texts repeat, so only matches beyond chance count. Chance is estimated from the sample itself:
the probability that a new row equals one of the N₁ rows that are unique in a sample of m rows, with N₂ pairs of equal
rows, is about 2 N₂ / m (Good 1953).
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.calibration.layout import logits_in
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import softmax

N_SAMPLED = 512  # fitting rows in a sketch
N_CHECKED = 20_000  # rows that are compared with a sketch
RUN = 4  # consecutive rows in a run
# A smaller share of known rows is ignored: it hardly changes a result.
MIN_SHARE = 0.05
DEVIATIONS = 4.0
# Decimals to which top probabilities and logit gaps are rounded.
_PROB_DECIMALS, _GAP_DECIMALS = (4, 3, 2), (3, 2, 1)


@dataclass(frozen=True)
class Sketch:
    """Hashes of the sampled rows that are unique in the sample, and what is needed to estimate chance matches."""

    hashes: np.ndarray  # [N₁] uint32, sorted
    n_sampled: int
    n_pairs: int  # values that occur exactly twice in the sample

    @classmethod
    def of(cls, hashes: np.ndarray) -> "Sketch":
        values, counts = np.unique(hashes, return_counts=True)
        return cls(values[counts == 1], len(hashes), int(np.count_nonzero(counts == 2)))

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

    def to_json(self) -> dict[str, Any]:
        text = base64.b64encode(self.hashes.astype("<u4").tobytes()).decode("ascii")
        return {"hashes": text, "n_sampled": self.n_sampled, "n_pairs": self.n_pairs}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Sketch":
        hashes = np.frombuffer(base64.b64decode(value["hashes"]), dtype="<u4").astype(np.uint32)
        return cls(hashes, int(value["n_sampled"]), int(value["n_pairs"]))


@dataclass(frozen=True)
class FittingRows:
    """What is stored about fitting or training rows: their number and sketches by representation."""

    n_rows: int
    sketches: dict[str, Sketch]

    @classmethod
    def of(cls, rows: Predictions) -> "FittingRows":
        """The sketch of labelled predictions."""
        arrays = cls.of_arrays(logits_in(rows), rows.labels)
        return cls(arrays.n_rows, arrays.sketches | cls.of_texts(rows.texts, rows.text_pairs).sketches)

    @classmethod
    def of_arrays(cls, logits: np.ndarray, labels: np.ndarray) -> "FittingRows":
        """The sketch of logits `[n, C]` and labels `[n]`."""
        hashes = _row_hashes(logits, labels, _sample(len(labels), N_SAMPLED))
        return cls(len(labels), {name: Sketch.of(values) for name, values in hashes.items()})

    @classmethod
    def of_texts(cls, texts: Sequence[str] | None, text_pairs: Sequence[str] | None = None) -> "FittingRows":
        """The sketch of texts or pairs of texts.

        >>> seen = FittingRows.of_texts([f"text {i}" for i in range(100)])
        >>> round(seen.share_of_texts([f"Text  {i}" for i in range(50, 150)]), 1)
        0.5
        """
        if texts is None:
            return cls(0, {})
        index = _sample(len(texts), N_SAMPLED)
        return cls(len(texts), {"text": Sketch.of(_text_hashes(texts, text_pairs, index))})

    def share_among(self, rows: Predictions) -> float:
        """The share of labelled rows that are fitting rows, estimated; 0 if there are none beyond chance."""
        if "text" in self.sketches and rows.texts is not None:
            return self.share_of_texts(rows.texts, rows.text_pairs)
        index = _sample(rows.n_rows, N_CHECKED)
        hashes = _row_hashes(logits_in(rows), rows.labels, index)
        both = [name for name in hashes if name in self.sketches]
        return max((self._share(name, hashes[name]) for name in both), default=0.0)

    def share_of_texts(self, texts: Sequence[str], text_pairs: Sequence[str] | None = None) -> float:
        """The share of texts that are fitting or training texts, estimated; 0 if there are none beyond chance."""
        if "text" not in self.sketches:
            return 0.0
        return self._share("text", _text_hashes(texts, text_pairs, _sample(len(texts), N_CHECKED)))

    def _share(self, name: str, hashes: np.ndarray) -> float:
        share = min(1.0, self.sketches[name].share_found(hashes) * self.n_rows / max(len(hashes), 1))
        return round(share, 3) if share >= MIN_SHARE else 0.0

    def to_json(self) -> dict[str, Any]:
        sketches = {name: sketch.to_json() for name, sketch in self.sketches.items()}
        return {"n_rows": self.n_rows, "sketches": sketches}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "FittingRows":
        sketches = {str(name): Sketch.from_json(sketch) for name, sketch in value["sketches"].items()}
        return cls(int(value["n_rows"]), sketches)


def _sample(n_rows: int, most: int) -> np.ndarray:
    """Positions of a fixed random sample of at most this many rows."""
    rng = np.random.default_rng(n_rows)
    return np.arange(n_rows) if n_rows <= most else rng.choice(n_rows, most, replace=False, shuffle=False)


def _row_hashes(logits: np.ndarray, labels: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
    """Hashes of some rows, by representation."""
    gaps, probs, best = _top_values(logits[index])
    hashes = {f"probs {d}": _hash_columns([best, *_rounded(probs, d)]) for d in _PROB_DECIMALS}
    hashes |= {f"gaps {d}": _hash_columns([best, *_rounded(gaps, d)]) for d in _GAP_DECIMALS}
    starts = index[index <= len(labels) - RUN]
    if len(starts):
        rows = (starts[:, None] + np.arange(RUN)).ravel()
        _, probs, best = _top_values(logits[rows])
        single = _hash_columns([best, labels[rows], *_rounded(probs, 2)]).reshape(-1, RUN)
        hashes["run"] = _hash_columns(list(single.T))
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


def _hash_columns(columns: Sequence[np.ndarray]) -> np.ndarray:
    """A 32-bit hash of each row of integer columns."""
    hashes = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in columns:
        hashes = (hashes ^ column.astype(np.int64).view(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(31)
    return (hashes >> np.uint64(32)).astype(np.uint32)


def _text_hashes(texts: Sequence[str], pairs: Sequence[str] | None, index: np.ndarray) -> np.ndarray:
    digests = (hashlib.blake2b(text_key(texts[i], pairs[i] if pairs else "").encode(), digest_size=4) for i in index)
    return np.frombuffer(b"".join(digest.digest() for digest in digests), dtype="<u4").astype(np.uint32)


def text_key(text: str, text_pair: str = "") -> str:
    """A text or pair without differences in spaces and letter case.

    >>> text_key("Fine  Film\\n") == text_key("fine film")
    True
    """
    return "\0".join(" ".join(part.split()).casefold() for part in (text, text_pair))
