"""Filling a noise store: masks, samples and decodes one shard at a time. Anyone may make any shard.

An engine makes the shards that a store lacks: `here` in this process, `ebmcal.noise.on_ray` on a cluster.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebmcal.data import Texts
from ebmcal.noise.hardness import FEW_KEPT, KEPT_FROM, LOSES_WORDS, kept_share
from ebmcal.noise.lm import NoiseLm
from ebmcal.noise.masking import Markers, Piece, find_mode
from ebmcal.noise.sampler import Row, sample
from ebmcal.noise.store import FIT_LONGER, MANY_UNFINISHED, NoiseSettings, NoiseStore, Shard, sources_of
from ebmcal.progress import Reporter
from ebmcal.training.running import uses_bf16

SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’)\]]*(?=\s|$)")

#: Sources that are written where only some texts of a shard are wanted, over those that would do if all were usable.
SPARE = 1.1

#: (store, folder of the noise LM, texts, texts wanted) -> shards with their numbers as they are finished, in any order.
#: Each is in the store before the engine is asked for the next.
Engine = Callable[[NoiseStore, Path, Texts, int], Iterator[tuple[int, Shard]]]


def here(store: NoiseStore, lm_folder: Path, texts: Texts, n_wanted: int) -> Iterator[tuple[int, Shard]]:
    """The engine that works in this process, one shard after the other."""
    settings = store.settings
    lm = load_for_sampling(lm_folder, settings)
    for number, n_texts in store.next_shards(n_wanted):
        yield number, make_shard(lm, texts, number, settings, n_texts)


def fill(
    store: NoiseStore, lm_folder: Path, texts: Texts, n_wanted: int, reporter: Reporter, engine: Engine = here
) -> None:
    """Make what is missing until the store has `n_wanted` texts; one that has more keeps them."""
    damaged = store.drop_damaged()
    if damaged:
        reporter.say(f"noise: damaged and made again: {', '.join(damaged)}")
    if store.has_texts(n_wanted):
        reporter.say(f"noise: {len(store)} texts are there already")
        return
    store.check_usable()
    with reporter.stage("noise", n_wanted) as advance:
        advance(min(len(store), n_wanted))
        warned, made = False, []
        for number, shard in engine(store, lm_folder, texts, n_wanted):
            advance(store.add(number, shard, n_wanted))
            made.append(number)
            store.check_usable()
            unfinished = shard.unfinished_share()
            if unfinished > MANY_UNFINISHED and not warned:
                warned = True
                reporter.say(f"noise: {unfinished:.0%} of the samples of a shard did not end. {FIT_LONGER}")
            kept = kept_share(shard.rows[:KEPT_FROM]) if len(made) == 1 else None
            if kept is not None and kept < FEW_KEPT:
                reporter.say(f"noise: the LM wrote {kept:.0%} of the words again that it was to keep. {LOSES_WORDS}")
        store.cut(n_wanted, filter(store.has, made))
    reporter.say(
        f"noise: {len(store)} texts, {store.identical_share:.1%} identical to their source, "
        f"thrown away: {store.thrown_away() or 'none'}"
    )


def load_for_sampling(folder: Path, settings: NoiseSettings) -> NoiseLm:
    """The noise LM on the GPU if there is one, in the precision that is quickest there."""
    lm = NoiseLm.load(folder)
    if torch.cuda.is_available():
        lm.model.to("cuda")
    if uses_bf16(settings.precision):
        lm.model.to(torch.bfloat16)
    return lm


@dataclass(frozen=True)
class Sources:
    """What a shard is written from: all that its maker needs besides the LM."""

    round: int
    positions: list[int]  # in the split; masks and random numbers are keyed by them
    ids: list[int]
    labels: list[int]
    texts: list[tuple[str, str | None]]

    def part(self, start: int, stop: int) -> "Sources":
        some = slice(start, stop)
        return Sources(self.round, self.positions[some], self.ids[some], self.labels[some], self.texts[some])


def gather(texts: Texts, number: int, settings: NoiseSettings) -> Sources:
    """The sources of a shard."""
    round_, positions = sources_of(number, len(texts), settings)
    ids, labels = (column[positions].tolist() for column in (texts.ids, texts.labels))
    return Sources(round_, positions.tolist(), ids, labels, texts.rows(positions))


def make_shard(lm: NoiseLm, texts: Texts, number: int, settings: NoiseSettings, n_texts: int | None = None) -> Shard:
    """A shard: a pure function of the LM, the texts, the number and the settings.

    With `n_texts`, it is written up to where it has more texts than that. Which samples are drawn together may then
    differ, and with it how their logits are rounded.
    """
    sources = gather(texts, number, settings)
    n_sources, done, shard = len(sources.positions), 0, Shard([], {})
    while done < n_sources and (n_texts is None or len(shard.rows) <= n_texts):
        n_missing = math.inf if n_texts is None else n_texts + 1 - len(shard.rows)
        n_more = max(SPARE * n_missing / settings.samples_per_mask, done)  # at least as many as so far
        stop = math.ceil(min(n_sources, done + n_more))
        shard = _joined(shard, rewrite_sources(lm, sources.part(done, stop), settings))
        done = stop
    return shard._replace(is_whole=done == n_sources)


def _joined(first: Shard, second: Shard) -> Shard:
    thrown_away = dict(first.thrown_away)
    for reason, places in second.thrown_away.items():
        thrown_away[reason] = thrown_away.get(reason, []) + [len(first.rows) + n for n in places]
    return Shard(first.rows + second.rows, thrown_away)


def rewrite_sources(lm: NoiseLm, sources: Sources, settings: NoiseSettings) -> Shard:
    """Mask the sources, have the LM write them anew, keep what is usable."""
    encoded = lm.encode(sources.texts)
    usable = [i for i, ids in enumerate(encoded) if len(ids)]
    keys = [[sources.round, position] for position in sources.positions]
    masks = [lm.draw_mask(encoded[i], np.random.default_rng([settings.seed, 13, *keys[i]])) for i in usable]
    told = [told_label(sources.labels[i], len(lm.label_names), settings, keys[i]) for i in usable]
    layouts = [lm.lay_out(encoded[i], mask, label) for i, mask, label in zip(usable, masks, told, strict=True)]
    uniforms = [
        [_uniforms([settings.seed, 17, *keys[i], k], pieces) for k in range(settings.samples_per_mask)]
        for i, pieces in zip(usable, layouts, strict=True)
    ]
    written = sample(lm, layouts, uniforms, top_k=settings.top_k)
    rows: list[dict[str, Any]] = []
    thrown_away = defaultdict(list)
    prepared = iter(zip(masks, told, written, strict=True))
    for i, ids in enumerate(encoded):
        if not len(ids):
            thrown_away["empty_source"].append(len(rows))
            continue
        masked, label, samples = next(prepared)
        origin = {
            "source_id": sources.ids[i], "round": sources.round, "told": None if label < 0 else lm.label_names[label],
            "masked": show_masked(lm, ids, masked), "hidden": show_hidden(lm, ids, masked),
        }  # fmt: skip
        for k, row in enumerate(samples):
            text, reason = decode(lm, row, is_pair=sources.texts[i][1] is not None)
            if reason:
                thrown_away[reason].append(len(rows))
                continue
            same = row.text == ids.tolist()
            rows.append(origin | {"sample": k, "text": text[0], "text_pair": text[1], "identical": same})
    return Shard(rows, dict(thrown_away))


def told_label(own: int, n_labels: int, settings: NoiseSettings, key: list[int]) -> int:
    """The label that the LM is told before it writes: the source's own, or another; -1 for none.

    >>> told_label(0, 2, NoiseSettings(condition="other"), [0, 0])
    1
    """
    if settings.condition != "other" or own < 0 or n_labels < 2:
        return own if settings.condition == "own" else -1
    return (own + 1 + int(np.random.default_rng([settings.seed, 19, *key]).integers(n_labels - 1))) % n_labels


def decode(lm: NoiseLm, row: Row, is_pair: bool) -> tuple[tuple[str, str | None], str | None]:
    """The text of a sample, or why it is thrown away."""
    parts = split_at(row.text, lm.markers.separator)
    if row.unfinished and not find_mode(lm.mode).cut_back:
        return ("", None), "unfinished"
    if len(parts) != (2 if is_pair else 1):
        return ("", None), "separator"
    texts = [lm.decode(part) for part in parts]
    if row.unfinished:
        kept = lm.decode(split_at(row.pieces[-1].kept, lm.markers.separator)[-1])
        texts[-1] = cut_back(texts[-1], len(kept))
        if not texts[-1]:
            return ("", None), "unfinished"
    if not all(texts):
        return ("", None), "empty"
    return (texts[0], texts[1] if is_pair else None), None


def cut_back(text: str, n_kept: int) -> str:
    """A text that found no end, up to its first line end or last sentence end behind `n_kept` characters; else nothing.

    >>> cut_back("A fine film. It is long. And then", 6), cut_back("A fine film and then", 6)
    ('A fine film. It is long.', '')
    """
    line, line_end, _ = text[n_kept:].partition("\n")
    if line_end and line.strip():
        return (text[:n_kept] + line).rstrip()
    ends = [match.end() for match in SENTENCE_END.finditer(text, n_kept)]
    return text[: ends[-1]] if ends else ""


def split_at(ids: list[int], separator: int) -> list[list[int]]:
    """Cut a list at every separator.

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
    """The masked text as a reader sees it: <M> for a gap, <SEP> between the sentences."""
    return "".join(_name(lm.markers, lm.tokenizer, p) for p in _runs(ids, masked)).strip()


def show_hidden(lm: NoiseLm, ids: np.ndarray, masked: np.ndarray) -> list[str]:
    """The words behind each gap."""
    return [lm.decode(run) for run, is_gap in _runs(ids, masked) if is_gap]


def _runs(ids: np.ndarray, masked: np.ndarray) -> list[tuple[list[int], bool]]:
    edges = np.flatnonzero(np.diff(masked.astype(np.int8))) + 1
    return [
        (part.tolist(), bool(flag[0])) for part, flag in zip(np.split(ids, edges), np.split(masked, edges), strict=True)
    ]


def _name(markers: Markers, tokenizer: Any, run: tuple[list[int], bool]) -> str:
    ids, is_gap = run
    return " <M>" if is_gap else tokenizer.decode(ids, skip_special_tokens=False)


def _uniforms(key: list[int], pieces: list[Piece]) -> np.ndarray:
    """The random numbers of a sample; their number bounds its tokens: half as many again as the source has there."""
    n_written = sum(1 + len(p.written) for p in pieces if p.written is not None)
    return np.random.default_rng(key).random(n_written + n_written // 2 + 16)
