"""Noise by a masked language model: some words of a text are hidden, and the encoder's own head fills them in again.

    1. each word is hidden with probability `mask_ratio`, all of its tokens together, one word at least;
    2. in each of `rounds` rounds some of the hidden words are filled in, drawn among the `top_k` likeliest tokens, and
       stay; the next round sees them.

With one round no filled word sees another, which the paper holds against such noise; with as many as there are words,
each sees all before it. `order` says which words come first: `random`, `left` to right, or those that the model is
surest of (`sure`). A text is a pure function of its row and its random generator; words that stay are kept to the byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ebmcal.errors import unknown_name
from ebmcal.models.masked import HEADS, load_masked_lm
from ebmcal.noise.masking import Ids
from ebmcal.noise.sampler import draw_from_top_k
from ebmcal.noise.sources import Row, TextRows, Written

ORDERS = ("random", "left", "sure")


@dataclass
class Word:
    """A hidden word: which text of the row it stands in, from which character to which, and where its tokens are."""

    part: int
    start: int
    stop: int
    tokens: Ids
    uniforms: np.ndarray  # one for each token
    written: Ids = field(default_factory=list)


@dataclass
class Hidden:
    """A row with hidden words, as the model reads it. Words are filled from the front of `words`."""

    row: Row
    ids: np.ndarray  # [L]
    types: np.ndarray  # [L]
    words: list[Word]


@dataclass(frozen=True)
class MaskedLm:
    """An encoder with its masked-LM head, and how it is used.

    `rewrite` takes rows and a random generator for each, and returns as many noise texts.
    """

    model: nn.Module
    tokenizer: Any
    mask_ratio: float = 0.4
    rounds: int = 1
    order: str = "random"
    top_k: int = 20
    max_length: int = 128

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown_name("order of filling words in", self.order, ORDERS)
        self.model.eval()

    @torch.inference_mode()
    def rewrite(self, rows: Sequence[Row], generators: Sequence[np.random.Generator]) -> list[Row]:
        """A noise text for each row: [n] -> [n]. A row without words comes back as it is."""
        hidden = [self._hide(row, rng) for row, rng in zip(rows, generators, strict=True)]
        for round_ in range(self.rounds):
            self._fill([h for h in hidden if any(not w.written for w in h.words)], self.rounds - round_)
        return [self._replace(h) for h in hidden]

    def _hide(self, row: Row, rng: np.random.Generator) -> Hidden:
        encoding = self.tokenizer(*(t for t in row if t is not None), truncation=True, max_length=self.max_length)
        places = zip(encoding.sequence_ids(0), encoding.word_ids(0), strict=True)
        tokens: dict[tuple[int, int], Ids] = {}
        for i, (part, word) in enumerate(places):
            if part is not None and word is not None:
                tokens.setdefault((part, word), []).append(i)
        chosen = rng.random(len(tokens)) < self.mask_ratio
        if len(tokens) and not chosen.any():
            chosen[rng.integers(len(tokens))] = True
        words = []
        for (part, number), where in (item for item, hide in zip(tokens.items(), chosen, strict=True) if hide):
            span = encoding.word_to_chars(0, number, part)
            words.append(Word(part, span.start, span.end, where, rng.random(len(where))))
        if self.order == "random":
            words = [words[i] for i in rng.permutation(len(words))]
        ids = np.array(encoding["input_ids"])
        ids[[t for word in words for t in word.tokens]] = self.tokenizer.mask_token_id
        types = np.array(encoding.get("token_type_ids") or np.zeros(len(ids), dtype=np.int64))
        return Hidden(row, ids, types, words)

    def _fill(self, hidden: list[Hidden], rounds_left: int) -> None:
        """Fill in so many of the words that the rounds that are left have as many each."""
        if not hidden:
            return
        open_ = [[word for word in h.words if not word.written] for h in hidden]
        where = [(i, token) for i, words in enumerate(open_) for word in words for token in word.tokens]
        logits = self._logits(hidden, where)  # [m, V]
        begins = torch.tensor([t == word.tokens[0] for words in open_ for word in words for t in word.tokens])
        logits[:, self._never] = -torch.inf
        logits[begins[:, None] & self._inside_words[None]] = -torch.inf
        uniforms = torch.from_numpy(np.concatenate([word.uniforms for words in open_ for word in words]))
        drawn = draw_from_top_k(logits, uniforms.to(logits.device), self.top_k).tolist()
        sureness = logits.float().softmax(dim=-1).amax(dim=-1).tolist() if self.order == "sure" else drawn
        at = 0
        for h, words in zip(hidden, open_, strict=True):
            found = []
            for place, word in enumerate(words):
                n = len(word.tokens)
                first = -float(np.mean(sureness[at : at + n])) if self.order == "sure" else place
                found.append((first, place, word, drawn[at : at + n]))
                at += n
            for _, _, word, tokens in sorted(found, key=lambda item: item[:2])[: -(-len(words) // rounds_left)]:
                word.written = tokens
                h.ids[word.tokens] = tokens

    def _logits(self, hidden: list[Hidden], where: list[tuple[int, int]]) -> Tensor:
        """Logits at these tokens of these rows: [m, V]; the head, which is large, sees no others."""
        longest, device = max(len(h.ids) for h in hidden), self.model.device
        ids = torch.full((len(hidden), longest), self.tokenizer.pad_token_id or 0)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, h in enumerate(hidden):
            n = len(h.ids)
            ids[i, :n], mask[i, :n], types[i, :n] = torch.from_numpy(h.ids), 1, torch.from_numpy(h.types)
        inputs = {"input_ids": ids, "attention_mask": mask}
        if getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = types
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        rows, columns = torch.tensor(where, device=device).T
        head = HEADS.get(self.model.config.model_type)
        if head is None:
            return self.model(**inputs).logits[rows, columns]
        return head(self.model, self.model.base_model(**inputs).last_hidden_state[rows, columns])

    def _replace(self, hidden: Hidden) -> Row:
        first, second = hidden.row
        texts = [first, second or ""]
        for word in sorted(hidden.words, key=lambda w: w.start, reverse=True):  # from the end: places stay right
            written = self.tokenizer.decode(word.written, clean_up_tokenization_spaces=False).strip()
            text = texts[word.part]
            texts[word.part] = text[: word.start] + written + text[word.stop :]
        return texts[0], None if second is None else texts[1]

    @cached_property
    def _never(self) -> list[int]:
        return list(self.tokenizer.all_special_ids)

    @cached_property
    def _inside_words(self) -> Tensor:
        """Tokens that only go on with a word: [V] bool."""
        tokens = self.tokenizer.convert_ids_to_tokens(range(self.model.config.vocab_size))
        return torch.tensor([t is None or t.startswith("##") for t in tokens])


@dataclass(frozen=True)
class Refill:
    """The online source: training texts of which the masked LM has rewritten some words."""

    lm: MaskedLm

    def write_all(self, texts: TextRows, rngs: Sequence[np.random.Generator]) -> list[Written]:
        rows = texts.rows([int(rng.integers(len(texts))) for rng in rngs])
        return [Written(row) for row in self.lm.rewrite(rows, rngs)]


def masked_lm(name: str, trust_remote_code: bool = False, **settings: Any) -> MaskedLm:
    """An encoder that comes with its masked-LM head, by hub name or folder, and how it is to be used."""
    return MaskedLm(*load_masked_lm(name, trust_remote_code), **settings)
