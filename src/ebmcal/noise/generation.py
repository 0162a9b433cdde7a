"""Generating LM noise: mask source texts, sample from the LM, keep the usable texts, fill a store.

`generate_shard` is a pure function of the LM, the source texts and the settings, so shards can be made in this process
(`generate_locally`) or on a cluster (`RayEngine`), in any order.
"""

import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ebmcal.cluster import map_on_cluster, ray_cluster
from ebmcal.errors import EbmcalError
from ebmcal.modeling.pretrained import default_device
from ebmcal.noise.causal_lm import CARD, MODES, Layout, NoiseLm
from ebmcal.noise.sampler import Sample, sample
from ebmcal.noise.store import NoiseStore, Shard
from ebmcal.noise.streams import TextPair, Texts
from ebmcal.progress import Reporter
from ebmcal.training.runtime import use_bf16

SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’)\]]*(?=\s|$)")

#: Generation stops if more than this share of the samples do not end, or fewer than the second are usable, of at least
#: so many samples. Above the third, unended samples are reported.
MAX_UNFINISHED, MIN_USABLE, MIN_SAMPLES, MANY_UNFINISHED = 0.5, 0.01, 1000, 0.05

#: Shards submitted to a cluster at a time, which bounds the memory of their source texts.
MAX_SHARDS = 2048

#: An LM that repeats fewer of the unmasked words has not learned to fill in.
MIN_KEPT = 0.7

TRAIN_LONGER = "Train it longer (more LM steps or a larger LM learning rate) or mask less (a smaller mask ratio)."


@dataclass(frozen=True)
class SamplingSettings:
    """What the texts of a store depend on besides the LM and the source texts."""

    top_k: int = 20
    samples_per_mask: int = 4
    seed: int = 0
    precision: str = "auto"
    condition: str = "none"


class Sources(NamedTuple):
    """The source texts of a range of slots, all that is needed to write it. Masks are keyed by round and position."""

    rounds: list[int]
    positions: list[int]
    ids: list[str]
    labels: list[int]
    texts: list[TextPair]


#: (store, directory of the LM, texts, texts wanted, settings) -> (start, stop, shard) as they are finished, in any
#: order. Each is added to the store before the next is requested.
Engine = Callable[[NoiseStore, Path, Texts, int, SamplingSettings], Iterator[tuple[int, int, Shard]]]


def generate_locally(
    store: NoiseStore, lm_directory: Path, texts: Texts, n_texts: int, settings: SamplingSettings
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
        self, store: NoiseStore, lm_directory: Path, texts: Texts, n_texts: int, settings: SamplingSettings
    ) -> Iterator[tuple[int, int, Shard]]:
        # Decided here: workers on different machines must not differ.
        settings = replace(settings, precision="bf16" if use_bf16(settings.precision) else "fp32")
        write = _ShardWriter(lm_directory.resolve(), settings)
        with ray_cluster(self.address, self.workers) as n_workers:
            while ranges := store.missing(n_texts, MAX_SHARDS):
                items = [(start, stop, gather(texts, start, stop, settings.seed)) for start, stop in ranges]
                yield from map_on_cluster(write, items, n_workers, in_order=False)


@dataclass
class _ShardWriter:
    """Runs in a worker: loads the LM for the first shard and keeps it."""

    lm_directory: Path
    settings: SamplingSettings
    lm: NoiseLm | None = None

    def __call__(self, item: tuple[int, int, Sources]) -> tuple[int, int, Shard]:
        start, stop, sources = item
        if self.lm is None and not (self.lm_directory / CARD).is_file():
            raise EbmcalError(
                f"A Ray worker on {socket.gethostname()} finds no noise LM in {self.lm_directory}. Put the cache on a "
                "file system that all nodes share (--cache-dir)."
            )
        self.lm = self.lm or load_for_sampling(self.lm_directory, self.settings)
        return start, stop, generate_shard(self.lm, sources, self.settings)


def fill_store(
    store: NoiseStore, lm_directory: Path, texts: Texts, n_texts: int, settings: SamplingSettings, reporter: Reporter,
    engine: Engine = generate_locally,
) -> None:  # fmt: skip
    """Generate what is missing until the store has `n_texts` texts."""
    if len(store) >= n_texts:
        return
    _check_usable(store)
    is_first = not store.shards
    with reporter.stage("noise", n_texts) as advance:
        n_done = min(len(store), n_texts)
        advance(n_done)
        for start, stop, shard in engine(store, lm_directory, texts, n_texts, settings):
            store.add(start, stop, shard)
            advance(max(0, min(len(shard.rows), n_texts - n_done)))
            n_done += len(shard.rows)
            _check_usable(store)
            if is_first:
                _report_problems(shard, reporter)
            is_first = False
    reporter.info(
        f"noise: {len(store):,} texts, {store.copy_share:.1%} identical to their source, {store.usable_share:.0%} of "
        f"the samples usable (rejected: {store.rejected or 'none'})"
    )


def _check_usable(store: NoiseStore) -> None:
    unfinished, n = store.rejected.get("unfinished", 0), store.n_samples
    if unfinished > MAX_UNFINISHED * n:
        raise EbmcalError(f"{unfinished:,} of {n:,} noise samples did not end, so generation stopped. {TRAIN_LONGER}")
    if n >= MIN_SAMPLES and store.usable_share < MIN_USABLE:
        raise EbmcalError(
            f"Almost none of {n:,} noise samples are usable (rejected: {store.rejected}), so generation stopped. "
            f"{TRAIN_LONGER}"
        )


def _report_problems(shard: Shard, reporter: Reporter) -> None:
    n_samples = max(1, len(shard.rows) + sum(shard.rejected.values()))
    if (unfinished := shard.rejected.get("unfinished", 0) / n_samples) > MANY_UNFINISHED:
        reporter.info(f"noise: {unfinished:.0%} of the first samples did not end. {TRAIN_LONGER}")
    if (kept := kept_share(shard.rows)) is not None and kept < MIN_KEPT:
        reporter.info(f"noise: the LM repeated only {kept:.0%} of the unmasked words. {TRAIN_LONGER}")


def load_for_sampling(directory: Path, settings: SamplingSettings) -> NoiseLm:
    """The noise LM, on the GPU if there is one, in the fastest precision allowed."""
    lm = NoiseLm.load(directory)
    lm.model.to(default_device())
    if use_bf16(settings.precision):
        lm.model.to(torch.bfloat16)
    return lm


def gather(texts: Texts, start: int, stop: int, seed: int) -> Sources:
    """The sources of the slots start … stop - 1: each round goes through all texts in a new order."""
    rounds, places = np.divmod(np.arange(start, stop), len(texts))
    orders = {r: np.random.default_rng([seed, 11, r]).permutation(len(texts)) for r in np.unique(rounds).tolist()}
    positions = [int(orders[r][place]) for r, place in zip(rounds.tolist(), places.tolist(), strict=True)]
    labels = texts.labels[positions].tolist()
    return Sources(rounds.tolist(), positions, [texts.ids[i] for i in positions], labels, texts[positions])


def generate_shard(lm: NoiseLm, sources: Sources, settings: SamplingSettings) -> Shard:
    """Mask the sources, let the LM write them again, keep the usable texts."""
    encoded = [lm.encode(text) for text in sources.texts]
    usable = [i for i, ids in enumerate(encoded) if len(ids)]
    keys = [[settings.seed, sources.rounds[i], sources.positions[i]] for i in usable]
    masks = [lm.draw_mask(encoded[i], _rng(13, key)) for i, key in zip(usable, keys, strict=True)]
    labels = [_choose_label(sources.labels[i], lm, settings, key) for i, key in zip(usable, keys, strict=True)]
    layouts = [lm.lay_out(encoded[i], mask, label) for i, mask, label in zip(usable, masks, labels, strict=True)]
    uniforms = [_uniforms(layout, key, settings) for layout, key in zip(layouts, keys, strict=True)]
    groups = sample(lm, layouts, uniforms, top_k=settings.top_k)
    rows: list[dict[str, Any]] = []
    rejected = Counter({"empty source": len(encoded) - len(usable)})
    for i, mask, label, samples in zip(usable, masks, labels, groups, strict=True):
        source = {
            "source_id": sources.ids[i],
            "round": sources.rounds[i],
            "label": lm.label_names[label] if label >= 0 else None,
            "masked": show_masked(lm, encoded[i], mask),
            "hidden": show_hidden(lm, encoded[i], mask),
        }
        for k, one in enumerate(samples):
            (text, pair), reason = decode_sample(lm, one, is_pair=sources.texts[i][1] is not None)
            if reason:
                rejected[reason] += 1
                continue
            is_copy = one.ids == encoded[i].tolist()
            rows.append({**source, "sample": k, "text": text, "text_pair": pair, "is_copy": is_copy})
    return Shard(rows, {reason: n for reason, n in rejected.items() if n})


def _rng(purpose: int, key: list[int], *more: int) -> np.random.Generator:
    seed, *rest = key
    return np.random.default_rng([seed, purpose, *rest, *more])


def _uniforms(layout: Layout, key: list[int], settings: SamplingSettings) -> list[np.ndarray]:
    """Random numbers of each sample. They limit its length to half as long again as the source, plus 16."""
    n = len(layout.target) + 1
    return [_rng(17, key, k).random(n + n // 2 + 16) for k in range(settings.samples_per_mask)]


def _choose_label(own: int, lm: NoiseLm, settings: SamplingSettings, key: list[int]) -> int:
    """The label that the LM reads: the source's own, or a random other one; -1 for none."""
    n_labels = len(lm.label_names)
    if not n_labels or own < 0 or settings.condition == "none":
        return -1
    if settings.condition == "own" or n_labels < 2:
        return own if settings.condition == "own" else -1
    return (own + 1 + int(_rng(19, key).integers(n_labels - 1))) % n_labels


def decode_sample(lm: NoiseLm, one: Sample, is_pair: bool) -> tuple[TextPair, str | None]:
    """The text of a sample and None, or the reason why it is rejected."""
    if one.is_unfinished and not MODES[lm.mode].may_truncate:
        return ("", None), "unfinished"
    parts = split_at(one.ids, lm.markers.separator)
    if len(parts) != (2 if is_pair else 1):
        return ("", None), "separator"
    texts = [lm.decode(part) for part in parts]
    if one.is_unfinished:
        n_kept = len(lm.decode(split_at(one.layout.before, lm.markers.separator)[-1]))
        texts[-1] = truncate_text(texts[-1], n_kept)
        if not texts[-1]:
            return ("", None), "unfinished"
    if not all(texts):
        return ("", None), "empty"
    return (texts[0], texts[1] if is_pair else None), None


def truncate_text(text: str, n_kept: int) -> str:
    """Cut an unfinished text at its first line end, or its last sentence end, after `n_kept` characters; else "".

    >>> truncate_text("A fine film. It is long. And then", 6), truncate_text("A fine film and then", 6)
    ('A fine film. It is long.', '')
    """
    line, line_end, _ = text[n_kept:].partition("\n")
    if line_end and line.strip():
        return (text[:n_kept] + line).rstrip()
    ends = [match.end() for match in SENTENCE_END.finditer(text, n_kept)]
    return text[: ends[-1]] if ends else ""


def split_at(ids: list[int], separator: int) -> list[list[int]]:
    """Split a list at every separator.

    >>> split_at([1, 0, 2], separator=0)
    [[1], [2]]
    """
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def show_masked(lm: NoiseLm, ids: np.ndarray, masked: np.ndarray) -> str:
    """The masked text for readers, with <M> for each gap and <SEP> between sentences."""
    shown = [" <M>" if is_gap else lm.tokenizer.decode(run) for run, is_gap in _runs(ids, masked)]
    return "".join(shown).strip()


def show_hidden(lm: NoiseLm, ids: np.ndarray, masked: np.ndarray) -> list[str]:
    """The words behind each gap."""
    return [lm.decode(run) for run, is_gap in _runs(ids, masked) if is_gap]


def _runs(ids: np.ndarray, masked: np.ndarray) -> list[tuple[list[int], bool]]:
    edges = np.flatnonzero(np.diff(masked.astype(np.int8))) + 1
    parts = zip(np.split(ids, edges), np.split(masked, edges), strict=True)
    return [(part.tolist(), bool(flags[0])) for part, flags in parts]


def kept_share(rows: list[dict[str, Any]]) -> float | None:
    """The share of unmasked words that an LM repeated in order, over rows of a noise store; None if there are none.

    Words next to a gap are left out, because they may be parts of words.

    >>> kept_share([{"masked": "a very good <M> and so on", "text": "a good film and so on", "text_pair": None}])
    0.75
    """
    n_kept = n_repeated = 0
    for row in (row for row in rows if "<M>" in row["masked"]):
        words = ["", *row["masked"].replace("<M>", " <M> ").replace("<SEP>", " ").split(), ""]
        kept = [words[i] for i in range(1, len(words) - 1) if "<M>" not in words[i - 1 : i + 2]]
        written = f"{row['text']} {row['text_pair'] or ''}".split()
        matches = SequenceMatcher(None, kept, written, autojunk=False).get_matching_blocks()
        n_kept, n_repeated = n_kept + len(kept), n_repeated + sum(match.size for match in matches)
    return n_repeated / n_kept if n_kept else None
