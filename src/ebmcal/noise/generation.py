"""Noise of a causal LM: mask source texts, sample from the LM, keep the usable texts in a store.

`NoiseStore` is the directory of the texts, `StoredStream` what a training draws from it. `generate_shard` is a pure
function of the LM, the source texts and the settings, so shards can be made in this process (`generate_locally`) or on
a cluster (`RayEngine`), in any order, and resumed after an interruption. `build_stored` does it all for a run:

    <cache>/noise_lm/<key>/                          the noise LM
    <cache>/noise/<key>/store.json                   what the store was made from; written first
    <cache>/noise/<key>/shard-<start>-<stop>.parquet texts written for the source slots start … stop - 1

Slot s is the s-th time that a source text is masked: round s // n of the n source texts. What is written for a slot
depends on the slot alone, so the texts of a store are the same whatever its shards. A shard appears complete, by a
rename; its footer holds the rejected samples.
"""

import json
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from ebmcal.cluster import map_on_cluster, ray_cluster
from ebmcal.data import dataset_fingerprint
from ebmcal.data.splits import ShuffledOrder, TextPair, Texts
from ebmcal.errors import EbmcalError
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import default_device
from ebmcal.noise import BuiltSource, Material, NoiseConfig, NoisePart
from ebmcal.noise.causal_lm import CARD, LmSettings, NoiseLm, fit_noise_lm
from ebmcal.noise.sampler import Sample, sample
from ebmcal.progress import Reporter
from ebmcal.storage import (
    atomic_write,
    fingerprint,
    locked,
    read_json,
    remove,
    remove_temporary_files,
    write_json,
)
from ebmcal.training.runtime import n_processes

MARKER = "store.json"

#: Settings that the texts of a store depend on besides the LM and the source texts.
SAMPLING = ("top_k", "samples_per_mask", "seed", "precision", "condition")

#: Generation stops if a smaller share of the samples is usable: most of them do not end, or lose their separator.
MIN_USABLE = 0.25

#: Columns of the store that examples show.
SHOWN = ("masked", "hidden", "text", "text_pair")

#: Shards submitted to a cluster at a time, which bounds the memory of their source texts.
MAX_SHARDS = 2048


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


class Slot(NamedTuple):
    """The source text of a slot, which is masked in a round; masks are keyed by round and position."""

    round: int
    position: int
    id: str
    label: int
    text: TextPair

    def rng(self, seed: int, purpose: int, *more: int) -> np.random.Generator:
        return np.random.default_rng([seed, purpose, self.round, self.position, *more])


#: (store, directory of the LM, texts, texts wanted, settings) -> (start, stop, shard) as they are finished, in any
#: order. Each is added to the store before the next is requested.
Engine = Callable[[NoiseStore, Path, Texts, int, NoiseConfig], Iterator[tuple[int, int, Shard]]]


def generate_locally(
    store: NoiseStore, lm_directory: Path, texts: Texts, n_texts: int, settings: NoiseConfig
) -> Iterator[tuple[int, int, Shard]]:
    """The engine that works in this process, one shard after the other."""
    lm = load_for_sampling(lm_directory, settings)
    while ranges := store.missing(n_texts, limit=1):
        ((start, stop),) = ranges
        yield start, stop, generate_shard(lm, gather(texts, start, stop, settings.seed), settings)


@dataclass(frozen=True)
class RayEngine:
    """The engine that works on a Ray cluster; without an address, one is started on this machine for the call.

    The driver sends the source texts and adds finished shards to the store, so workers need only the directory of the
    LM under the same path. Neither the number of workers nor a crash of one changes the texts.
    """

    address: str | None = None
    workers: int | None = None

    def __call__(
        self, store: NoiseStore, lm_directory: Path, texts: Texts, n_texts: int, settings: NoiseConfig
    ) -> Iterator[tuple[int, int, Shard]]:
        # Decided here: workers on different machines must not differ.
        settings = replace(settings, precision="bf16" if use_bf16(settings.precision) else "fp32")
        write = _ShardWriter(lm_directory.resolve(), settings)
        with ray_cluster(self.address, self.workers) as n_workers:
            while ranges := store.missing(n_texts, MAX_SHARDS):
                items = ((start, stop, gather(texts, start, stop, settings.seed)) for start, stop in ranges)
                yield from map_on_cluster(write, items, n_workers, in_order=False)


@dataclass
class _ShardWriter:
    """Runs in a worker: loads the LM for the first shard and keeps it."""

    lm_directory: Path
    settings: NoiseConfig
    lm: NoiseLm | None = None

    def __call__(self, item: tuple[int, int, list[Slot]]) -> tuple[int, int, Shard]:
        start, stop, slots = item
        if self.lm is None and not (self.lm_directory / CARD).is_file():
            raise EbmcalError(
                f"A Ray worker on {socket.gethostname()} finds no noise LM in {self.lm_directory}. Put the cache on a "
                "file system that all nodes share (--cache-dir)."
            )
        self.lm = self.lm or load_for_sampling(self.lm_directory, self.settings)
        return start, stop, generate_shard(self.lm, slots, self.settings)


def build_stored(part: NoisePart, made_from: Material, n_texts: int, n_held_out: int) -> BuiltSource:
    """A source of a run: the first `n_texts` texts of its store are for training, the next ones are held out."""
    store, card = _generate(part, made_from, n_texts + n_held_out)
    table = store.table(n_texts + n_held_out, ["source_id", "text", "text_pair"])
    held_out = [(row["text"], row["text_pair"]) for row in table.slice(n_texts).to_pylist()]
    facts = {
        "n_texts": n_texts,
        "usable_share": store.usable_share,
        "rejected": store.rejected,
        "lm": card,
        "sampling": store.identity,
        "directory": store.directory.relative_to(made_from.cache_dir).as_posix(),  # in the cache
    }
    examples = [{"source": part.name} | {k: row[k] for k in SHOWN} for row in store.examples()]
    return BuiltSource(StoredStream(table.slice(0, n_texts), None), held_out, facts, examples)


def _generate(part: NoisePart, made_from: Material, n_texts: int) -> tuple[NoiseStore, dict[str, Any]]:
    """A store with at least so many texts, generated or found in the cache, and the card of its LM."""
    config, train, reporter = made_from.config, made_from.train, made_from.reporter
    data, lm = dataset_fingerprint(train.dataset), _lm_settings(part, made_from)
    sampling = {name: getattr(config, name) for name in SAMPLING}
    identity = {"lm": lm.key(data), "data": data, "mode": part.source, **sampling}
    directory = made_from.cache_dir / "noise" / fingerprint("noise", identity)
    lm_root = made_from.cache_dir / "noise_lm"
    card = lm_root / lm.key(data) / "model" / CARD
    if card.is_file() and (directory / MARKER).is_file():  # no lock: the cache may be read-only
        store = NoiseStore.open(directory, identity)
        if len(store) >= n_texts:
            return store, read_json(card)
    if n_processes() > 1:
        raise EbmcalError(
            f"The noise {part.name} has not been generated, which takes a single process. Run the same command "
            "once without torchrun, stop it when training starts, and run it again with torchrun."
        )
    lm_directory, facts = fit_noise_lm(lm, train, data, lm_root, reporter)
    with locked(directory, on_wait=lambda owner: reporter.info(f"noise: waiting for {owner}, which generates it")):
        remove_temporary_files(directory)
        store = NoiseStore.open(directory, identity)
        fill_store(store, lm_directory, train, n_texts, config, reporter, made_from.engine or generate_locally)
    return store, facts


def _lm_settings(part: NoisePart, made_from: Material) -> LmSettings:
    config = made_from.config
    return LmSettings(
        name=part.argument, mode=part.source, mask_ratio=config.mask_ratio, steps=config.lm_steps,
        batch_size=config.lm_batch_size, learning_rate=config.lm_learning_rate, max_length=config.max_length,
        seed=config.seed, precision=config.precision, trust_remote_code=config.trust_remote_code,
        label_names=() if config.condition == "none" else made_from.label_names,
    )  # fmt: skip


def fill_store(
    store: NoiseStore, lm_directory: Path, texts: Texts, n_texts: int, settings: NoiseConfig, reporter: Reporter,
    engine: Engine = generate_locally,
) -> None:  # fmt: skip
    """Generate what is missing until the store has `n_texts` texts."""
    if len(store) >= n_texts:
        return
    _check_usable(store)
    with reporter.stage("noise", n_texts) as advance:
        n_done = min(len(store), n_texts)
        advance(n_done)
        for start, stop, shard in engine(store, lm_directory, texts, n_texts, settings):
            store.add(start, stop, shard)
            advance(max(0, min(len(shard.rows), n_texts - n_done)))
            n_done += len(shard.rows)
            _check_usable(store)
    reporter.info(
        f"noise: {len(store):,} texts, {store.usable_share:.0%} of the samples usable (rejected: "
        f"{store.rejected or 'none'})"
    )


def _check_usable(store: NoiseStore) -> None:
    if store.usable_share < MIN_USABLE:
        raise EbmcalError(
            f"Only {store.usable_share:.0%} of {store.n_samples:,} noise samples are usable (rejected: "
            f"{store.rejected}), so generation stopped. Train it longer (more LM steps or a larger LM learning "
            "rate) or mask less (a smaller mask ratio)."
        )


def load_for_sampling(directory: Path, settings: NoiseConfig) -> NoiseLm:
    """The noise LM, on the GPU if there is one, in the fastest precision allowed."""
    lm = NoiseLm.load(directory)
    lm.model.to(default_device())
    if use_bf16(settings.precision):
        lm.model.to(torch.bfloat16)
    return lm


def gather(texts: Texts, start: int, stop: int, seed: int) -> list[Slot]:
    """The slots start … stop - 1: each round goes through all texts in a new order."""
    rounds, places = np.divmod(np.arange(start, stop), len(texts))
    orders = {r: np.random.default_rng([seed, 11, r]).permutation(len(texts)) for r in np.unique(rounds).tolist()}
    positions = [int(orders[r][place]) for r, place in zip(rounds.tolist(), places.tolist(), strict=True)]
    ids, labels = [texts.ids[i] for i in positions], texts.labels[positions].tolist()
    return [Slot(*slot) for slot in zip(rounds.tolist(), positions, ids, labels, texts[positions], strict=True)]


def generate_shard(lm: NoiseLm, slots: list[Slot], settings: NoiseConfig) -> Shard:
    """Mask the sources, let the LM write them again, keep the usable texts."""
    usable = [(slot, ids) for slot in slots if len(ids := lm.encode(slot.text))]
    masks = [lm.draw_mask(ids, slot.rng(settings.seed, 13)) for slot, ids in usable]
    labels = [_choose_label(slot, lm, settings) for slot, _ in usable]
    layouts = [lm.lay_out(ids, mask, label) for (_, ids), mask, label in zip(usable, masks, labels, strict=True)]
    uniforms = [_uniforms(slot, len(ids), settings) for slot, ids in usable]
    groups = sample(lm, layouts, uniforms, top_k=settings.top_k)
    rows: list[dict[str, Any]] = []
    rejected = Counter({"empty source": len(slots) - len(usable)})
    for (slot, ids), mask, label, samples in zip(usable, masks, labels, groups, strict=True):
        runs = _runs(ids, mask)
        source = {
            "source_id": slot.id,
            "label": lm.label_names[label] if label >= 0 else None,
            "masked": "".join(" <M>" if is_gap else lm.tokenizer.decode(run) for run, is_gap in runs).strip(),
            "hidden": [lm.decode(run) for run, is_gap in runs if is_gap],
        }
        for k, one in enumerate(samples):
            (text, pair), reason = decode_sample(lm, one, is_pair=slot.text[1] is not None)
            if reason:
                rejected[reason] += 1
                continue
            rows.append({**source, "sample": k, "text": text, "text_pair": pair})
    return Shard(rows, {reason: n for reason, n in rejected.items() if n})


def _uniforms(slot: Slot, n_tokens: int, settings: NoiseConfig) -> list[np.ndarray]:
    """Random numbers of each sample. They limit its length to half as long again as the source, plus 16."""
    n = n_tokens + 1
    return [slot.rng(settings.seed, 17, k).random(n + n // 2 + 16) for k in range(settings.samples_per_mask)]


def _choose_label(slot: Slot, lm: NoiseLm, settings: NoiseConfig) -> int:
    """The label that the LM reads: the source's own, or a random other one; -1 for none."""
    n_labels = len(lm.label_names)
    if settings.condition == "none" or slot.label < 0 or (settings.condition == "other" and n_labels < 2):
        return -1
    if settings.condition == "own":
        return slot.label
    return (slot.label + 1 + int(slot.rng(settings.seed, 19).integers(n_labels - 1))) % n_labels


def decode_sample(lm: NoiseLm, one: Sample, is_pair: bool) -> tuple[TextPair, str | None]:
    """The text of a sample and None, or the reason why it is rejected."""
    if one.is_unfinished:
        return ("", None), "unfinished"
    ids = np.array(one.written, dtype=np.int64)
    ends = np.flatnonzero(ids == lm.markers.separator)
    if len(ends) != is_pair:
        return ("", None), "separator"
    texts = [lm.decode(part[part != lm.markers.separator].tolist()) for part in np.split(ids, ends)]
    if not all(texts):
        return ("", None), "empty"
    return (texts[0], texts[1] if is_pair else None), None


def _runs(ids: np.ndarray, masked: np.ndarray) -> list[tuple[list[int], bool]]:
    """Runs of tokens that are all masked or all not, and whether they are masked."""
    edges = np.flatnonzero(np.diff(masked.astype(np.int8))) + 1
    parts = zip(np.split(ids, edges), np.split(masked, edges), strict=True)
    return [(part.tolist(), bool(flags[0])) for part, flags in parts]
