"""`build_noise`: the noise of a run, for training and evaluation. `generate_noise`: noise for texts of your own.

Online sources need no preparation. For the others the LM is trained and its texts are generated, or found in the cache:

    <cache>/noise_lm/<key>/     the noise LM
    <cache>/noise/<key>/        its texts, a `NoiseStore`
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from ebmcal.data import as_dataset, dataset_fingerprint
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.modeling.pretrained import check_language_model
from ebmcal.noise.causal_lm import CARD
from ebmcal.noise.difficulty import describe_noise, probe_auroc
from ebmcal.noise.generation import Engine, SamplingSettings, fill_store, generate_locally
from ebmcal.noise.lm_fit import LmSettings, fit_noise_lm
from ebmcal.noise.masked_lm import MaskedLm
from ebmcal.noise.masking import find_mode
from ebmcal.noise.mixture import SOURCES_FROM_TEXTS, mix
from ebmcal.noise.setting import LM_MODES, NoiseConfig, NoisePart, format_noise
from ebmcal.noise.sources import OnlineNoise, RunSource, StoredNoise
from ebmcal.noise.store import MARKER, NoiseStore
from ebmcal.noise.texts import NoiseSource, NoiseStream, Texts
from ebmcal.noise.unrelated import OtherTexts
from ebmcal.progress import Reporter, make_reporter
from ebmcal.storage import TemporaryDirectory, fingerprint, locked, read_json, remove_temporary_files
from ebmcal.training.runtime import n_processes

#: Held-out noise texts: as many as test texts, within these limits.
MIN_HELD_OUT, MAX_HELD_OUT = 50, 500

#: Texts that the words of the noise are compared with.
MAX_COMPARED = 20_000

#: The most generated texts for a run unless `samples` is set.
MAX_SAMPLES = 2_000_000

#: Texts (strings or pairs of strings) -> features [n, H], for example of an encoder.
Embed = Callable[[Sequence[str | tuple[str, str]]], np.ndarray]


class Noise:
    """The noise of a run: `stream(seed)` for a training, `held_out()` for evaluation, `description` for reports."""

    def __init__(self, sources: Sequence[RunSource], held_out: Dataset, description: dict[str, Any]) -> None:
        self.sources, self._held_out, self.description = sources, held_out, description
        self.names = tuple(source.part.name for source in sources)

    def stream(self, seed: int) -> NoiseStream:
        """What a training with this seed draws from."""
        return mix([s.stream(seed) for s in self.sources], [s.part.share for s in self.sources])

    def restricted_to(self, rows: Dataset) -> "Noise":
        """The noise that is made from some of the training rows only, for cross-fitting.

        A noise LM was still trained on all texts (without their labels, unless it reads them).
        """
        sources = [source.restricted_to(Texts(rows)) for source in self.sources]
        return Noise(sources, self._held_out, self.description)

    def held_out(self) -> Dataset:
        """Noise that no training uses: columns id, text, text_pair (pairs only) and source (a name)."""
        return self._held_out

    def examples(self, n: int = 10) -> list[dict[str, Any]]:
        """Example texts of the sources in turn: source, text, text_pair; of an LM also masked and hidden."""
        by_source = [source.examples(n) for source in self.sources]
        return [row for rows in zip(*by_source, strict=False) for row in rows][:n]


def build_noise(
    config: NoiseConfig,
    train: Dataset,
    test: Dataset,
    label_names: Sequence[str],
    *,
    n_draws: int,
    cache_dir: Path,
    reporter: Reporter,
    embed: Embed | None = None,
    engine: Engine = generate_locally,
) -> Noise:
    """The noise of a run with `n_draws` draws per training; generated, or found in the cache.

    `embed` computes features for the difficulty probe: how well a linear classifier separates noise from data.
    """
    check_noise(config, is_pair="text_pair" in train.column_names, notify=reporter.info)
    n_held_out = min(MAX_HELD_OUT, max(MIN_HELD_OUT, len(test)))
    builder = _Builder(config, train, Texts(test), tuple(label_names), cache_dir, reporter, engine)
    sources = []
    for part in config.parts:
        n_texts = max(1, min(math.ceil(n_draws * part.share), config.samples or MAX_SAMPLES))
        sources.append(builder.build(part, n_texts, n_held_out))
    rows, groups = _held_out_rows(sources, n_held_out, config.seed)
    facts = {s.part.name: _describe(s, rows, groups, builder.train, builder.test, embed) for s in sources}
    for name, fact in facts.items():
        if fact.get("probe_auroc") is not None:
            reporter.info(f"noise {name}: AUROC {fact['probe_auroc']:.2f} of a linear probe on the untrained encoder")
    reuse = max(source.reuse(n_draws) for source in sources)
    description = {"noise": format_noise(config.parts), "sources": facts, "reuse": round(reuse, 3)}
    columns = ["id", "text", *(["text_pair"] if builder.train.is_pair else []), "source"]
    return Noise(sources, Dataset.from_dict({name: [row[name] for row in rows] for name in columns}), description)


def check_noise(config: NoiseConfig, *, is_pair: bool, notify: Callable[[str], None] = lambda line: None) -> None:
    """Raise, before any work, for sources that do not fit the data or need a model that is not available."""
    for part in config.parts:
        if part.source in LM_MODES:
            check_language_model(part.argument, config.trust_remote_code, notify)
            if find_mode(part.source).pairs_only and not is_pair:
                raise EbmcalError(f"The noise source {part.source} needs pairs of texts, got single texts.")


def noise_files(config: NoiseConfig) -> dict[str, str]:
    """Noise sources that read a file, and the fingerprints of its texts: a run depends on them."""
    files = [part for part in config.parts if part.source == "unrelated" and part.argument]
    return {part.name: dataset_fingerprint(as_dataset(Path(part.argument).expanduser())) for part in files}


@dataclass
class _Builder:
    """Builds the sources of a config."""

    config: NoiseConfig
    dataset: Dataset
    test: Texts
    label_names: tuple[str, ...]
    cache_dir: Path
    reporter: Reporter
    engine: Engine

    def __post_init__(self) -> None:
        self.train = Texts(self.dataset)

    def build(self, part: NoisePart, n_texts: int, n_held_out: int) -> RunSource:
        if not part.is_online:
            return self._build_stored(part, n_texts, n_held_out)
        if part.source == "mlm":
            config = self.config
            source: NoiseSource = MaskedLm.from_pretrained(
                part.argument, config.trust_remote_code, mask_ratio=config.mask_ratio, top_k=config.top_k,
                max_length=config.max_length,
            )  # fmt: skip
            return OnlineNoise(part, source, self.train, self.test)
        if part.argument:
            others = Texts(as_dataset(Path(part.argument).expanduser(), reporter=self.reporter))
            if len(others) < 2:
                raise EbmcalError(f"{part.argument} has {len(others)} text; noise from a file needs at least two.")
            is_held_out = np.arange(len(others)) % 5 == 1
            used, unseen = (others.select(np.flatnonzero(chosen)) for chosen in (~is_held_out, is_held_out))
            return OnlineNoise(part, OtherTexts(used), self.train, unseen)
        return OnlineNoise(part, SOURCES_FROM_TEXTS[part.source](), self.train, self.test)

    def _build_stored(self, part: NoisePart, n_texts: int, n_held_out: int) -> StoredNoise:
        config, data = self.config, dataset_fingerprint(self.dataset)
        lm_settings = LmSettings(
            name=part.argument, mode=part.source, mask_ratio=config.mask_ratio, steps=config.lm_steps,
            batch_size=config.lm_batch_size, learning_rate=config.lm_learning_rate, max_length=config.max_length,
            seed=config.seed, precision=config.precision, trust_remote_code=config.trust_remote_code,
            label_names=() if config.condition == "none" else self.label_names,
        )  # fmt: skip
        sampling = SamplingSettings(
            config.top_k, config.samples_per_mask, config.seed, config.precision, config.condition
        )
        identity = {"lm": lm_settings.key(data), "data": data, "mode": part.source, **asdict(sampling)}
        directory = self.cache_dir / "noise" / fingerprint("noise", identity)
        n_total = n_texts + n_held_out
        lm_root = self.cache_dir / "noise_lm"
        card = lm_root / lm_settings.key(data) / "model" / CARD
        if card.is_file() and (directory / MARKER).is_file():  # no lock: the cache may be read-only
            store = NoiseStore.open(directory, identity)
            if len(store) >= n_total:
                return StoredNoise(part, store, read_json(card), n_texts)
        if n_processes() > 1:
            raise EbmcalError(
                f"The noise {part.name} has not been generated, which takes a single process. Run the same command "
                "once without torchrun, stop it when training starts, and run it again with torchrun."
            )
        lm_directory, facts = fit_noise_lm(lm_settings, self.train, data, lm_root, self.reporter)
        waiting = "noise: waiting for {}, which generates it"
        with locked(directory, on_wait=lambda owner: self.reporter.info(waiting.format(owner))):
            remove_temporary_files(directory)
            store = NoiseStore.open(directory, identity)
            fill_store(store, lm_directory, self.train, n_total, sampling, self.reporter, self.engine)
        return StoredNoise(part, store, facts, n_texts)


def _held_out_rows(
    sources: Sequence[RunSource], n: int, seed: int
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Held-out noise in the shares of the sources, and the groups of each source's texts."""
    rows: list[dict[str, Any]] = []
    groups = {}
    for source in sources:
        name = source.part.name
        found = source.held_out(max(1, round(n * source.part.share)), seed)
        groups[name] = np.array([group for _, group in found])
        rows += [
            {"id": f"{name}-{i}", "text": text, "text_pair": pair, "source": name}
            for i, ((text, pair), _) in enumerate(found)
        ]
    return rows, groups


def _describe(
    source: RunSource, rows: list[dict[str, Any]], groups: dict[str, np.ndarray], train: Texts,
    test: Texts, embed: Embed | None,
) -> dict[str, Any]:  # fmt: skip
    name = source.part.name
    noise = [(row["text"], row["text_pair"]) for row in rows if row["source"] == name]
    known, unseen = (texts[range(min(len(texts), MAX_COMPARED))] for texts in (train, test))
    facts: dict[str, Any] = {"share": source.part.share, "online": source.part.is_online}
    facts |= describe_noise(noise, known, unseen) | source.facts()
    if embed is not None:
        # The noise was made from the other split: the probe must not see a text on both sides.
        data = (known if source.part.is_online else unseen)[:MAX_HELD_OUT]
        features = [embed([a if b is None else (a, b) for a, b in texts]) for texts in (data, noise)]
        facts["probe_auroc"] = probe_auroc(features[0], features[1], groups[name])
    return facts


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
        engine: Where texts are generated: in this process, or `ebmcal.noise.ray.RayEngine(…)`.

    >>> noise = generate_noise(["one two three", "un deux trois"], source="splice", count=4)
    >>> noise.column_names, len(noise), noise["text"][0] in ("one two three", "un deux trois")
    (['text'], 4, False)
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise EbmcalError(f"count: expected an integer of at least 1, got {count!r}.")
    if source is None and mode not in LM_MODES:
        raise unknown_name("noise mode", str(mode), LM_MODES)
    noise = format_noise((NoisePart(mode, str(lm), 1.0),)) if source is None else source
    config = NoiseConfig(noise=noise, mask_ratio=mask_ratio, lm_steps=steps, max_length=max_length, seed=seed)
    directory = None if output is None else Path(output).expanduser()
    if directory is not None and directory.exists() and not directory.is_dir():
        raise EbmcalError(f"output {directory} is a file; expected a directory.")
    reporter = make_reporter(progress)
    dataset = as_dataset(texts, text_column=text_column, text_pair_column=text_pair_column)
    check_noise(config, is_pair="text_pair" in dataset.column_names, notify=reporter.info)
    temporary = TemporaryDirectory() if directory is None else None
    work = temporary.path if temporary else directory
    assert work is not None
    builder = _Builder(config, dataset, Texts(dataset), (), work, reporter, engine)
    n_texts = {part: count if part.share == 1 else math.ceil(count * part.share) + 2 for part in config.parts}
    sources = [builder.build(part, n, n_held_out=0) for part, n in n_texts.items()]
    streams = [s.stream(None) if isinstance(s, StoredNoise) else s.stream(seed) for s in sources]
    drawn = mix(streams, [part.share for part in config.parts]).draw(range(count))
    columns = {"text": [text.text for text in drawn]}
    return Dataset.from_dict(columns | ({"text_pair": [t.text_pair for t in drawn]} if builder.train.is_pair else {}))
