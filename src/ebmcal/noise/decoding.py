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
    mixed = F.scaled_dot_product_attention(together, key, value, attention_mask, scale=scaling)
    return mixed.reshape(n, 1, heads, size), None


AttentionInterface.register(ATTENTION, grouped_attention)


class RoomyLayer(DynamicLayer):
    """A growing cache that writes new tokens into spare room; the stock one copies all it holds at every token."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._held = [key_states.new_empty((*x.shape[:2], 0, x.shape[3])) for x in (key_states, value_states)]
        start, stop = self.get_seq_length(), self.get_seq_length() + key_states.shape[2]
        if stop > self._held[0].shape[2]:
            self._held = [_with_room([x[:, :, :start]], stop + ROOM) for x in self._held]
        for held, new in zip(self._held, (key_states, value_states), strict=True):
            held[:, :, start:stop] = new
        self._show(stop)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        length = self.get_seq_length()
        self._held = [_with_room([x[:, :, :length][indices]], length + ROOM) for x in self._held]
        self._show(length)

    def join(self, other: "RoomyLayer") -> None:
        """Take the rows of another layer in behind these; the shorter ones get padding on the left."""
        length = max(self.get_seq_length(), other.get_seq_length())
        pairs = ((self.keys, other.keys), (self.values, other.values))
        self._held = [_with_room(pair, length + ROOM, length) for pair in pairs]
        self._show(length)

    def _show(self, length: int) -> None:
        self.keys, self.values = (held[:, :, :length] for held in self._held)


def _with_room(parts: Any, length: int, end: int | None = None) -> Tensor:
    """States [n, Hkv, L, D], one below the other, that end at `end`, in a tensor of `length`."""
    first, n_rows = parts[0], sum(len(part) for part in parts)
    held = first.new_empty((n_rows, first.shape[1], length, first.shape[3]))
    row = 0
    for part in parts:
        stop = part.shape[2] if end is None else end
        held[row : row + len(part), :, : stop - part.shape[2]] = 0.0  # padding must be finite: it is multiplied by zero
        held[row : row + len(part), :, stop - part.shape[2] : stop] = part
        row += len(part)
    return held


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

    @property
    def joins(self) -> bool:
        """Whether rows can be taken in."""
        return all(isinstance(layer, RoomyLayer) for layer in self.cache.layers)

    def join(self, other: "Running") -> None:
        """Take the rows of another in behind these."""
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            mine.join(theirs)
        length = max(self.real.shape[1], other.real.shape[1])
        self.real = torch.cat([F.pad(x.real, (length - x.real.shape[1], 0)) for x in (self, other)])
        self.logits = torch.cat([self.logits, other.logits])

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
