"""`build_noise`: the noise of a run, for training and evaluation. `generate_noise`: noise for texts of your own.

Online sources need no preparation. For the others the LM is trained and its texts are generated, or found in the cache:

    <cache>/noise_lm/<key>/     the noise LM
    <cache>/noise/<key>/        its texts, a `NoiseStore`
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from ebmcal.data import as_dataset, dataset_fingerprint
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.modeling.pretrained import check_language_model
from ebmcal.noise.causal_lm import CARD, MODES
from ebmcal.noise.generation import Engine, SamplingSettings, fill_store, generate_locally, kept_share
from ebmcal.noise.lm_training import LmSettings, fit_noise_lm
from ebmcal.noise.masked_lm import MaskedLm
from ebmcal.noise.setting import LM_MODES, NoiseConfig, NoisePart, format_noise, parse_noise
from ebmcal.noise.splice import Splice
from ebmcal.noise.store import MARKER, NoiseStore
from ebmcal.noise.streams import NoiseSource, NoiseStream, OnlineStream, StoredStream, TextPair, Texts, mix
from ebmcal.noise.unrelated import OtherTexts, RandomWords
from ebmcal.progress import Reporter, make_reporter
from ebmcal.storage import TemporaryDirectory, fingerprint, locked, read_json, remove_temporary_files
from ebmcal.training.runtime import n_processes

#: Sources that need nothing but the training texts.
SOURCES_FROM_TEXTS: dict[str, type[NoiseSource]] = {"splice": Splice, "unrelated": RandomWords}

#: Held-out noise texts: as many as test texts, within these limits.
MIN_HELD_OUT, MAX_HELD_OUT = 50, 500

#: Texts that the words of the noise are compared with, and stored texts that the share of kept words is measured on.
MAX_COMPARED, N_KEPT = 20_000, 500

#: The most generated texts for a run unless `samples` is set.
MAX_SAMPLES = 2_000_000


def online_stream(noise: str, train: Dataset, seed: int) -> NoiseStream:
    """The stream of a `noise` setting for sources that are made from the texts alone: splice, unrelated, mixtures.

    >>> train = Dataset.from_dict({"text": ["one two three", "un deux trois"]})
    >>> online_stream("splice", train, seed=0).draw([0])[0].text in ("one two three", "un deux trois")
    False
    """
    parts = parse_noise(noise)
    others = [p.name for p in parts if p.source not in SOURCES_FROM_TEXTS or p.argument]
    if others:
        raise EbmcalError(
            f"{', '.join(others)}: only splice and unrelated are made from the texts alone. Generate noise of a "
            "language model first: ebmcal.generate_noise(texts, lm=…, count=…)."
        )
    texts = Texts(train)
    streams = [OnlineStream(p.name, SOURCES_FROM_TEXTS[p.source](), texts, seed) for p in parts]
    return mix(streams, [p.share for p in parts])


@dataclass(frozen=True)
class OnlineNoise:
    """A source that writes a text for every draw, with held-out noise for evaluation from texts no training uses."""

    part: NoisePart
    source: NoiseSource
    train: Texts
    unseen: Texts

    def stream(self, seed: int) -> NoiseStream:
        return OnlineStream(self.part.name, self.source, self.train, seed)

    def restricted_to(self, rows: Texts) -> "OnlineNoise":
        return replace(self, train=rows)

    def held_out(self, n: int, seed: int) -> list[TextPair]:
        rngs = [np.random.default_rng([seed, 23, i]) for i in range(n)]
        if isinstance(self.source, OtherTexts):
            return OtherTexts(self.unseen).write(self.train, rngs)
        return self.source.write(self.unseen, rngs)

    def examples(self, n: int) -> list[dict[str, Any]]:
        drawn = self.source.write(self.train, [np.random.default_rng([0, 29, i]) for i in range(n)])
        return [{"source": self.part.name, "text": text, "text_pair": pair} for text, pair in drawn]

    def facts(self) -> dict[str, Any]:
        return {}

    def reuse(self, n_draws: int) -> float:
        return min(1.0, float(n_draws))


@dataclass(frozen=True)
class StoredNoise:
    """A source with generated texts: the first `n_texts` of a store are for training, the rest is held out."""

    part: NoisePart
    store: NoiseStore
    card: dict[str, Any]
    n_texts: int
    source_ids: frozenset[str] | None = None  # only texts written from these sources; None: all

    def stream(self, seed: int | None) -> NoiseStream:
        """Shuffled by the seed; None keeps the order of the store."""
        table = self.store.table(self.n_texts, ["source_id", "text", "text_pair"])
        if self.source_ids is not None:
            table = table.filter(pc.is_in(table["source_id"], pa.array(sorted(self.source_ids), pa.string())))
        if not len(table):
            raise EbmcalError(f"The noise {self.part.name} has no text written from these rows. Generate more texts.")
        return StoredStream(self.part.name, table, seed)

    def restricted_to(self, rows: Texts) -> "StoredNoise":
        return replace(self, source_ids=frozenset(rows.ids))

    def held_out(self, n: int, seed: int) -> list[TextPair]:
        rows = self.store.table(self.n_texts + n).slice(self.n_texts).to_pylist()
        return [(row["text"], row["text_pair"]) for row in rows]

    def examples(self, n: int) -> list[dict[str, Any]]:
        first = {row["source_id"]: row for row in self.store.rows(8 * n) if row["sample"] == 0}
        shown = ("masked", "hidden", "text", "text_pair")
        return [{"source": self.part.name} | {k: row[k] for k in shown} for row in list(first.values())[:n]]

    def facts(self) -> dict[str, Any]:
        return {
            "n_texts": self.n_texts,
            "usable_share": self.store.usable_share,
            "rejected": self.store.rejected,
            "copies_of_source": self.store.copy_share,
            "kept_words": kept_share(self.store.rows(N_KEPT)),
            "lm": self.card,
            "sampling": self.store.identity,
        }

    def reuse(self, n_draws: int) -> float:
        return n_draws * self.part.share / self.n_texts


RunSource = OnlineNoise | StoredNoise


@dataclass(frozen=True)
class Noise:
    """The noise of a run: `stream(seed)` for a training, `held_out` for evaluation, `description` for reports.

    `held_out` is noise that no training uses: columns id, text, text_pair (pairs only) and source (a name).
    """

    sources: Sequence[RunSource]
    held_out: Dataset
    description: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.part.name for source in self.sources)

    def stream(self, seed: int) -> NoiseStream:
        """What a training with this seed draws from."""
        return mix([s.stream(seed) for s in self.sources], [s.part.share for s in self.sources])

    def restricted_to(self, rows: Dataset) -> "Noise":
        """The noise that is made from some of the training rows only, for cross-fitting.

        A noise LM was still trained on all texts (without their labels, unless it reads them).
        """
        return replace(self, sources=[source.restricted_to(Texts(rows)) for source in self.sources])

    def examples(self, n: int = 10) -> list[dict[str, Any]]:
        """Example texts of the sources in turn: source, text, text_pair; of an LM also masked and hidden."""
        by_source = [source.examples(n) for source in self.sources]
        return [row for rows in zip(*by_source, strict=False) for row in rows][:n]


def build_noise(
    config: NoiseConfig, train: Dataset, test: Dataset, label_names: Sequence[str], *, n_draws: int, cache_dir: Path,
    reporter: Reporter, engine: Engine = generate_locally,
) -> Noise:  # fmt: skip
    """The noise of a run with `n_draws` draws per training; generated, or found in the cache."""
    check_noise(config, is_pair="text_pair" in train.column_names, notify=reporter.info)
    n_held_out = min(MAX_HELD_OUT, max(MIN_HELD_OUT, len(test)))
    builder = _Builder(config, Texts(train), Texts(test), tuple(label_names), cache_dir, reporter, engine)
    sources, held_out, facts = [], [], {}
    for part in config.parts:
        n_texts = max(1, min(math.ceil(n_draws * part.share), config.samples or MAX_SAMPLES))
        source = builder.build(part, n_texts, n_held_out)
        texts = source.held_out(max(1, round(n_held_out * part.share)), config.seed)
        held_out += [(f"{part.name}-{i}", *text, part.name) for i, text in enumerate(texts)]
        facts[part.name] = {"share": part.share, "online": part.is_online}
        facts[part.name] |= describe_noise(texts, builder.train, builder.test) | source.facts()
        sources.append(source)
    reuse = max(source.reuse(n_draws) for source in sources)
    description = {"noise": format_noise(config.parts), "sources": facts, "reuse": round(reuse, 3)}
    names = ("id", "text", "text_pair", "source")
    columns = {name: [row[i] for row in held_out] for i, name in enumerate(names)}
    if not builder.train.is_pair:
        del columns["text_pair"]
    return Noise(sources, Dataset.from_dict(columns), description)


def describe_noise(noise: Sequence[TextPair], train: Texts, test: Texts) -> dict[str, Any]:
    """Noise next to test texts: words per text, share of words unknown from the training texts, share of copies."""
    known, unseen = (texts[range(min(len(texts), MAX_COMPARED))] for texts in (train, test))
    vocabulary, originals = {word for text in known for word in _words(text)}, set(known)
    facts: dict[str, Any] = {"copies": round(sum(text in originals for text in noise) / max(1, len(noise)), 4)}
    for suffix, texts in (("", noise), ("_of_data", unseen)):
        words = [_words(text) for text in texts]
        n_words, n_unknown = sum(map(len, words)), sum(w not in vocabulary for ws in words for w in ws)
        facts[f"words{suffix}"] = round(n_words / max(1, len(words)), 1)
        facts[f"unknown_words{suffix}"] = round(n_unknown / max(1, n_words), 4)
    return facts


def _words(text: TextPair) -> list[str]:
    return " ".join(part for part in text if part).lower().split()


def check_noise(config: NoiseConfig, *, is_pair: bool, notify: Callable[[str], None] = lambda line: None) -> None:
    """Raise, before any work, for sources that do not fit the data or need a model that is not available."""
    for part in config.parts:
        if part.source in LM_MODES:
            check_language_model(part.argument, config.trust_remote_code, notify)
            if MODES[part.source].pairs_only and not is_pair:
                raise EbmcalError(f"The noise source {part.source} needs pairs of texts, got single texts.")


@dataclass(frozen=True)
class _Builder:
    """Builds the sources of a config."""

    config: NoiseConfig
    train: Texts
    test: Texts
    label_names: tuple[str, ...]
    cache_dir: Path
    reporter: Reporter
    engine: Engine

    def build(self, part: NoisePart, n_texts: int, n_held_out: int) -> RunSource:
        config = self.config
        if not part.is_online:
            return self._build_stored(part, n_texts, n_held_out)
        if part.source == "mlm":
            source = MaskedLm.from_pretrained(
                part.argument, config.trust_remote_code, mask_ratio=config.mask_ratio, top_k=config.top_k,
                max_length=config.max_length,
            )  # fmt: skip
            return OnlineNoise(part, source, self.train, self.test)
        if not part.argument:
            return OnlineNoise(part, SOURCES_FROM_TEXTS[part.source](), self.train, self.test)
        others = Texts(as_dataset(Path(part.argument).expanduser(), reporter=self.reporter))
        if len(others) < 2:
            raise EbmcalError(f"{part.argument} has {len(others)} text; noise from a file needs at least two.")
        is_held_out = np.arange(len(others)) % 5 == 1
        used, unseen = (others.select(np.flatnonzero(chosen)) for chosen in (~is_held_out, is_held_out))
        return OnlineNoise(part, OtherTexts(used), self.train, unseen)

    def _build_stored(self, part: NoisePart, n_texts: int, n_held_out: int) -> StoredNoise:
        config, data = self.config, dataset_fingerprint(self.train.dataset)
        lm = LmSettings(
            name=part.argument, mode=part.source, mask_ratio=config.mask_ratio, steps=config.lm_steps,
            batch_size=config.lm_batch_size, learning_rate=config.lm_learning_rate, max_length=config.max_length,
            seed=config.seed, precision=config.precision, trust_remote_code=config.trust_remote_code,
            label_names=() if config.condition == "none" else self.label_names,
        )  # fmt: skip
        sampling = SamplingSettings(
            config.top_k, config.samples_per_mask, config.seed, config.precision, config.condition
        )
        identity = {"lm": lm.key(data), "data": data, "mode": part.source, **asdict(sampling)}
        directory = self.cache_dir / "noise" / fingerprint("noise", identity)
        n_total, lm_root = n_texts + n_held_out, self.cache_dir / "noise_lm"
        card = lm_root / lm.key(data) / "model" / CARD
        if card.is_file() and (directory / MARKER).is_file():  # no lock: the cache may be read-only
            store = NoiseStore.open(directory, identity)
            if len(store) >= n_total:
                return StoredNoise(part, store, read_json(card), n_texts)
        if n_processes() > 1:
            raise EbmcalError(
                f"The noise {part.name} has not been generated, which takes a single process. Run the same command "
                "once without torchrun, stop it when training starts, and run it again with torchrun."
            )
        lm_directory, facts = fit_noise_lm(lm, self.train, data, lm_root, self.reporter)
        waiting = "noise: waiting for {}, which generates it"
        with locked(directory, on_wait=lambda owner: self.reporter.info(waiting.format(owner))):
            remove_temporary_files(directory)
            store = NoiseStore.open(directory, identity)
            fill_store(store, lm_directory, self.train, n_total, sampling, self.reporter, self.engine)
        return StoredNoise(part, store, facts, n_texts)


def generate_noise(
    texts: Any,
    *,
    count: int,
    source: str | None = None,
    lm: str = "gpt2",
    mode: str = "infill",
    mask_ratio: float = 0.4,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    steps: int | None = None,
    max_length: int = 128,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    engine: Engine = generate_locally,
) -> Dataset:
    """Generate `count` noise texts similar to `texts`: a Dataset with the column text, and text_pair for pairs.

    Args:
        texts: A list of texts or of (text, text) pairs, a Dataset, a DataFrame, or a file.
        count: The number of texts. A training without repetition needs rows × epochs × noise_ratio.
        source: A noise setting such as "splice", "unrelated" or "splice 0.8, unrelated 0.2"; by default `mode:lm`.
        lm: The causal language model to finetune: a hub name, a directory, or `smollm2` (built in).
        mode: infill (the paper's), continue, plain or half.
        mask_ratio: The share of tokens that is masked, the paper's M.
        text_column: The column of the text.
        text_pair_column: The column of the second text, for pairs.
        steps: Training steps of the LM; by default until its held-out loss stops falling.
        max_length: The most tokens of a text.
        seed: The seed of the LM's training and of the samples.
        output: A directory to keep the LM and its texts in, so that the same call, or one for more texts, continues.
        progress: Show progress; by default on terminals and in notebooks.
        engine: Where texts are generated: in this process, or `ebmcal.noise.RayEngine(…)`.

    >>> noise = generate_noise(["one two three", "un deux trois"], source="splice", count=4)
    >>> noise.column_names, len(noise), noise["text"][0] in ("one two three", "un deux trois")
    (['text'], 4, False)
    """
    from ebmcal.config import load_config

    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise EbmcalError(f"count: expected an integer of at least 1, got {count!r}.")
    if source is None and mode not in LM_MODES:
        raise unknown_name("noise mode", str(mode), LM_MODES)
    noise = format_noise((NoisePart(mode, str(lm), 1.0),)) if source is None else source
    given = {"noise": noise, "mask_ratio": mask_ratio, "lm_steps": steps, "max_length": max_length, "noise_seed": seed}
    checked = load_config(overrides=given)
    config = NoiseConfig(
        noise=str(checked.noise), mask_ratio=mask_ratio, lm_steps=steps, max_length=max_length, seed=seed
    )
    directory = None if output is None else Path(output).expanduser()
    if directory is not None and directory.exists() and not directory.is_dir():
        raise EbmcalError(f"output {directory} is a file; expected a directory.")
    reporter = make_reporter(progress)
    dataset = as_dataset(texts, text_column=text_column, text_pair_column=text_pair_column)
    check_noise(config, is_pair="text_pair" in dataset.column_names, notify=reporter.info)
    temporary = TemporaryDirectory() if directory is None else None  # removed with this variable
    work = temporary.path if temporary else directory
    assert work is not None
    builder = _Builder(config, Texts(dataset), Texts(dataset), (), work, reporter, engine)
    n_texts = {part: count if part.share == 1 else math.ceil(count * part.share) + 2 for part in config.parts}
    sources = [builder.build(part, n, n_held_out=0) for part, n in n_texts.items()]
    streams = [s.stream(None) if isinstance(s, StoredNoise) else s.stream(seed) for s in sources]
    drawn = mix(streams, [part.share for part in config.parts]).draw(range(count))
    columns = {"text": [text.text for text in drawn]}
    return Dataset.from_dict(columns | ({"text_pair": [t.text_pair for t in drawn]} if builder.train.is_pair else {}))
