"""Masked-LM noise: an encoder's own masked-LM head fills in masked words of a training text, all at once.

Each word is masked with probability `mask_ratio`, at least one. Filled-in words do not see each other, which makes such
texts less natural than those of a causal LM. Unmasked words are kept exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ebmcal.modeling.pretrained import load_masked_lm
from ebmcal.noise.sampler import draw_from_top_k
from ebmcal.noise.streams import TextPair, Texts


class MaskedWord(NamedTuple):
    """The sentence of the pair that it is in, its characters, the positions of its tokens, and random numbers."""

    sentence: int
    start: int
    stop: int
    tokens: list[int]
    uniforms: np.ndarray


@dataclass(frozen=True)
class MaskedText:
    """A text as the encoder reads it."""

    text: TextPair
    ids: list[int]
    types: list[int]
    words: list[MaskedWord]


@dataclass(frozen=True)
class MaskedLm:
    """A noise source: training texts with some words replaced by what the encoder predicts."""

    model: nn.Module
    tokenizer: Any
    mask_ratio: float = 0.4
    top_k: int = 20
    max_length: int = 128

    @classmethod
    def from_pretrained(cls, name: str, trust_remote_code: bool = False, **settings: Any) -> "MaskedLm":
        """An encoder with its masked-LM head, by hub name or directory."""
        return cls(*load_masked_lm(name, trust_remote_code), **settings)

    def write(self, texts: Texts, rngs: Sequence[np.random.Generator]) -> list[TextPair]:
        return self.rewrite(texts[[int(rng.integers(len(texts))) for rng in rngs]], rngs)

    @torch.inference_mode()
    def rewrite(self, texts: Sequence[TextPair], rngs: Sequence[np.random.Generator]) -> list[TextPair]:
        """A noise text per text; a text without words is returned unchanged."""
        self.model.eval()
        masked = [self._mask(text, rng) for text, rng in zip(texts, rngs, strict=True)]
        places = [(i, token) for i, text in enumerate(masked) for word in text.words for token in word.tokens]
        if not places:
            return list(texts)
        logits = self._logits(masked, places)  # [m, V]
        is_first = torch.tensor([t == word.tokens[0] for text in masked for word in text.words for t in word.tokens])
        logits[:, self.tokenizer.all_special_ids] = -torch.inf
        logits[is_first.to(logits.device)[:, None] & self._continues_word.to(logits.device)] = -torch.inf
        uniforms = torch.from_numpy(np.concatenate([word.uniforms for text in masked for word in text.words]))
        tokens = iter(draw_from_top_k(logits, uniforms.to(logits.device), self.top_k).tolist())
        written = [[[next(tokens) for _ in word.tokens] for word in text.words] for text in masked]
        return [self._fill_in(text, words) for text, words in zip(masked, written, strict=True)]

    def _mask(self, text: TextPair, rng: np.random.Generator) -> MaskedText:
        encoding = self.tokenizer(*(t for t in text if t is not None), truncation=True, max_length=self.max_length)
        words: dict[tuple[int, int], list[int]] = {}  # (sentence, word) -> positions of its tokens
        for i, place in enumerate(zip(encoding.sequence_ids(0), encoding.word_ids(0), strict=True)):
            if None not in place:
                words.setdefault(place, []).append(i)
        is_masked = rng.random(len(words)) < self.mask_ratio
        if len(words) and not is_masked.any():
            is_masked[rng.integers(len(words))] = True
        ids, chosen = list(encoding["input_ids"]), []
        for ((sentence, word), tokens), hide in zip(words.items(), is_masked, strict=True):
            if hide:
                span = encoding.word_to_chars(0, word, sentence)
                chosen.append(MaskedWord(sentence, span.start, span.end, tokens, rng.random(len(tokens))))
                for token in tokens:
                    ids[token] = self.tokenizer.mask_token_id
        return MaskedText(text, ids, list(encoding.get("token_type_ids") or [0] * len(ids)), chosen)

    def _logits(self, masked: list[MaskedText], places: list[tuple[int, int]]) -> Tensor:
        """Logits at (text, token) places: [m, V]. The output layer, as large as the vocabulary, sees only those."""
        longest, device = max(len(text.ids) for text in masked), self.model.device
        pad = self.tokenizer.pad_token_id or 0
        inputs = {
            "input_ids": [text.ids + [pad] * (longest - len(text.ids)) for text in masked],
            "attention_mask": [[1] * len(text.ids) + [0] * (longest - len(text.ids)) for text in masked],
        }
        if getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = [text.types + [0] * (longest - len(text.ids)) for text in masked]
        rows, columns = torch.tensor(places, device=device).T
        output_layer = self.model.get_output_embeddings()
        if output_layer is None:
            return self._forward(inputs)[rows, columns]
        hook = output_layer.register_forward_pre_hook(lambda _, states: (states[0][rows, columns],))
        try:
            return self._forward(inputs)
        finally:
            hook.remove()

    def _forward(self, inputs: dict[str, list[list[int]]]) -> Tensor:
        tensors = {name: torch.tensor(values, device=self.model.device) for name, values in inputs.items()}
        return self.model(**tensors).logits

    def _fill_in(self, masked: MaskedText, written: list[list[int]]) -> TextPair:
        first, second = masked.text
        texts = [first, second or ""]
        # From the end, so that the places of the words before stay right.
        for word, ids in sorted(zip(masked.words, written, strict=True), key=lambda item: -item[0].start):
            replacement = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False).strip()
            text = texts[word.sentence]
            texts[word.sentence] = text[: word.start] + replacement + text[word.stop :]
        return texts[0], None if second is None else texts[1]

    @cached_property
    def _continues_word(self) -> Tensor:
        """Tokens that can only continue a word: bool [V]."""
        tokens = self.tokenizer.convert_ids_to_tokens(range(self.model.config.vocab_size))
        return torch.tensor([token is None or token.startswith("##") for token in tokens])
