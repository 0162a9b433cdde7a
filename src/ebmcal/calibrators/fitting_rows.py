"""The guard against judging a calibrator on the rows it was fitted on.

A fitted calibrator remembers 64-bit hashes of its fitting rows: all of them up to `KEPT`, beyond that the `KEPT`
smallest, which sample the rows evenly, so that the share of judged rows among them can still be estimated.
A row is its logits in float32 together with its id, where both sides have ids: an id such as "17" occurs in many
files and rounded logits repeat by chance, but both together hardly do.
"""

import base64
import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from ebmcal.mixing import splitmix64

Ids = Sequence[Any] | np.ndarray

KEPT = 4096
# Without ids, equal logits may be chance: one row in twenty has to be known beyond what chance explains.
SHARE_WITHOUT_IDS = 0.05


class FittedOnJudgedRows(UserWarning):
    """A calibrator is being judged on rows it was fitted on; the result flatters it.

    For example:

        warnings.simplefilter("error", FittedOnJudgedRows)
    """


@dataclass(frozen=True)
class Sketch:
    """The hashes up to `limit`, enough to tell of any hash up to `limit` whether it was there.

    `repeats` is the share of rows that are not the only ones of their kind. It is also how often another row from
    the same source would be known by chance (Good 1953): in half precision and with two classes, nearly always.
    """

    limit: int
    repeats: float
    hashes: np.ndarray  # sorted uint64

    @classmethod
    def of(cls, hashes: np.ndarray) -> "Sketch":
        limit = np.iinfo(np.uint64).max
        if len(hashes) > KEPT:
            hashes = np.partition(hashes, KEPT - 1)[:KEPT]
            limit = hashes.max()
        values, counts = np.unique(hashes, return_counts=True)
        return cls(int(limit), 1.0 - np.count_nonzero(counts == 1) / len(hashes), values)

    def share_among(self, hashes: np.ndarray, least: float = 0.0) -> float:
        """The share of the given hashes that are known beyond chance; 0 where that is not `least` and 3 deviations."""
        hashes = hashes[hashes <= np.uint64(self.limit)]
        if not len(hashes):
            return 0.0
        known, chance = float(np.isin(hashes, self.hashes).mean()), self.repeats
        deviation = np.sqrt(chance * (1.0 - chance) * (1.0 / len(hashes) + 1.0 / len(self.hashes)))
        beyond = known - chance
        return beyond / (1.0 - chance) if beyond > 0 and beyond >= least + 3 * deviation else 0.0

    def to_json(self) -> dict[str, Any]:
        text = base64.b64encode(self.hashes.astype("<u8").tobytes()).decode("ascii")
        return {"limit": self.limit, "repeats": self.repeats, "hashes": text}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Sketch":
        hashes = np.frombuffer(base64.b64decode(value["hashes"]), dtype="<u8")
        return cls(value["limit"], value["repeats"], hashes.astype(np.uint64))


@dataclass(frozen=True)
class FittingRows:
    """What is remembered of the fitting rows: their number, their logits, and logits with ids where ids are known."""

    n_rows: int
    rows: Sketch
    rows_with_ids: Sketch | None = None

    @classmethod
    def of(cls, logits: np.ndarray, ids: Ids | None = None) -> "FittingRows":
        rows = row_hashes(logits)
        return cls(len(rows), Sketch.of(rows), Sketch.of(_with_ids(rows, ids)) if _tell_apart(ids) else None)

    def share_among(self, logits: np.ndarray, ids: Ids | None = None) -> float:
        """The share of the given rows that are fitting rows: exact up to `KEPT` fitting rows, else estimated."""
        rows = row_hashes(logits)
        if self.rows_with_ids is not None and _tell_apart(ids):
            return self.rows_with_ids.share_among(_with_ids(rows, ids))
        return self.rows.share_among(rows, least=SHARE_WITHOUT_IDS)

    def to_json(self) -> dict[str, Any]:
        with_ids = None if self.rows_with_ids is None else self.rows_with_ids.to_json()
        return {"n_rows": self.n_rows, "rows": self.rows.to_json(), "rows_with_ids": with_ids}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "FittingRows":
        with_ids = value["rows_with_ids"]
        return cls(
            value["n_rows"], Sketch.from_json(value["rows"]), None if with_ids is None else Sketch.from_json(with_ids)
        )


def warn_if_fitted_on(fitted_on: FittingRows, logits: np.ndarray, ids: Ids | None = None) -> None:
    """Warn with `FittedOnJudgedRows` when some of the rows were fitted on."""
    share = fitted_on.share_among(logits, ids)
    if share > 0:
        warnings.warn(
            f"About {share:.0%} of these rows were used to fit the calibrator: what is measured on them flatters it. "
            "Judge it on other rows.",
            FittedOnJudgedRows,
            stacklevel=3,
        )


def row_hashes(logits: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each row, `[n]`; equal for any dtype that holds the same float32 values.

    >>> len(set(row_hashes(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])).tolist()))
    2
    """
    bits = (np.asarray(logits, dtype=np.float32) + np.float32(0.0)).view(np.uint32)  # + 0 turns -0 into 0
    hashes = np.full(len(bits), bits.shape[1], dtype=np.uint64)
    for column in bits.T:
        hashes = splitmix64(hashes ^ column)
    return hashes


def _with_ids(rows: np.ndarray, ids: Ids) -> np.ndarray:
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8).digest() for i in ids)
    return splitmix64(rows ^ np.frombuffer(digests, dtype="<u8"))


def _tell_apart(ids: Ids | None) -> TypeGuard[Ids]:
    """Whether ids say more than a row's place in its file, which is what they are when nobody gave any."""
    return ids is not None and any(str(name) != str(place) for place, name in enumerate(ids))
