"""Noise on disk: Parquet shards with where each text came from, resumable, checked, shared by methods and seeds.

A shard is a slice of one round: every source text is masked anew in each round and written several times. Which
sources, masks and random numbers a shard has is a pure function of (seed, shard), so it does not matter who makes it,
or when. The last one is cut where the store has as many texts as were asked for, and need not be made beyond; who asks
for more later makes that shard again and gets the texts behind the cut. Each shard says what it is: the identity of its
store, its number, its counts and a check of its rows. One record beside them, `noise.jsonl`, says the same of all: what
the store is for, then a line for each finished shard with its checksum, so that entering one costs the same however
many there are. What is damaged or missing is made again, and a lost record is written again from the shards.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ebmcal.errors import EbmcalError
from ebmcal.mixing import permute
from ebmcal.storage.atomic import explaining_disk, write_text, writing
from ebmcal.storage.checksums import checksum, fingerprint

RECORD = "noise.jsonl"
FORMAT = 4  # 3 counted samples behind a cut, 2 kept two records, and its noise LMs had an end mark of their own

#: Stop sampling when more than this share of all samples did not end, and say so above the second.
TOO_MANY_UNFINISHED, MANY_UNFINISHED = 0.5, 0.05

FIT_LONGER = (
    "The LM has not learned where such texts end. Fit it longer (--noise-lm-steps, or a larger "
    "--noise-lm-learning-rate), or hide less (--mask-ratio)."
)

COLUMNS = pa.schema(
    [
        ("source_id", pa.int64()),
        ("round", pa.int32()),
        ("sample", pa.int32()),
        ("told", pa.string()),
        ("masked", pa.string()),
        ("hidden", pa.list_(pa.string())),
        ("text", pa.string()),
        ("text_pair", pa.string()),
        ("identical", pa.bool_()),
    ]
)


class Shard(NamedTuple):
    """Texts, and the samples that were thrown away: for each reason, how many texts stand before each of them."""

    rows: list[dict[str, Any]]
    thrown_away: dict[str, list[int]]
    is_whole: bool = True  # or made up to where it had more texts than were wanted

    def unfinished_share(self) -> float:
        n_thrown_away = sum(map(len, self.thrown_away.values()))
        return len(self.thrown_away.get("unfinished", ())) / max(1, len(self.rows) + n_thrown_away)


@dataclass(frozen=True)
class NoiseSettings:
    """Everything the noise depends on besides the texts and the LM; not how much of it there is.

    `condition` says which label an LM that reads one is told: the source's `own`, or any `other`.
    """

    top_k: int = 20
    samples_per_mask: int = 4
    sources_per_shard: int = 256  # fewer, and the last rows of a shard run alone for most of the time
    seed: int = 0
    precision: str = "auto"
    condition: str = "none"

    def identity(self, data_fingerprint: str, lm: dict[str, Any], lm_key: str) -> dict[str, Any]:
        """What a store says about itself; two stores with the same identity hold the same texts."""
        shown = ("name", "mode", "mask_ratio", "max_length")
        return {
            "format": FORMAT, "settings": asdict(self), "data": data_fingerprint, "noise_lm": lm_key,
            **{f"lm_{k}": lm[k] for k in shown},
        }  # fmt: skip


class NoiseStore:
    """A folder of shards. `open` makes it, or refuses one that was made for something else."""

    def __init__(self, folder: Path, identity: dict[str, Any], shards: dict[int, dict[str, Any]]) -> None:
        self.folder, self.identity = folder, identity
        self._walked = (0, 0)  # shards from the first on that are there whole, and their texts
        self.shards = shards  # number -> rows, identical, thrown_away, sha256; cut where there are more to be made

    @classmethod
    def open(
        cls, folder: Path, identity: dict[str, Any] | None = None, say: Callable[[str], None] = lambda line: None
    ) -> "NoiseStore":
        """Open a store; with an identity, make it if it is absent, mend its record, and refuse another's."""
        there, shards = _read_record(folder / RECORD)
        if identity is None:
            if there is None:
                raise EbmcalError(_no_store(folder))
            identity = there | {"format": FORMAT}
            _refuse_others(folder, [there], identity)
            return cls(folder, identity, shards)
        store = cls(folder, identity, shards)
        unlisted = store._whole_unlisted()
        # Without the first line of the record, a listed shard says whose store it is: the others are of the same.
        first = there or next((about["identity"] for n in shards if (about := _about(store.shard_path(n)))), None)
        _refuse_others(folder, [first, *(about["identity"] for about in unlisted.values())], identity)
        if there is None or unlisted:
            if there is None and (folder / RECORD).exists():
                say(f"noise: {folder / RECORD} is damaged: written again")
            if unlisted:
                say(f"noise: {len(unlisted)} whole shards were not listed in {RECORD}: kept")
            store.shards |= {n: _entry(store.shard_path(n), about["facts"]) for n, about in unlisted.items()}
            store._rewrite_record()
        return store

    def _whole_unlisted(self) -> dict[int, dict[str, Any]]:
        """Shards that are there and whole by their own account, and what they say of themselves."""
        found = {}
        for path in sorted(self.folder.glob("shard-*.parquet")):
            number = int(digits) if (digits := path.stem.removeprefix("shard-")).isdecimal() else -1
            about = _about(path) if number not in self.shards and path == self.shard_path(number) else None
            if about is not None and about["number"] == number:
                found[number] = about
        return found

    @property
    def settings(self) -> NoiseSettings:
        return NoiseSettings(**self.identity["settings"])

    @property
    def key(self) -> str:
        return fingerprint("noise", self.identity)

    def shard_path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.parquet"

    def drop_damaged(self) -> list[str]:
        """Forget shards whose file is missing or does not have its checksum; returns their names."""
        bad = {n: entry for n, entry in self.shards.items() if not _whole(self.shard_path(n), entry)}
        if not bad:
            return []
        self._forget(bad)
        # A cut one that got its other texts, but was not entered before its maker died, is whole.
        cut = {n for n, entry in bad.items() if entry.get("cut")}
        found = {n: about for n, about in self._whole_unlisted().items() if n in cut}
        grown = {n: about["facts"] for n, about in found.items() if about["identity"] == self.identity}
        self.shards |= {n: _entry(self.shard_path(n), facts) for n, facts in grown.items()}
        self._rewrite_record()
        return [self.shard_path(n).name for n in bad if n not in grown]

    def has(self, number: int) -> bool:
        return number in self.shards

    def add(self, number: int, shard: Shard, n_wanted: int | None = None) -> int:
        """Write a shard up to where the store has `n_wanted` texts, and enter it; returns how many texts are new.

        A shard that was cut before keeps its texts, to the letter, and gets those behind them.
        """
        there = self._read(number) if self.has(number) else []
        known = {_sample_of(row) for row in there}  # rounding may have made other samples of them usable this time
        rows = there + [row for row in shard.rows if _sample_of(row) not in known]
        n_before = self._n_before(number)
        kept = rows if n_wanted is None or n_before is None else rows[: max(0, n_wanted - n_before)]
        if kept or not rows:  # else it is not needed
            self._write(number, kept, shard.thrown_away, is_cut=len(kept) < len(rows) or not shard.is_whole)
        return len(kept) - len(there)

    def _n_before(self, number: int) -> int | None:
        """The texts of the shards before this one; None while one of them is missing or cut."""
        whole, n_rows = self._walked  # so far, not to count millions of shards again for each
        while whole < number and (entry := self.shards.get(whole)) and not entry.get("cut"):
            whole, n_rows = whole + 1, n_rows + entry["rows"]
        self._walked = whole, n_rows
        return n_rows if whole == number else None

    def cut(self, n_wanted: int, numbers: Iterable[int]) -> None:
        """Cut those of these shards that came before it was known how many of their texts are wanted."""
        ours, n_rows, rooms = set(numbers), 0, {}
        for number, entry in sorted(self.shards.items()):
            if number in ours and n_rows + entry["rows"] > n_wanted:
                rooms[number] = max(0, n_wanted - n_rows)
            n_rows += entry["rows"]
        for number, room in rooms.items():
            if room:
                self._write(number, self._read(number)[:room], self.shards[number]["thrown_away"], is_cut=True)
        unwanted = [number for number, room in rooms.items() if not room]
        if unwanted:
            self._forget(unwanted)
            self._rewrite_record()
            for number in unwanted:
                self.shard_path(number).unlink()

    def _forget(self, numbers: Iterable[int]) -> None:
        gone = set(numbers)
        self.shards = {n: entry for n, entry in self.shards.items() if n not in gone}
        self._walked = (0, 0)

    def _write(self, number: int, rows: list[dict[str, Any]], thrown_away: dict[str, list[int]], is_cut: bool) -> None:
        before = {reason: [n for n in places if n < len(rows) or not is_cut] for reason, places in thrown_away.items()}
        facts: dict[str, Any] = {"rows": len(rows), "identical": sum(r["identical"] for r in rows)}
        facts |= {"thrown_away": {reason: places for reason, places in before.items() if places}}
        facts |= {"cut": True} if is_cut else {}
        about = {"identity": self.identity, "number": number, "facts": facts}
        table = pa.Table.from_pylist(rows, schema=COLUMNS)
        about["check"] = fingerprint(about, table.to_pylist())
        with writing(self.shard_path(number)) as aside:
            described = table.replace_schema_metadata({name: json.dumps(value) for name, value in about.items()})
            pq.write_table(described, aside, compression="zstd", write_page_checksum=True)
        entry = _entry(self.shard_path(number), facts)
        with explaining_disk(self.folder / RECORD), open(self.folder / RECORD, "a", encoding="utf-8") as record:
            record.write(_line(number, entry))
            record.flush()
            os.fsync(record.fileno())
        self.shards[number] = entry

    def _rewrite_record(self) -> None:
        self.shards = dict(sorted(self.shards.items()))
        lines: list[tuple[int | str, dict[str, Any]]] = [("identity", self.identity), *self.shards.items()]
        write_text(self.folder / RECORD, "".join(_line(name, value) for name, value in lines))

    def next_shards(self, n_wanted: int) -> Iterator[tuple[int, int]]:
        """Shards to make, in order, and how many texts of each are wanted; ask again after each `add`."""
        number, n_rows = 0, 0
        while n_rows < n_wanted:
            if self._lacks(number, n_wanted - n_rows):
                yield number, n_wanted - n_rows
            n_rows += self.shards[number]["rows"]
            number += 1

    def has_texts(self, n: int) -> bool:
        """Whether the first `n` texts are all there."""
        return next(self.next_shards(n), None) is None

    def _lacks(self, number: int, n_wanted: int) -> bool:
        """Whether so many texts of a shard are not there though they can be made."""
        entry = self.shards.get(number)
        return entry is None or (entry["rows"] < n_wanted and bool(entry.get("cut")))

    def check_usable(self) -> None:
        """Raise when so few samples are usable that it will not do to go on.

        Only whole shards are judged: one that was cut has as many texts as were wanted, and perhaps few samples.
        """
        whole = [entry for entry in self.shards.values() if not entry.get("cut")]
        thrown_away = _count(whole)
        n_unfinished = thrown_away.get("unfinished", 0)
        n_samples = sum(entry["rows"] for entry in whole) + sum(thrown_away.values())
        if n_unfinished > TOO_MANY_UNFINISHED * n_samples:
            raise EbmcalError(
                f"{n_unfinished:,} of the first {n_samples:,} noise samples did not end: sampling stops. {FIT_LONGER}"
            )
        if len(self.shards) > 20 and not len(self):
            raise EbmcalError(
                f"The noise LM wrote {len(self.shards)} shards without one usable text (thrown away: {thrown_away}). "
                "Fit it longer (--noise-lm-steps), or use --noise-mode gaps."
            )

    def likely_shards(self, n_wanted: int, limit: int) -> list[int]:
        """Missing shards that will be needed for `n_wanted` texts, at most `limit`, for making them side by side.

        Unknown shards count as full until some are known, then as a tenth more than the mean: rather too few, and then
        asked again, than too many.
        """
        full = self.settings.sources_per_shard * self.settings.samples_per_mask
        whole = [entry["rows"] for entry in self.shards.values() if not entry.get("cut")]
        expected = min(full, 1.1 * sum(whole) / len(whole)) if whole else full
        missing: list[int] = []
        number, n_rows = 0, 0.0
        while n_rows < n_wanted and len(missing) < limit:
            known = self.shards.get(number)
            lacks = self._lacks(number, math.ceil(n_wanted - n_rows))
            missing += [number] if lacks else []
            n_rows += max(1, expected) if known is None or lacks else known["rows"]
            number += 1
        return missing

    def thrown_away(self) -> dict[str, int]:
        """Samples that were not kept, by reason."""
        return _count(self.shards.values())

    def __len__(self) -> int:
        return sum(entry["rows"] for entry in self.shards.values())

    @property
    def identical_share(self) -> float:
        """Share of texts that came out as their source."""
        return sum(e["identical"] for e in self.shards.values()) / max(1, len(self))

    def rows(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The texts in shard order, the first `limit` of them: a store that grew later gives the same ones."""
        left = len(self) if limit is None else limit
        for number in sorted(self.shards):
            if left <= 0:
                return
            for row in self._read(number)[:left]:
                yield row
                left -= 1

    def _read(self, number: int) -> list[dict[str, Any]]:
        path = self.shard_path(number)
        try:
            return pq.read_table(path, page_checksum_verification=True).to_pylist()
        except Exception as error:
            raise EbmcalError(
                f"The noise shard {path} is damaged ({error}). Run the command again: it is remade."
            ) from error


def _no_store(folder: Path) -> str:
    if (folder / RECORD).exists():
        return f"{folder / RECORD} is not the record of a noise store. The same `ebmcal noise sample` mends it."
    if (folder / "manifest.json").exists():
        return (
            f"{folder} was made by an earlier version of ebmcal, which kept other records. Delete it and make the "
            "noise again with: ebmcal noise sample"
        )
    return f"{folder} holds no noise: {RECORD} is missing. Make it with: ebmcal noise sample"


def _refuse_others(folder: Path, found: list[dict[str, Any] | None], wanted: dict[str, Any]) -> None:
    for identity in found:
        if identity not in (None, wanted):
            raise EbmcalError(_difference(folder, identity, wanted))


def _about(path: Path) -> dict[str, Any] | None:
    """What a shard says about itself, or None when its rows are not those that it was written with."""
    try:
        table = pq.read_table(path)
        about = {name.decode(): json.loads(value) for name, value in table.schema.metadata.items()}
        return about if about.pop("check") == fingerprint(about, table.to_pylist()) else None
    except Exception:  # unreadable in whatever way, or by an earlier version: made again
        return None


def _whole(path: Path, entry: dict[str, Any]) -> bool:
    return path.exists() and checksum(path) == entry.get("sha256")


def _sample_of(row: dict[str, Any]) -> tuple[int, int]:
    """Which sample a row of a shard is."""
    return row["source_id"], row["sample"]


def _count(entries: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Samples that were thrown away, by reason."""
    totals: dict[str, int] = {}
    for entry in entries:
        for reason, places in entry["thrown_away"].items():
            totals[reason] = totals.get(reason, 0) + len(places)
    return totals


def _entry(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {"sha256": checksum(path)}


def _line(name: int | str, value: dict[str, Any]) -> str:
    """A line of the record. It begins with the line end, so that one that was cut off spoils no other."""
    return f"\n{json.dumps([name, value, fingerprint(name, value)])}"


def _read_record(path: Path) -> tuple[dict[str, Any] | None, dict[int, dict[str, Any]]]:
    """What the store is for, and its finished shards; a line that is cut off or altered is passed over."""
    found: dict[Any, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
        try:
            name, value, seal = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(name, int | str) and isinstance(value, dict) and seal == fingerprint(name, value):
            found[name] = value
    return found.get("identity"), {name: value for name, value in found.items() if isinstance(name, int)}


def _difference(folder: Path, there: dict[str, Any], wanted: dict[str, Any]) -> str:
    keys = [k for k in wanted if there.get(k) != wanted[k]]
    keys = ["format"] if "format" in keys else keys
    lines = "; ".join(f"{k}: there {there.get(k)}, wanted {wanted[k]}" for k in keys)
    other = "for other data" if "data" in keys else "by another version" if keys == ["format"] else "for other settings"
    return f"The noise store {folder} was made {other} ({lines}). Choose another folder or delete this one."


def sources_of(number: int, n_sources: int, settings: NoiseSettings) -> tuple[int, np.ndarray]:
    """The round and the source rows of a shard: each round goes through all sources in an order of its own."""
    size = settings.sources_per_shard
    round_, part = divmod(number, -(-n_sources // size))
    places = np.arange(part * size, min((part + 1) * size, n_sources))
    return round_, permute(places, n_sources, [settings.seed, 11, round_])
