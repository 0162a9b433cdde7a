"""The noise LM P_N(x | x^m): a causal language model with three added marker tokens, and how texts are masked for it.

    mode      the LM reads                        and writes
    infill    the masked text x^m, <WRITE>        the whole text (the paper's noise)
    continue  the beginning of the text           the rest of it; of a pair, the rest of the second sentence
    plain     <WRITE>                             the whole text
    half      a pair with one sentence masked     that sentence; the other one is kept

In x^m every run of masked tokens is one `<M>`. Each target is followed by the LM's end-of-text token. The two sentences
of a pair are joined by `<SEP>`, which is never masked. `lm_training` finetunes the LM, `sampler` draws from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebmcal.errors import EbmcalError
from ebmcal.modeling.pretrained import load_language_model, quiet
from ebmcal.noise.streams import TextPair
from ebmcal.storage import read_json, write_json

#: Settings and perplexity of a noise LM, next to its checkpoint.
CARD = "noise_lm.json"

Ids = list[int]

#: Tokens added to the LM's vocabulary, and the texts that their embeddings start from.
MARKERS = {"<M>": " ___", "<SEP>": "\n", "<WRITE>": "\n\n"}


@dataclass(frozen=True)
class Markers:
    """Token ids of the markers and of the LM's own end-of-text token."""

    mask: int
    separator: int
    write: int
    end: int


@dataclass(frozen=True)
class Layout:
    """What the LM reads and writes. The noise text is `before` + what it writes + `after`."""

    prompt: Ids
    target: Ids
    before: Ids = field(default_factory=list)
    after: Ids = field(default_factory=list)
    learn_from: int | None = None  # position of the first token with a loss; None: the first of the target

    def to_sequence(self, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids to train on and which of them have a loss: int [T], bool [T]."""
        ids = np.array([*self.prompt, *self.target, end], dtype=np.int64)
        learn_from = len(self.prompt) if self.learn_from is None else self.learn_from
        return ids, np.arange(len(ids)) >= learn_from


@dataclass(frozen=True)
class Mode:
    """How a text is masked and laid out: see `mask_tokens` and `lay_out_text` for the arguments."""

    draw_mask: Callable[[np.ndarray, float, np.random.Generator, int], np.ndarray]
    lay_out: Callable[[np.ndarray, np.ndarray, Markers, Ids], Layout]
    pairs_only: bool = False
    may_truncate: bool = False  # a text without an end may be cut at its last sentence


def mask_tokens(ids: np.ndarray, ratio: float, rng: np.random.Generator, separator: int) -> np.ndarray:
    """Mask each token with probability `ratio`, at least one and never the separator: ids [n] -> bool [n]."""
    masked = (rng.random(len(ids)) < ratio) & (ids != separator)
    candidates = np.flatnonzero(ids != separator)
    if not masked.any() and len(candidates):
        masked[rng.choice(candidates)] = True  # with nothing masked the LM would copy the text
    return masked


def mask_end(ids: np.ndarray, ratio: float, rng: np.random.Generator, separator: int) -> np.ndarray:
    """Mask the end of the text, or of the second sentence: Binomial(n, ratio) tokens, but at least one."""
    n_free = len(ids) - 1 - int(np.flatnonzero(ids == separator).max(initial=-1))  # after the last separator, or all
    n_masked = max(1, int((rng.random(n_free) < ratio).sum()))
    return np.arange(len(ids)) >= len(ids) - min(n_free, n_masked)


def mask_sentence(ids: np.ndarray, ratio: float, rng: np.random.Generator, separator: int) -> np.ndarray:
    """Mask the whole first or the whole second sentence of a pair."""
    is_second = np.cumsum(ids == separator) > 0
    return (is_second if rng.random() < 0.5 else ~is_second) & (ids != separator)


def merge_masks(ids: np.ndarray, masked: np.ndarray, mask_id: int) -> Ids:
    """The masked text x^m: each run of masked tokens becomes one mask token.

    >>> merge_masks(np.array([5, 6, 7, 8]), np.array([False, True, True, False]), mask_id=1)
    [5, 1, 8]
    """
    is_first = masked & ~np.concatenate([[False], masked[:-1]])
    return np.where(masked, mask_id, ids)[~masked | is_first].tolist()


def lay_out_text(ids: np.ndarray, masked: np.ndarray, markers: Markers, intro: Ids) -> Layout:
    """Read `intro` and the masked text (nothing if nothing is masked), write the whole text."""
    prefix = merge_masks(ids, masked, markers.mask) if masked.any() else []
    return Layout([*intro, *prefix, markers.write], ids.tolist())


def lay_out_end(ids: np.ndarray, masked: np.ndarray, markers: Markers, intro: Ids) -> Layout:
    """Read the beginning, write the rest. The loss covers both, as in ordinary LM training."""
    start = ids[~masked].tolist()
    return Layout([*intro, *start], ids[masked].tolist(), before=start, learn_from=len(intro))


def lay_out_sentence(ids: np.ndarray, masked: np.ndarray, markers: Markers, intro: Ids) -> Layout:
    """Read the pair with one sentence masked, write that sentence only."""
    prompt = [*intro, *merge_masks(ids, masked, markers.mask), markers.write]
    hidden = np.flatnonzero(masked)
    start, stop = (hidden[0], hidden[-1] + 1) if len(hidden) else (len(ids), len(ids))
    return Layout(prompt, ids[start:stop].tolist(), ids[:start].tolist(), ids[stop:].tolist())


MODES: dict[str, Mode] = {
    "infill": Mode(mask_tokens, lay_out_text),
    "continue": Mode(mask_end, lay_out_end, may_truncate=True),
    "plain": Mode(lambda ids, *_: np.zeros(len(ids), dtype=bool), lay_out_text),
    "half": Mode(mask_sentence, lay_out_sentence, pairs_only=True),
}


@dataclass(frozen=True)
class NoiseLm:
    """A language model, its tokenizer and how it writes noise. `label_names`: of an LM that reads the label first."""

    model: nn.Module
    tokenizer: Any
    markers: Markers
    mode: str
    mask_ratio: float
    max_length: int = 128
    label_names: tuple[str, ...] = ()

    def encode(self, text: TextPair) -> np.ndarray:
        """Token ids of a text, at most `max_length`; the sentences of a pair are joined by the separator."""
        first, second = ([] if t is None else self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in text)
        if text[1] is None:
            return np.array(first[: self.max_length], dtype=np.int64)
        room = self.max_length - 1
        if len(first) + len(second) > room:  # the longer sentence is truncated first
            first = first[: max(room - len(second), room // 2)]
            second = second[: room - len(first)]
        return np.array([*first, self.markers.separator, *second], dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()

    def draw_mask(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Which tokens to mask: bool [n]."""
        return MODES[self.mode].draw_mask(ids, self.mask_ratio, rng, self.markers.separator)

    def lay_out(self, ids: np.ndarray, masked: np.ndarray, label: int = -1) -> Layout:
        """Prompt and target of a masked text. A prompt starts with end-of-text, then the label if the LM reads one."""
        has_label = bool(self.label_names) and label >= 0
        intro = [self.markers.end, *(self._label_ids[label] if has_label else [])]
        return MODES[self.mode].lay_out(ids, masked, self.markers, intro)

    @property
    def n_positions(self) -> int:
        """The most tokens that the model can read."""
        config = self.model.config
        return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 1 << 30

    @cached_property
    def _label_ids(self) -> list[Ids]:
        return [self.tokenizer(f"{name}:\n", add_special_tokens=False)["input_ids"] for name in self.label_names]

    def save(self, directory: Path, card: dict[str, Any]) -> None:
        """Write the checkpoint, its tokenizer and the card into a directory."""
        with quiet():
            self.model.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)
        write_json(directory / CARD, card)

    @classmethod
    def load(cls, directory: Path) -> "NoiseLm":
        """Load what `save` wrote."""
        card = read_json(directory / CARD)
        try:
            with quiet():
                model = AutoModelForCausalLM.from_pretrained(directory, use_safetensors=True, dtype=torch.float32)
                tokenizer = AutoTokenizer.from_pretrained(directory)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise EbmcalError(f"{directory} is not a usable noise LM: {reason} Delete it to train it again.") from error
        settings = (card["mode"], card["mask_ratio"], card["max_length"], tuple(card["label_names"]))
        return cls(model, tokenizer, add_markers(model, tokenizer), *settings)

    @classmethod
    def from_pretrained(cls, name: str, trust_remote_code: bool = False, **settings: Any) -> "NoiseLm":
        """A language model that has not been finetuned: `settings` are mode, mask_ratio, max_length, label_names."""
        model, tokenizer = load_language_model(name, trust_remote_code)
        return cls(model, tokenizer, add_markers(model, tokenizer), **settings)


def add_markers(model: nn.Module, tokenizer: Any) -> Markers:
    """Add the marker tokens if they are missing; each starts from the embedding of a similar text."""
    if tokenizer.eos_token_id is None:
        raise EbmcalError(
            "The language model has no end-of-text token, so its texts would not end. Set eos_token in its "
            "tokenizer_config.json, or use another model such as gpt2 or smollm2."
        )
    similar = {name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in MARKERS.items()}
    new = [name for name in MARKERS if name not in tokenizer.get_vocab()]
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKERS)})
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for name in new:
                layer.weight[tokenizer.convert_tokens_to_ids(name)] = layer.weight[similar[name]].mean(dim=0)
    mask, separator, write = (tokenizer.convert_tokens_to_ids(name) for name in MARKERS)
    return Markers(mask, separator, write, end=tokenizer.eos_token_id)
