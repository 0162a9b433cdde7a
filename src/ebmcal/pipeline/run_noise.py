"""The noise of a run: the supplies that its trainings draw from, and held-out noise that every model is also run on.

Sources that are online need nothing; the others have their language model and their store made or found in the cache.
Between `stages`, which asks for noise, and `ebmcal.noise`, which makes it.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.config import ResolvedConfig
from ebmcal.data import TaskData, Texts, load_other_texts
from ebmcal.errors import EbmcalError
from ebmcal.metrics import ood_detection
from ebmcal.models.loading import best_device, check_language_model, load_encoder, load_tokenizer
from ebmcal.models.packing import packs, use_packing
from ebmcal.models.scoring import features
from ebmcal.models.tokens import TokenTable, encode
from ebmcal.noise.filling import Engine, fill, here
from ebmcal.noise.fitting import NoiseLmSettings, fit
from ebmcal.noise.hardness import FOLDS, KEPT_FROM, describe, kept_share, probe
from ebmcal.noise.lm import CARD
from ebmcal.noise.masking import find_mode
from ebmcal.noise.mlm import Refill, masked_lm
from ebmcal.noise.sources import FROM_TEXTS, OnlineSource, Others, Row
from ebmcal.noise.store import RECORD, NoiseSettings, NoiseStore
from ebmcal.noise.supply import Fresh, Mixture, Stored
from ebmcal.noise_setting import NoisePart, parse_noise
from ebmcal.pipeline.cache import cache_of, made_once, tokens_from, tokens_of
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json, write_json
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.sealing import damage
from ebmcal.training.plan import NoiseSupply, Tokens, plan_of
from ebmcal.training.processes import n_processes

#: Noise texts that every model is also run on; no training sees them. As many as test rows, between these.
FEWEST_HELD_OUT, HELD_OUT = 50, 500

#: Examples that a run folder shows.
EXAMPLES = 20


@dataclass(frozen=True)
class HeldOut:
    """Noise that no training sees: made from test texts, or the last texts of a store."""

    texts: list[Row]
    ids: list[str]  # source-number
    groups: np.ndarray  # [n], texts that are made of the same ones have the same
    table: TokenTable
    key: str

    def rows_of(self, source: str) -> np.ndarray:
        """Which of the texts are of a source: [n]."""
        return np.flatnonzero([i.rpartition("-")[0] == source for i in self.ids])


@dataclass(frozen=True)
class OnlineNoise:
    """A source of a run that writes texts as they are asked for."""

    part: NoisePart
    source: OnlineSource
    kept_back: Texts | None = None  # of a file that texts are taken from: those that no training gets

    def supply(self, texts: Texts, encode_rows: Any, seed: int) -> NoiseSupply:
        return Fresh(self.part.name, self.source, texts, encode_rows, seed)

    def unseen(self, test: Texts, n: int, seed: int) -> list[tuple[Row, int]]:
        """Texts that no training draws, each with the group of texts that it is made of."""
        pool = test if self.kept_back is None else self.kept_back
        n_groups = min(FOLDS, max(1, len(pool) // 2))
        found: list[tuple[Row, int]] = []
        for group in range(n_groups):
            texts = pool.take(np.arange(group, len(pool), n_groups))
            source = self.source if self.kept_back is None else Others(texts)
            rngs = [np.random.default_rng([seed, 23, i]) for i in range(group, n, n_groups)]
            found += [
                (written.row, group) for written in source.write_all(texts if source is self.source else test, rngs)
            ]
        return found

    def examples(self, train: Texts) -> list[dict[str, Any]]:
        rngs = [np.random.default_rng([0, 29, i]) for i in range(EXAMPLES)]
        empty: dict[str, Any] = {"source": None, "source_pair": None, "masked": self.part.name, "hidden": []}
        return [
            {**empty, "noise": text.row[0], "noise_pair": text.row[1]} for text in self.source.write_all(train, rngs)
        ]

    def facts(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class StoredNoise:
    """A source of a run whose texts a language model has written before; `table`: those that trainings draw."""

    part: NoisePart
    store: NoiseStore
    card: dict[str, Any]
    table: TokenTable

    def supply(self, texts: Texts, encode_rows: Any, seed: int) -> NoiseSupply:
        return Stored(self.part.name, self.table, seed)

    def unseen(self, test: Texts, n: int, seed: int) -> list[tuple[Row, int]]:
        """Texts that no training draws, each with the text that it was written from."""
        rows = list(self.store.rows(len(self.table) + n))[len(self.table) :]
        _, groups = np.unique([row["source_id"] for row in rows], return_inverse=True)
        return [((row["text"], row["text_pair"]), int(group)) for row, group in zip(rows, groups, strict=True)]

    def examples(self, train: Texts) -> list[dict[str, Any]]:
        return noise_examples(self.store, train)

    def facts(self) -> dict[str, Any]:
        return {
            "n_samples": len(self.table),
            "thrown_away": self.store.thrown_away(),
            "identical_to_source": self.store.identical_share,
            "kept": kept_share(self.store.rows(KEPT_FROM)),
            "perplexity": self.card["perplexity"],
            "perplexity_before": self.card["perplexity_before"],
            "lm_parameters": self.card["n_parameters"],
            "lm_seconds": self.card["seconds"],
            "settings": self.store.identity["settings"] | {k: self.card[k] for k in ("mode", "mask_ratio")},
        }


Source = OnlineNoise | StoredNoise


@dataclass(frozen=True)
class Noise:
    """The noise of a run."""

    config: ResolvedConfig
    train: Texts
    sources: tuple[Source, ...]
    held_out: HeldOut
    examples: list[dict[str, Any]]
    facts: dict[str, Any]

    @property
    def parts(self) -> list[NoisePart]:
        return [source.part for source in self.sources]

    def supply(self, seed: int) -> NoiseSupply:
        """What a training with this seed draws from."""
        encode_rows = partial(_encode, self.config, load_tokenizer(self.config.encoder, self.config.trust_remote_code))
        supplies = [source.supply(self.train, encode_rows, seed) for source in self.sources]
        return supplies[0] if len(supplies) == 1 else Mixture(supplies, [part.share for part in self.parts])

    def rounds(self, n_draws: int) -> float:
        """How often a training comes round the same noise text; at most 1 means never."""
        stored = [n_draws * s.part.share / len(s.table) for s in self.sources if isinstance(s, StoredNoise)]
        return max(stored, default=min(1.0, n_draws))


def check_noise(config: ResolvedConfig, data: TaskData, say: Callable[[str], None]) -> None:
    """Refuse, before any work, sources that cannot be had or do not fit the data, and noise that never comes."""
    if not plan_of(config, len(data.splits["train"]), seed=0).n_noise_draws:
        raise EbmcalError(
            f"noise-start {config.noise_start} leaves none of the {config.steps} steps to the noise; take it smaller."
        )
    for part in parse_noise(config.noise):
        if part.source == "far" and part.of:
            _others(config, part)
        if part.source == "mlm":
            _refill(config, part)
        if part.is_online:
            continue
        check_language_model(part.of, config.trust_remote_code, say)
        if find_mode(part.source).pairs_only and not data.is_pair:
            raise EbmcalError(
                f"The noise source {part.source!r} rewrites one sentence of a pair; this task has single texts."
            )


def make_noise(config: ResolvedConfig, data: TaskData, reporter: Reporter) -> Noise:
    """Everything that the trainings of a run need to draw noise: made, or found in the cache."""
    train = data.splits["train"]
    parts = parse_noise(config.noise)
    if n_processes() > 1:
        for part in parts:
            _require_made(config, part, data)
    sources = tuple(_prepare(config, part, data, reporter) for part in parts)
    held_out = _held_out(config, sources, data, reporter)
    examples = [row for source in sources for row in source.examples(train)]
    probes = _probes(config, sources, held_out, data, reporter)
    facts = {s.part.name: _facts(s, held_out, data) | {"probe": probes[s.part.name]} for s in sources}
    _say_hardness(probes, reporter)
    return Noise(config, train, sources, held_out, examples, facts)


def _prepare(config: ResolvedConfig, part: NoisePart, data: TaskData, reporter: Reporter) -> Source:
    if part.source == "far" and part.of:
        return OnlineNoise(part, *_others(config, part))
    if part.source == "mlm":
        return OnlineNoise(part, _refill(config, part))
    if part.is_online:
        return OnlineNoise(part, FROM_TEXTS[part.source](part.of))
    train = data.splits["train"]
    lm_folder, card = fit_noise_lm(config, part, data, reporter)
    wanted = noise_wanted(config, part, len(train))
    count = wanted + n_held_out(data)
    store = fill_noise_store(config, part, train, lm_folder, card, reporter, count=count)
    rows = ((row["text"], row["text_pair"]) for row in store.rows(wanted))
    table = tokens_from(rows, fingerprint("noise", store.key, wanted), config, reporter)
    return StoredNoise(part, store, card, table)


def _refill(config: ResolvedConfig, part: NoisePart) -> Refill:
    settings: dict[str, Any] = {"rounds": config.mlm_rounds, "order": config.mlm_order, "top_k": config.top_k}
    settings |= {"mask_ratio": config.mask_ratio, "max_length": config.max_length}
    return Refill(masked_lm(part.of, config.trust_remote_code, **settings))


def _others(config: ResolvedConfig, part: NoisePart) -> tuple[Others, Texts]:
    """The texts of a file for trainings, and every fifth one, which is kept back for the held-out noise."""
    given = _given_texts(config, part)
    if len(given) < 2:
        raise EbmcalError(f"The noise source {part.name} has {len(given)} text; it takes two at least.")
    is_kept_back = np.arange(len(given)) % 5 == 1
    return Others(given.take(np.flatnonzero(~is_kept_back))), given.take(np.flatnonzero(is_kept_back))


def _given_texts(config: ResolvedConfig, part: NoisePart) -> Texts:
    return load_other_texts(Path(part.of), cache_of(config), config.text_column, encoding=config.encoding)


def _encode(config: ResolvedConfig, tokenizer: Any, rows: Sequence[Row]) -> list[Tokens]:
    return [
        (np.asarray(ids, dtype=np.int32), np.asarray(types, dtype=np.uint8))
        for ids, types, _ in encode(rows, tokenizer, config.max_length)
    ]


def _held_out(config: ResolvedConfig, sources: Sequence[Source], data: TaskData, reporter: Reporter) -> HeldOut:
    """Noise in the shares of the sources, from texts or draws that no training has."""
    texts, ids, groups = [], [], []
    for source in sources:
        n = max(1, round(n_held_out(data) * source.part.share))
        for i, (row, group) in enumerate(source.unseen(data.splits["test"], n, config.noise_seed)):
            texts.append(row)
            ids.append(f"{source.part.name}-{i}")
            groups.append(group)
    key = fingerprint("held-out noise", texts)
    return HeldOut(texts, ids, np.array(groups), tokens_from(texts, key, config, reporter), key)


def _probes(
    config: ResolvedConfig, sources: Sequence[Source], held_out: HeldOut, data: TaskData, reporter: Reporter
) -> dict[str, float]:
    """How often features of the untouched encoder tell each source from data; kept in the cache.

    Held-out noise is made from test texts, so the data are calibration texts: a probe must not see a text on both
    sides.
    """
    table = tokens_of(data.splits["calibration"], config, reporter)
    rows = np.arange(min(len(table), HELD_OUT))
    key = fingerprint("probe by groups", config.encoder, config.max_length, held_out.key, data.fingerprint)
    place = cache_of(config) / "probes" / f"{key}.json"
    with contextlib.suppress(EbmcalError):  # absent or damaged
        if set(there := read_json(place)) == {s.part.name for s in sources}:
            return there
    encoder = load_encoder(config.encoder, data.label_names, config.trust_remote_code).to(best_device())
    if packs(encoder):
        use_packing(encoder)
    known, noise = features(encoder, table, rows), features(encoder, held_out.table)
    of = {s.part.name: held_out.rows_of(s.part.name) for s in sources}
    probes = {name: probe(known, noise[rows], held_out.groups[rows]) for name, rows in of.items()}
    with made_once(place, "probes", reporter):
        write_json(place, probes, checked=True)
    return probes


def _say_hardness(probes: dict[str, float], reporter: Reporter) -> None:
    for name, told_apart in probes.items():
        reporter.say(f"noise: {name} is told from data {told_apart:.0%} of the time by the untouched encoder")


def told_apart(folder: RunFolder, cell: Cell) -> dict[str, float]:
    """How often the energy of a trained model tells test texts from held-out noise, for each source."""
    test, held_out = (Predictions.read(folder.predictions(cell, split)) for split in ("test", "noise"))
    known, noise = test.require_energies(), held_out.require_energies()
    sources = np.array([i.rpartition("-")[0].removeprefix("noise-") for i in held_out.ids])
    return {
        str(name): round(ood_detection(-known, -noise[sources == name])["auroc"], 4) for name in dict.fromkeys(sources)
    }


def _facts(source: Source, held_out: HeldOut, data: TaskData) -> dict[str, Any]:
    """What a reader should know of a source."""
    noise = [held_out.texts[i] for i in held_out.rows_of(source.part.name)]
    facts = {"share": source.part.share, "online": source.part.is_online}
    return facts | describe(noise, data.splits["train"], data.splits["test"]) | source.facts()


def fit_noise_lm(
    config: ResolvedConfig, part: NoisePart, data: TaskData, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    """The folder and the card of the noise LM of a source of a resolved config."""
    settings, train, held_out = lm_settings(config, part, data), data.splits["train"], data.splits["calibration"]
    folder = cache_of(config) / "noise_lm" / settings.key(train)
    with made_once(folder, "noise LM", reporter):
        return folder, fit(settings, train, held_out, folder, reporter)


def fill_noise_store(
    config: ResolvedConfig, part: NoisePart, train: Texts, lm_folder: Path, card: dict[str, Any], reporter: Reporter,
    *, count: int, folder: Path | None = None, engine: Engine = here,
) -> NoiseStore:  # fmt: skip
    """The noise store of a source, with `count` texts at least."""
    identity = _identity(config, train, card, lm_folder.name)
    folder = folder or _store_folder(config, train, card, lm_folder.name)
    with made_once(folder, "noise", reporter):
        store = NoiseStore.open(folder, identity, reporter.say)
        fill(store, lm_folder, train, count, reporter, engine)
    return store


def _identity(config: ResolvedConfig, train: Texts, card: dict[str, Any], lm_key: str) -> dict[str, Any]:
    settings = NoiseSettings(
        config.top_k,
        config.samples_per_mask,
        seed=config.noise_seed,
        precision=config.precision,
        condition=config.noise_condition,
    )
    return settings.identity(train.fingerprint, card, lm_key)


def _store_folder(config: ResolvedConfig, train: Texts, card: dict[str, Any], lm_key: str) -> Path:
    return cache_of(config) / "noise" / fingerprint("noise", _identity(config, train, card, lm_key))


def _require_made(config: ResolvedConfig, part: NoisePart, data: TaskData) -> None:
    """Several processes only share a training: one of them making noise for hours would let the others time out."""
    if part.is_online:
        return
    settings, train = lm_settings(config, part, data), data.splits["train"]
    card = cache_of(config) / "noise_lm" / settings.key(train) / CARD
    if card.exists() and not damage(card.parent):
        folder = _store_folder(config, train, read_json(card), card.parent.name)
        wanted = noise_wanted(config, part, len(train)) + n_held_out(data)
        if (folder / RECORD).exists() and NoiseStore.open(folder).has_texts(wanted):
            return
    raise EbmcalError(
        f"The noise of {part.name} is not made yet, and several processes cannot make it together. "
        "Make it first, with the same settings: ebmcal noise sample …; then run this command again."
    )


def n_held_out(data: TaskData) -> int:
    """How many noise texts every model is also run on."""
    return min(HELD_OUT, max(FEWEST_HELD_OUT, len(data.splits["test"])))


def noise_files(config: ResolvedConfig) -> dict[str, str]:
    """The files that noise is taken from, as it is written, -> fingerprint of their texts."""
    parts = [part for part in parse_noise(config.noise) if part.source == "far" and part.of]
    return {part.name: _given_texts(config, part).fingerprint for part in parts}


def noise_wanted(config: ResolvedConfig, part: NoisePart, n_train: int) -> int:
    """Noise texts of a stored source for one training without a repeat, or the limit that was set."""
    draws = plan_of(config, n_train, seed=0).n_noise_draws
    return max(1, min(math.ceil(draws * part.share), config.noise_samples or 2_000_000))


def lm_settings(config: ResolvedConfig, part: NoisePart, data: TaskData) -> NoiseLmSettings:
    """The part of a resolved config that the noise LM of a source depends on."""
    batch_size, learning_rate = config.noise_lm_batch_size, config.noise_lm_learning_rate
    if batch_size is None or learning_rate is None:
        raise EbmcalError(f"The noise {config.noise!r} of this run has no language model; {part.name} asks for one.")
    return NoiseLmSettings(
        name=part.of,
        mode=part.source,
        mask_ratio=config.mask_ratio,
        steps=config.noise_lm_steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_length=config.max_length,
        seed=config.noise_seed,
        precision=config.precision,
        trust_remote_code=config.trust_remote_code,
        label_names=() if config.noise_condition == "none" else tuple(data.label_names),
    )


def noise_examples(store: NoiseStore, train: Texts, n: int = EXAMPLES) -> list[dict[str, Any]]:
    """One sample each of the first few sources, beside its source."""
    firsts = {row["source_id"]: row for row in store.rows(8 * n) if row["sample"] == 0}
    chosen = list(firsts.values())[:n]
    sources = train.rows([np.flatnonzero(train.ids == row["source_id"])[0] for row in chosen])
    return [
        {
            "source": text, "source_pair": pair, "masked": row["masked"], "hidden": row["hidden"],
            "noise": row["text"], "noise_pair": row["text_pair"],
        }
        for row, (text, pair) in zip(chosen, sources, strict=True)
    ]  # fmt: skip
