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

from ebmcal.data.splits import TextPair, Texts
from ebmcal.modeling.pretrained import load_masked_lm
from ebmcal.noise.sampler import draw_from_top_k
from ebmcal.training import recipe


class MaskedWord(NamedTuple):
    """The row and the sentence it is in, its characters, the positions of its tokens, and random numbers for them."""

    row: int
    sentence: int
    start: int
    stop: int
    tokens: list[int]
    uniforms: np.ndarray


@dataclass(frozen=True)
class MaskedLm:
    """A noise source: training texts with some words replaced by what the encoder predicts."""

    model: nn.Module
    tokenizer: Any
    mask_ratio: float = recipe.MASK_RATIO
    top_k: int = recipe.TOP_K
    max_length: int = recipe.MAX_LENGTH

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
        batch, words = self.mask(texts, rngs)
        if not words:
            return list(texts)
        logits = self.logits(batch, words)  # [m, V]
        is_first = torch.tensor([token == word.tokens[0] for word in words for token in word.tokens])
        logits[:, self.tokenizer.all_special_ids] = -torch.inf
        logits[is_first.to(logits.device)[:, None] & self._continues_word.to(logits.device)] = -torch.inf
        uniforms = torch.from_numpy(np.concatenate([word.uniforms for word in words])).to(logits.device)
        written = draw_from_top_k(logits, uniforms, self.top_k).split([len(word.tokens) for word in words])
        parts = [[first, second or ""] for first, second in texts]
        # From the end, so that the places of the words before stay right.
        for word, ids in sorted(zip(words, written, strict=True), key=lambda item: -item[0].start):
            text, new = parts[word.row][word.sentence], self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            parts[word.row][word.sentence] = text[: word.start] + new.strip() + text[word.stop :]
        return [(a, None if pair is None else b) for (a, b), (_, pair) in zip(parts, texts, strict=True)]

    def mask(self, texts: Sequence[TextPair], rngs: Sequence[np.random.Generator]) -> tuple[Any, list[MaskedWord]]:
        """The tokenised texts, padded, with masks in place of the chosen words; and these words."""
        firsts, seconds = (list(column) for column in zip(*texts, strict=True))
        pairs = None if seconds[0] is None else seconds
        options = {"truncation": True, "max_length": self.max_length, "padding": True, "return_tensors": "pt"}
        batch = self.tokenizer(firsts, pairs, **options)
        chosen: list[MaskedWord] = []
        for row, rng in enumerate(rngs):
            words: dict[tuple[int, int], list[int]] = {}  # (sentence, word) -> positions of its tokens
            for i, place in enumerate(zip(batch.sequence_ids(row), batch.word_ids(row), strict=True)):
                if None not in place:
                    words.setdefault(place, []).append(i)
            is_masked = rng.random(len(words)) < self.mask_ratio
            if len(words) and not is_masked.any():
                is_masked[rng.integers(len(words))] = True
            for ((sentence, word), tokens), hide in zip(words.items(), is_masked, strict=True):
                if hide:
                    span = batch.word_to_chars(row, word, sentence)
                    chosen.append(MaskedWord(row, sentence, span.start, span.end, tokens, rng.random(len(tokens))))
                    batch["input_ids"][row, tokens] = self.tokenizer.mask_token_id
        return batch, chosen

    def logits(self, batch: Any, words: list[MaskedWord]) -> Tensor:
        """Logits of the masked tokens: [m, V]. The output layer, as large as the vocabulary, sees only those."""
        places = torch.tensor([(word.row, token) for word in words for token in word.tokens], device=self.model.device)
        rows, columns = places.T
        names = ["input_ids", "attention_mask"]
        names += ["token_type_ids"] if getattr(self.model.config, "type_vocab_size", 0) > 1 else []
        inputs = {name: batch[name].to(self.model.device) for name in names if name in batch}
        output_layer = self.model.get_output_embeddings()
        if output_layer is None:
            return self.model(**inputs).logits[rows, columns]
        hook = output_layer.register_forward_pre_hook(lambda _, states: (states[0][rows, columns],))
        try:
            return self.model(**inputs).logits
        finally:
            hook.remove()

    @cached_property
    def _continues_word(self) -> Tensor:
        """Tokens that can only continue a word: bool [V]."""
        tokens = self.tokenizer.convert_ids_to_tokens(range(self.model.config.vocab_size))
        return torch.tensor([token is None or token.startswith("##") for token in tokens])
