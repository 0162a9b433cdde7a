"""A language model in the middle of writing: rows side by side, a token a step, over a cache that rows enter and leave.

Rows are padded on the left, so that the newest token of each stands in the last column. Where the architecture lets us
(`PACKED_LANGUAGE_MODELS`), attention is ours: query heads that share keys and values go through one call as if they
were tokens of one length, so that nothing is copied for them, and the mask is made once a step, not once a layer.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import DynamicLayer

from ebmcal.noise.lm import PACKED_LANGUAGE_MODELS
from ebmcal.noise.masking import Ids

ATTENTION = "ebmcal_decoding"

#: Tokens that a cache makes room for at a time.
ROOM = 32


def grouped_attention(
    module: nn.Module,
    query: Tensor,  # [n, H, Q, D]
    key: Tensor,  # [n, Hkv, L, D]
    value: Tensor,
    attention_mask: Tensor | None,  # [n, 1, Q, L], added to the scores; None where each token sees all before it
    scaling: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of a prompt (Q > 1), or of one new token each, which sees everything that is not padding."""
    n, heads, length, size = query.shape
    if length > 1:
        mixed = F.scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=attention_mask is None, scale=scaling,
            enable_gqa=heads != key.shape[1],
        )  # fmt: skip
        return mixed.transpose(1, 2), None
    together = query.reshape(n, key.shape[1], -1, size)  # [n, Hkv, H / Hkv, D]
    # Two plain products: torch's fused kernel takes up to twice as long for so few tokens.
    scores = (together * (size**-0.5 if scaling is None else scaling)) @ key.mT  # [n, Hkv, H / Hkv, L]
    if attention_mask is not None:
        scores += attention_mask
    return (scores.softmax(dim=-1) @ value).reshape(n, 1, heads, size), None


AttentionInterface.register(ATTENTION, grouped_attention)


class RoomyLayer(DynamicLayer):
    """A growing cache that writes new tokens into spare room; the stock one copies all it holds at every token."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._hold([x[:, :, :0] for x in (key_states, value_states)], key_states.shape[2])
        length, n_new = self.get_seq_length(), key_states.shape[2]
        if self._first + length + n_new > self._held[0].shape[2]:
            self._hold((self.keys, self.values), length + n_new)
        start = self._first + length
        for held, new in zip(self._held, (key_states, value_states), strict=True):
            held[:, :, start : start + n_new] = new
        self._show(self._first, length + n_new)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        self._hold((self.keys[indices], self.values[indices]), self.get_seq_length())

    def replace(self, rows: Tensor, other: "RoomyLayer") -> None:
        """Put the rows of another layer in the place of these; the shorter ones get padding on the left."""
        longer = other.get_seq_length()
        if longer > self.get_seq_length():
            self._hold((self.keys, self.values), longer, longer)
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            mine[:, :, mine.shape[2] - longer :].index_copy_(0, rows, theirs)

    def trim(self, n: int) -> None:
        """Forget the first `n` columns; nothing is copied."""
        self._show(self._first + n, self.get_seq_length() - n)

    def _hold(self, states: Any, length: int, end: int | None = None) -> None:
        """Copy keys, values [n, Hkv, L, D] to where there is room behind `length`; they end at `end` or begin at 0."""
        self._held, room = [], length + ROOM
        for x, by_column in zip(states, (True, False), strict=True):
            n, heads, _, size = x.shape
            # Keys lie column by column, as their product with the queries reads them.
            held = x.new_empty((n, heads, size, room)).mT if by_column else x.new_empty((n, heads, room, size))
            start = 0 if end is None else end - x.shape[2]
            held[:, :, :start] = 0.0  # padding must be finite: it is multiplied by zero
            held[:, :, start : start + x.shape[2]] = x
            self._held.append(held)
        self._show(0, states[0].shape[2] if end is None else end)

    def _show(self, first: int, length: int) -> None:
        self._first = first
        self.keys, self.values = (held[:, :, first : first + length] for held in self._held)


def _empty_cache(config: Any) -> DynamicCache:
    """The cache that a model asks for (some layers may look back only so far), with room where it grows."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@dataclass
class Running:
    """Rows that are being written: what the model keeps of them, and its logits behind the newest token of each."""

    model: nn.Module
    n_positions: int
    cache: DynamicCache
    real: Tensor  # [n, L] bool, what is not padding
    logits: Tensor  # [n, V]

    @classmethod
    def start(cls, model: nn.Module, prompts: list[Ids], n_positions: int, pad: int) -> "Running":
        """Read the prompts."""
        longest, device = max(len(p) for p in prompts), model.device
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=device)
        real = torch.tensor([[False] * (longest - len(p)) + [True] * len(p) for p in prompts], device=device)
        running = cls(model, n_positions, _empty_cache(model.config), real[:, :0], torch.empty(0))
        running._read(ids, real)
        return running

    def feed(self, tokens: list[int]) -> None:
        """Read one token more in each row."""
        ids = torch.tensor(tokens, device=self.real.device)[:, None]
        self._read(ids, torch.ones_like(ids, dtype=torch.bool))

    def keep(self, rows: Tensor) -> None:
        """Only these rows, in this order; a row may come several times."""
        self.cache.batch_select_indices(rows)
        self.real, self.logits = self.real[rows], self.logits[rows]
        self._trim()

    @property
    def joins(self) -> bool:
        """Whether rows can be taken in, in the place of others."""
        return all(isinstance(layer, RoomyLayer) for layer in self.cache.layers)

    def replace(self, rows: Tensor, other: "Running") -> None:
        """Put the rows of another in the place of these; its logits stay with it."""
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            mine.replace(rows, theirs)
        length = max(self.real.shape[1], other.real.shape[1])
        mine, theirs = (F.pad(x.real, (length - x.real.shape[1], 0)) for x in (self, other))
        self.real = mine.index_copy(0, rows, theirs)
        self._trim()

    def _trim(self) -> None:
        """Forget columns on the left that are padding in every row."""
        n = int(self.real.any(dim=0).byte().argmax())
        if n and self.joins:
            self.real = self.real[:, n:]
            for layer in self.cache.layers:
                layer.trim(n)

    def _read(self, ids: Tensor, real: Tensor) -> None:
        """Read [n, Q] tokens."""
        self.real = torch.cat([self.real, real], dim=1)
        # Finished rows run on until they are dropped, possibly beyond the last position.
        positions = (self.real.cumsum(dim=1)[:, -ids.shape[1] :] - 1).clamp(min=0, max=self.n_positions - 1)
        out = self.model(
            input_ids=ids,
            attention_mask=self._mask(ids.shape[1]),
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = out.logits[:, -1]

    def _mask(self, n_new: int) -> Tensor | None:
        if self.model.config._attn_implementation != ATTENTION:
            return self.real.long()
        if bool(self.real.all()):
            return None
        seen = self.real[:, None, None]  # [n, 1, 1, L]
        if n_new > 1:  # a token of the padding sees itself: what sees nothing is not a number
            before = torch.ones(n_new, n_new, dtype=torch.bool, device=seen.device).tril()
            seen = (seen & before) | torch.eye(n_new, dtype=torch.bool, device=seen.device)
        return torch.zeros(seen.shape, dtype=self.model.dtype, device=seen.device).masked_fill(~seen, -torch.inf)


def prepare_decoding(model: nn.Module) -> None:
    """Use our attention for writing where the architecture allows it."""
    grows = all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)
    if model.config.model_type in PACKED_LANGUAGE_MODELS and grows:
        model.set_attn_implementation(ATTENTION)
