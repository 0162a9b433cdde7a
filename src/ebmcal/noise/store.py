"""Generated noise on disk: Parquet shards that can be made in any order, by anyone, and resumed after an interruption.

`NoiseStore` is the directory, `StoredStream` what a training draws from it.

    store.json                            what the store was made from; written first
    shard-<start>-<stop>.parquet          texts written for the source slots start … stop - 1

Slot s is the s-th time that a source text is masked: round s // n of the n source texts. What is written for a slot
depends on the slot alone, so the texts of a store are the same whatever its shards. A shard appears complete, by a
rename; its footer holds the rejected samples.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebmcal.data.splits import ShuffledOrder, TextPair, Texts
from ebmcal.errors import EbmcalError
from ebmcal.storage import atomic_write, read_json, remove, write_json

MARKER = "store.json"

#: The most slots of a shard. Samples of a shard are written together: with fewer, the batch is often half empty.
SHARD_SLOTS = 256

#: Slots planned per slot that would do if the rate of usable samples stayed the same.
MARGIN = 1.05

SCHEMA = pa.schema(
    [
        ("source_id", pa.string()),
        ("sample", pa.int32()),
        ("label", pa.string()),  # that the LM read; null for most LMs
        ("masked", pa.string()),
        ("hidden", pa.list_(pa.string())),
        ("text", pa.string()),
        ("text_pair", pa.string()),
    ]
)


class Shard(NamedTuple):
    """Texts as rows of `SCHEMA`, and the number of rejected samples by reason."""

    rows: list[dict[str, Any]]
    rejected: dict[str, int]


@dataclass(frozen=True)
class ShardInfo:
    """The footer of a shard."""

    path: Path
    start: int
    stop: int
    n_texts: int
    rejected: dict[str, int]


class NoiseStore:
    """A directory of noise texts. Create or open it with `NoiseStore.open`."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        self.directory, self.identity = directory, identity
        found = [_read_info(path) for path in directory.glob("shard-*.parquet")]
        self.shards = {info.start: info for info in found if info is not None}

    @classmethod
    def open(cls, directory: Path, identity: dict[str, Any] | None = None) -> "NoiseStore":
        """Open a store; with an identity (settings, LM and data), create it if it does not exist."""
        path = directory / MARKER
        if not path.is_file():
            if identity is None:
                raise EbmcalError(f"{directory} is not a noise store: it has no {MARKER}.")
            write_json(path, {"identity": identity})
        return cls(directory, read_json(path)["identity"])

    def add(self, start: int, stop: int, shard: Shard) -> None:
        """Write the texts of the slots start … stop - 1."""
        table = pa.Table.from_pylist(shard.rows, schema=SCHEMA)
        table = table.replace_schema_metadata({"rejected": json.dumps(shard.rejected)})
        path = self.directory / f"shard-{start:09d}-{stop:09d}.parquet"
        with atomic_write(path) as temporary:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        self.shards[start] = ShardInfo(path, start, stop, len(shard.rows), shard.rejected)

    def contiguous(self) -> Iterator[ShardInfo]:
        """The shards from the first slot on, up to the first gap."""
        position = 0
        while (info := self.shards.get(position)) is not None:
            yield info
            position = info.stop

    def __len__(self) -> int:
        """The number of texts before the first gap."""
        return sum(info.n_texts for info in self.contiguous())

    def missing(self, n_texts: int, limit: int) -> list[tuple[int, int]]:
        """At most `limit` slot ranges to write next; after enough of them the store has `n_texts` texts."""
        per_slot = max(self.usable_share, 0.02) * self.identity["samples_per_mask"]
        ranges: list[tuple[int, int]] = []
        position, expected = 0, 0.0
        while expected < n_texts and len(ranges) < limit:
            if (info := self.shards.get(position)) is not None:
                position, expected = info.stop, expected + info.n_texts
                continue
            n_slots = min(SHARD_SLOTS, math.ceil(MARGIN * (n_texts - expected) / per_slot))
            stop = min([position + n_slots, *(start for start in self.shards if start > position)])
            ranges.append((position, stop))
            position, expected = stop, expected + (stop - position) * per_slot
        return ranges

    @property
    def rejected(self) -> dict[str, int]:
        """The number of rejected samples by reason."""
        return dict(sum((Counter(info.rejected) for info in self.shards.values()), Counter()))

    @property
    def n_samples(self) -> int:
        return sum(info.n_texts for info in self.shards.values()) + sum(self.rejected.values())

    @property
    def usable_share(self) -> float:
        """The share of samples that are usable texts; 1 if there are none yet."""
        return 1 - sum(self.rejected.values()) / self.n_samples if self.n_samples else 1.0

    def table(self, n_texts: int, columns: list[str] | None = None) -> pa.Table:
        """The first `n_texts` texts in slot order; a store that has grown since returns the same ones."""
        tables, n_left = [SCHEMA.empty_table().select(columns or SCHEMA.names)], n_texts
        for info in self.contiguous():
            if n_left <= 0:
                break
            try:
                tables.append(pq.read_table(info.path, columns=columns, page_checksum_verification=True))
            except Exception as error:
                raise EbmcalError(
                    f"The noise shard {info.path} is corrupt ({error}). Delete it and run the same command again."
                ) from error
            n_left -= info.n_texts
        return pa.concat_tables([table.replace_schema_metadata() for table in tables]).slice(0, n_texts)

    def rows(self, n_texts: int) -> list[dict[str, Any]]:
        """The first `n_texts` texts with their sources, as rows of `SCHEMA`."""
        return self.table(n_texts).to_pylist()

    def examples(self, n: int = 10) -> list[dict[str, Any]]:
        """The first sample of up to n masked texts."""
        return [row for row in self.rows(8 * n) if row["sample"] == 0][:n]


def _read_info(path: Path) -> ShardInfo | None:
    """The footer of a shard; an unreadable shard is removed, so that it is written again."""
    try:
        _, start, stop = path.stem.split("-")
        metadata = pq.read_metadata(path)
        rejected = json.loads(metadata.metadata[b"rejected"])
        return ShardInfo(path, int(start), int(stop), metadata.num_rows, rejected)
    except OSError:
        raise
    except Exception:
        remove(path)
        return None


@dataclass
class StoredStream:
    """The texts of a table with columns text and text_pair in endless rounds; shuffled unless `seed` is None."""

    table: pa.Table
    seed: int | None

    def __post_init__(self) -> None:
        self.table = self.table.combine_chunks()
        self._order = None if self.seed is None else ShuffledOrder(len(self.table), self.seed + 1)

    def draw(self, numbers: Sequence[int]) -> list[TextPair]:
        rows = [n % len(self.table) if self._order is None else self._order[n] for n in numbers]
        texts = self.table.take(pa.array(rows, pa.int64())).to_pylist()
        return [(row["text"], row["text_pair"]) for row in texts]

    def restricted_to(self, rows: Texts) -> "StoredStream":
        """Only texts that were written from these rows; the table needs the column source_id."""
        table = self.table.filter(pc.is_in(self.table["source_id"], pa.array(sorted(set(rows.ids)), pa.string())))
        if not len(table):
            raise EbmcalError("The noise has no text written from these rows. Generate more texts.")
        return replace(self, table=table)
