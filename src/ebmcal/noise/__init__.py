"""Noise texts for noise contrastive estimation: what the energy learns to distinguish from data.

This module has the `noise` setting (`parse_noise`), the noise of a run (`build_noise`) and noise for your own texts
(`generate_noise`). Sources: `sources` has what they share and `splice`, the default; `unrelated`; `masked_lm`; and a
causal LM: `causal_lm` masks texts and finetunes it, `sampler` draws from it, `generation` makes and stores its texts.

    splice 0.8, unrelated 0.2        infill:gpt2        splice, unrelated:texts.csv 0.1

The part after the colon is the language model, masked LM or file that a source needs; the number is its share of the
noise. torch is imported on first use, because `RunConfig` checks the setting without it.
"""

import importlib
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.training import recipe

if TYPE_CHECKING:
    from datasets import Dataset

    from ebmcal.data.splits import TextPair, Texts
    from ebmcal.noise.generation import Engine, RayEngine, StoredStream
    from ebmcal.noise.sources import NoiseSource, NoiseStream, OnlineStream
    from ebmcal.progress import Reporter
    from ebmcal.storage import PathLike

__all__ = [
    "LM_MODES", "Noise", "NoiseConfig", "NoisePart", "RayEngine", "build_noise", "check_noise", "format_noise",
    "generate_noise", "online_stream", "parse_noise",
]  # fmt: skip

#: What the causal noise LM reads, see `ebmcal.noise.causal_lm`. Its texts are generated first and stored.
LM_MODES = ("infill", "plain")

#: Sources that need nothing but the texts: name → module and class, which is imported on first use.
TEXT_SOURCES = {"splice": "sources:Splice", "unrelated": "unrelated:RandomWords"}

#: Sources that write a new text for each draw.
ONLINE_SOURCES = (*TEXT_SOURCES, "mlm")

SOURCES = (*ONLINE_SOURCES, *LM_MODES)

#: Held-out noise texts: as many as test texts, within these limits.
MIN_HELD_OUT, MAX_HELD_OUT = 50, 500

#: Texts that the words of the noise are compared with.
MAX_COMPARED = 20_000

#: Example texts for the report.
N_EXAMPLES = 10

#: The most generated texts for a run unless `samples` is set.
MAX_SAMPLES = 2_000_000


@dataclass(frozen=True)
class NoisePart:
    """A source of noise, the model or file it uses ("" for none), and its share of the noise."""

    source: str
    argument: str
    share: float

    @property
    def name(self) -> str:
        return f"{self.source}:{self.argument}" if self.argument else self.source

    @property
    def is_online(self) -> bool:
        """Whether texts are written when they are drawn; other sources generate and store them first."""
        return self.source in ONLINE_SOURCES


@dataclass(frozen=True)
class NoiseConfig:
    """Everything the noise depends on besides the data; `RunConfig` checks the values.

    `lm_steps` None trains the noise LM until its held-out loss stops falling. `samples` limits the number of stored
    texts (None: as many as a training draws, so that none is used twice).
    """

    noise: str = recipe.NOISE
    noise_ratio: int = recipe.NOISE_RATIO
    mask_ratio: float = recipe.MASK_RATIO
    top_k: int = recipe.TOP_K
    lm_steps: int | None = None
    lm_batch_size: int = recipe.LM_BATCH_SIZE
    lm_learning_rate: float = recipe.LM_LEARNING_RATE
    samples: int | None = None
    samples_per_mask: int = 4
    condition: str = "none"  # what the LM reads before a text: nothing, its "own" label, or an "other" one
    seed: int = 0
    max_length: int = recipe.MAX_LENGTH
    precision: str = "auto"
    trust_remote_code: bool = False

    @property
    def parts(self) -> tuple[NoisePart, ...]:
        return parse_noise(self.noise)


def parse_noise(text: str) -> tuple[NoisePart, ...]:
    """The sources named in a `noise` setting. Shares that are not given divide the rest equally; the sum is 1.

    >>> [(part.name, part.share) for part in parse_noise("splice 0.8, infill:gpt2")]
    [('splice', 0.8), ('infill:gpt2', 0.2)]
    """
    entries = [_parse_entry(piece.strip()) for piece in text.split(",") if piece.strip()]
    if not entries:
        raise EbmcalError(f"noise names no source. Available: {', '.join(SOURCES)}.")
    given = sum(share for *_, share in entries if share)
    n_open = sum(share is None for *_, share in entries)
    if given > 1 + 1e-6 or (n_open and given >= 1) or (not n_open and given < 1 - 1e-6):
        raise EbmcalError(f"The shares of noise {text!r} must add up to 1, and every source needs a share above 0.")
    rest = (1 - given) / max(1, n_open)
    parts = tuple(NoisePart(source, of, round(rest if share is None else share, 9)) for source, of, share in entries)
    if len({part.name for part in parts}) < len(parts):
        raise EbmcalError(f"noise {text!r} names a source twice. Name each source once, with its total share.")
    return parts


def _parse_entry(text: str) -> tuple[str, str, float | None]:
    match = re.fullmatch(r"([^\s:]+)(?::(.*?))?(?:\s+(\d*\.?\d+(?:e-\d+)?))?", text)
    if match is None or (match[3] and not 0 < float(match[3]) <= 1):
        raise EbmcalError(f"noise: expected SOURCE or SOURCE:NAME, then a share above 0 and at most 1, got {text!r}.")
    source, argument, share = match[1], match[2] or "", float(match[3]) if match[3] else None
    if source not in SOURCES:
        raise unknown_name("noise source", source, SOURCES)
    if source in (*LM_MODES, "mlm") and not argument:
        kind, example = ("a masked", "roberta-base") if source == "mlm" else ("a", "gpt2")
        raise EbmcalError(f"The noise source {source} needs {kind} language model, for example {source}:{example}.")
    if source in TEXT_SOURCES and source != "unrelated" and argument:  # unrelated may name a file
        raise EbmcalError(f"The noise source {source} takes no argument, got {argument!r}.")
    return source, argument, share


def format_noise(parts: tuple[NoisePart, ...]) -> str:
    """The canonical `noise` setting for these sources; equal shares are left out.

    >>> format_noise(parse_noise("splice .80,unrelated")), format_noise(parse_noise("splice 0.5, unrelated"))
    ('splice 0.8, unrelated 0.2', 'splice, unrelated')
    """
    are_equal = len({part.share for part in parts}) == 1
    return ", ".join(part.name if are_equal else f"{part.name} {part.share:.9g}" for part in parts)


@dataclass(frozen=True)
class MixtureStream:
    """Several streams, in proportion to their shares."""

    streams: "Sequence[NoiseStream]"
    shares: Sequence[float]

    def draw(self, numbers: Sequence[int]) -> "list[TextPair]":
        chosen = [allot(number, self.shares) for number in numbers]
        drawn: dict[int, TextPair] = {}
        for source, stream in enumerate(self.streams):
            places = [i for i, (s, _) in enumerate(chosen) if s == source]
            drawn |= zip(places, stream.draw([chosen[i][1] for i in places]), strict=True)
        return [drawn[i] for i in range(len(chosen))]


def allot(number: int, shares: Sequence[float]) -> tuple[int, int]:
    """The source that a draw falls to, and the number of the draw within that source.

    Of the first n draws every source has its share, to within one (two with more than three sources).

    >>> [allot(n, [0.75, 0.25]) for n in range(4)]
    [(0, 0), (0, 1), (1, 0), (0, 2)]
    """
    exact = [Fraction(share).limit_denominator(10_000) for share in shares]
    for source in range(len(exact) - 1):
        rate = exact[source] / sum(exact[source:])
        before, after = (int(n * rate + Fraction(1, 2)) for n in (number, number + 1))
        if after > before:
            return source, before
        number -= before
    return len(exact) - 1, number


def source_from_texts(name: str) -> "NoiseSource":
    """A source of `TEXT_SOURCES`."""
    module, _, kind = TEXT_SOURCES[name].partition(":")
    source: NoiseSource = getattr(importlib.import_module(f"ebmcal.noise.{module}"), kind)()
    return source


def online_stream(noise: str, train: "Dataset", seed: int) -> MixtureStream:
    """The stream of a `noise` setting for sources that are made from the texts alone, and mixtures of them.

    >>> from datasets import Dataset
    >>> train = Dataset.from_dict({"text": ["one two three", "un deux trois"]})
    >>> online_stream("splice", train, seed=0).draw([0])[0][0] in ("one two three", "un deux trois")
    False
    """
    from ebmcal.data.splits import Texts
    from ebmcal.noise.sources import OnlineStream

    parts, texts = parse_noise(noise), Texts(train)
    if others := [part.name for part in parts if part.source not in TEXT_SOURCES or part.argument]:
        raise EbmcalError(
            f"{', '.join(others)}: only {' and '.join(TEXT_SOURCES)} are made from the texts alone. Generate noise of "
            "a language model first: ebmcal.generate_noise(texts, lm=…, count=…)."
        )
    streams = [OnlineStream(source_from_texts(part.source), texts, seed) for part in parts]
    return MixtureStream(streams, [part.share for part in parts])


@dataclass(frozen=True)
class Noise:
    """The noise of a run: `stream(seed)` for a training, `held_out` for evaluation, `description` for reports.

    `held_out` is noise that no training uses: columns id, text, text_pair (pairs only) and source (a name). `examples`
    are texts of the sources in turn: source, text, text_pair; of an LM also masked and hidden.
    """

    streams: "Sequence[OnlineStream | StoredStream]"
    shares: Sequence[float]
    held_out: "Dataset"
    description: dict[str, Any]
    examples: list[dict[str, Any]]

    def stream(self, seed: int) -> MixtureStream:
        """What a training with this seed draws from."""
        return MixtureStream([replace(stream, seed=seed) for stream in self.streams], self.shares)

    def restricted_to(self, rows: "Dataset") -> "Noise":
        """The noise that is made from some of the training rows only, for cross-fitting.

        A noise LM was still trained on all texts (without their labels, unless it reads them).
        """
        from ebmcal.data.splits import Texts

        texts = Texts(rows)
        return replace(self, streams=[stream.restricted_to(texts) for stream in self.streams])


def check_noise(config: NoiseConfig, notify: Callable[[str], None] = lambda line: None) -> None:
    """Raise, before any work, for language models that are not available."""
    from ebmcal.modeling.pretrained import check_language_model

    for part in config.parts:
        if part.source in LM_MODES:
            check_language_model(part.argument, config.trust_remote_code, notify)


def build_noise(
    config: NoiseConfig, train: "Dataset", test: "Dataset", label_names: Sequence[str], *, n_draws: int,
    cache_dir: Path, reporter: "Reporter", engine: "Engine | None" = None,
) -> Noise:  # fmt: skip
    """The noise of a run with `n_draws` draws per training; generated, or found in the cache."""
    from datasets import Dataset

    from ebmcal.data.splits import Texts

    check_noise(config, reporter.info)
    made_from = Material(config, Texts(train), Texts(test), tuple(label_names), cache_dir, reporter, engine)
    n_held_out, limit = min(MAX_HELD_OUT, max(MIN_HELD_OUT, len(test))), config.samples or MAX_SAMPLES
    sources, held_out, facts, reuse = [], [], dict[str, Any](), min(1.0, float(n_draws))
    for part in config.parts:
        n_texts = max(1, min(math.ceil(n_draws * part.share), limit))
        source = build_source(part, made_from, n_texts, max(1, round(n_held_out * part.share)))
        sources.append(source)
        held_out += [(f"{part.name}-{i}", *text, part.name) for i, text in enumerate(source.held_out)]
        facts[part.name] = {"share": part.share, "online": part.is_online}
        facts[part.name] |= describe_noise(source.held_out, made_from.train, made_from.test) | source.facts
        if not part.is_online:
            reuse = max(reuse, n_draws * part.share / n_texts)
    description = {"noise": format_noise(config.parts), "sources": facts, "reuse": round(reuse, 3)}
    columns = dict(zip(("id", "text", "text_pair", "source"), map(list, zip(*held_out, strict=True)), strict=True))
    if not made_from.train.is_pair:
        del columns["text_pair"]
    streams, shares = [source.stream for source in sources], [part.share for part in config.parts]
    examples = [row for rows in zip(*(source.examples for source in sources), strict=False) for row in rows]
    return Noise(streams, shares, Dataset.from_dict(columns), description, examples[:N_EXAMPLES])


class Material(NamedTuple):
    """What the sources of a run are built from."""

    config: NoiseConfig
    train: "Texts"
    test: "Texts"
    label_names: tuple[str, ...]
    cache_dir: Path
    reporter: "Reporter"
    engine: "Engine | None" = None


class BuiltSource(NamedTuple):
    """A source of a run: what trainings draw, noise that none of them draws, facts and examples for the report."""

    stream: "OnlineStream | StoredStream"
    held_out: "list[TextPair]"
    facts: dict[str, Any]
    examples: list[dict[str, Any]]


def build_source(part: NoisePart, made_from: Material, n_texts: int, n_held_out: int) -> BuiltSource:
    """A source with so many stored texts (if it stores any) and held-out texts.

    Held-out noise of a source that writes a text for every draw is made from the test texts, which no training uses.
    """
    config = made_from.config
    if not part.is_online:
        from ebmcal.noise.generation import build_stored

        return build_stored(part, made_from, n_texts, n_held_out)
    from ebmcal.noise.sources import OnlineStream

    source, held_out_source = _online_sources(part, config, made_from.reporter)
    rngs = [np.random.default_rng([config.seed, 23, i]) for i in range(n_held_out)]
    held_out = held_out_source.write(made_from.test, rngs) if rngs else []
    drawn = source.write(made_from.train, [np.random.default_rng([0, 29, i]) for i in range(N_EXAMPLES)])
    examples = [{"source": part.name, "text": text, "text_pair": pair} for text, pair in drawn]
    return BuiltSource(OnlineStream(source, made_from.train, config.seed), held_out, {}, examples)


def _online_sources(part: NoisePart, config: NoiseConfig, reporter: "Reporter") -> "tuple[NoiseSource, NoiseSource]":
    """A source for training and one for held-out noise."""
    if part.source == "mlm":
        from ebmcal.noise.masked_lm import MaskedLm

        options = {name: getattr(config, name) for name in ("mask_ratio", "top_k", "max_length")}
        return (MaskedLm.from_pretrained(part.argument, config.trust_remote_code, **options),) * 2
    if part.argument:
        from ebmcal.noise.unrelated import read_texts

        return read_texts(part.argument, reporter)
    return (source_from_texts(part.source),) * 2


def describe_noise(noise: "Sequence[TextPair]", train: "Texts", test: "Texts") -> dict[str, Any]:
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


def _words(text: "TextPair") -> list[str]:
    return " ".join(part for part in text if part).lower().split()


def generate_noise(
    texts: Any,
    *,
    count: int,
    source: str | None = None,
    lm: str = "gpt2",
    mode: str = "infill",
    mask_ratio: float = recipe.MASK_RATIO,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    steps: int | None = None,
    max_length: int = recipe.MAX_LENGTH,
    seed: int = 0,
    output: "PathLike | None" = None,
    progress: bool | None = None,
    engine: "Engine | None" = None,
) -> "Dataset":
    """Generate `count` noise texts similar to `texts`: a Dataset with the column text, and text_pair for pairs.

    Args:
        texts: A list of texts or of (text, text) pairs, a Dataset, a DataFrame, or a file.
        count: The number of texts. A training without repetition needs rows × epochs × noise_ratio.
        source: A noise setting such as "splice", "unrelated" or "splice 0.8, unrelated 0.2"; by default `mode:lm`.
        lm: The causal language model to finetune: a hub name, a directory, or `smollm2` (built in).
        mode: infill (the paper's) or plain.
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
    from datasets import Dataset

    from ebmcal.config import load_config
    from ebmcal.data import as_dataset
    from ebmcal.data.splits import Texts
    from ebmcal.progress import make_reporter

    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise EbmcalError(f"count: expected an integer of at least 1, got {count!r}.")
    if source is None and mode not in LM_MODES:
        raise unknown_name("noise mode", str(mode), LM_MODES)
    noise = format_noise((NoisePart(mode, str(lm), 1.0),)) if source is None else source
    given: dict[str, Any] = {"mask_ratio": mask_ratio, "lm_steps": steps, "max_length": max_length}
    noise = load_config(overrides={"noise": noise, "noise_seed": seed, **given}).noise or noise  # checked
    config, reporter = NoiseConfig(noise=noise, seed=seed, **given), make_reporter(progress)
    check_noise(config, reporter.info)
    rows = Texts(as_dataset(texts, text_column=text_column, text_pair_column=text_pair_column))
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary if output is None else output).expanduser()
        if directory.is_file():
            raise EbmcalError(f"output {directory} is a file; expected a directory.")
        made_from = Material(config, rows, rows, (), directory, reporter, engine)
        counts = [count if part.share == 1 else math.ceil(count * part.share) + 2 for part in config.parts]
        sources = [build_source(part, made_from, n, 0) for part, n in zip(config.parts, counts, strict=True)]
        drawn = MixtureStream([source.stream for source in sources], [part.share for part in config.parts])
        texts = drawn.draw(range(count))
    columns = {"text": [text for text, _ in texts]}
    return Dataset.from_dict(columns | ({"text_pair": [pair for _, pair in texts]} if rows.is_pair else {}))


def __getattr__(name: str) -> Any:
    if name != "RayEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ebmcal.noise.generation import RayEngine

    return RayEngine
