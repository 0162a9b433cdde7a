"""Drawing texts from the noise LM: one prefill a prompt, shared by its samples; top-k only; finished rows dropped.

A prompt is a layout (`masking`): tokens that are read and gaps that are written, in turns. Every row advances by
one token a step, read or drawn, so rows of any layout run side by side. Randomness is keyed by the row: its uniform
numbers come from a counter-based generator, so a row does not depend on its neighbours' luck.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ebmcal.noise.lm import NoiseLm
from ebmcal.noise.masking import Ids, Markers, Piece, assemble

#: Rows are dropped from the batch when this share of it has finished.
DROP_AT = 0.25

#: Tokens that a cache makes room for at a time.
ROOM = 32


@dataclass
class Row:
    """A sample being written: what is left to read, what has been written in each gap."""

    prompt: int
    pieces: list[Piece]
    uniforms: np.ndarray  # [max_new]
    limit: int  # tokens it may draw
    room: int = 1 << 30  # tokens that fit behind the prompt
    pending: Ids = field(default_factory=list)  # tokens to be read before the next one is drawn
    written: list[Ids] = field(default_factory=lambda: [[]])
    n_drawn: int = 0
    n_fed: int = 0
    done: bool = False
    unfinished: bool = False

    def feed(self, drawn: int, markers: Markers) -> int:
        """Take a drawn token if one was due; return the token the LM sees next."""
        if self.n_fed >= self.room and not self.done:
            self.done = self.unfinished = True
        if self.done:
            return markers.end
        self.n_fed += 1
        if self.pending:
            return self.pending.pop(0)
        self.n_drawn += 1
        if drawn == markers.end:
            self._close_gap()
        else:
            self.written[-1].append(drawn)
            if self.n_drawn >= self.limit:
                self.done = self.unfinished = True
        return drawn

    def _close_gap(self) -> None:
        following = self.pieces[len(self.written)] if len(self.written) < len(self.pieces) else None
        if following is None or following.written is None:
            self.done = True
        else:
            self.pending = following.read
            self.written.append([])

    @property
    def text(self) -> Ids:
        return assemble(self.pieces, self.written)


def draw_from_top_k(logits: Tensor, uniforms: Tensor, k: int) -> Tensor:
    """Sample among the k largest logits by inverse CDF: logits [n, V], uniforms [n] in [0, 1) -> tokens [n].

    >>> draw_from_top_k(torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([0.5]), k=1).tolist()
    [1]
    """
    values, tokens = torch.topk(logits.float(), min(k, logits.shape[-1]), dim=-1)
    cumulative = torch.softmax(values, dim=-1).double().cumsum(dim=-1)
    # Rounding may leave the last sum below 1; scaling by it keeps the last token reachable and no other beyond it.
    chosen = torch.searchsorted(cumulative, (uniforms.double() * cumulative[:, -1])[:, None], right=True)
    return tokens.gather(1, chosen.clamp(max=values.shape[-1] - 1)).squeeze(1)


class RoomyLayer(DynamicLayer):
    """A growing cache that writes new tokens into spare room; the stock one copies all it holds at every token."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._held = [key_states.new_empty((*x.shape[:2], 0, x.shape[3])) for x in (key_states, value_states)]
        start, stop = self.get_seq_length(), self.get_seq_length() + key_states.shape[2]
        if stop > self._held[0].shape[2]:
            self._held = [_with_room(x[:, :, :start], stop + ROOM) for x in self._held]
        for held, new in zip(self._held, (key_states, value_states), strict=True):
            held[:, :, start:stop] = new
        self.keys, self.values = (held[:, :, :stop] for held in self._held)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        length = self.get_seq_length()
        self._held = [_with_room(x[:, :, :length][indices], length + ROOM) for x in self._held]
        self.keys, self.values = (held[:, :, :length] for held in self._held)


def _with_room(states: Tensor, length: int) -> Tensor:
    held = states.new_empty((*states.shape[:2], length, states.shape[3]))
    held[:, :, : states.shape[2]] = states
    return held


def _empty_cache(config: Any) -> DynamicCache:
    """The cache that a model asks for (some layers may look back only so far), with room where it grows."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@torch.inference_mode()
def sample(
    lm: NoiseLm,
    layouts: Sequence[list[Piece]],
    uniforms: Sequence[Sequence[np.ndarray]],
    *,
    top_k: int = 20,
    batch_rows: int = 256,
) -> list[list[Row]]:
    """Write each layout once for each of its arrays of uniform numbers; rows come back in the order of the layouts.

    The numbers' length bounds how many tokens a row may draw; a row that reaches it, or the LM's last position, is
    `unfinished`.
    """
    lm.model.eval()
    rooms = [lm.positions - len(pieces[0].read) for pieces in layouts]
    rows = [
        [Row(i, pieces, u, len(u), room, done=room < 0, unfinished=room < 0) for u in uniforms[i]]
        for i, (pieces, room) in enumerate(zip(layouts, rooms, strict=True))
    ]
    for groups in _batches([group for group in rows if group and not group[0].done], batch_rows):
        _write(lm, groups, top_k)
    return rows


def _batches(groups: list[list[Row]], batch_rows: int) -> Iterator[list[list[Row]]]:
    """Samples of one prompt together, prompts sorted by length, so that a batch of `batch_rows` has little padding."""
    chunk: list[list[Row]] = []
    total = 0
    for group in sorted(groups, key=lambda group: len(group[0].pieces[0].read)):
        if chunk and total + len(group) > batch_rows:
            yield chunk
            chunk, total = [], 0
        chunk.append(group)
        total += len(group)
    if chunk:
        yield chunk


def _write(lm: NoiseLm, groups: list[list[Row]], top_k: int) -> None:
    """Run one batch of prompts to its end."""
    prompts = [group[0].pieces[0].read for group in groups]
    device = lm.model.device
    counts = torch.tensor([len(group) for group in groups], device=device)
    cache, logits, mask = _prefill(lm, prompts)
    cache.batch_select_indices(torch.arange(len(prompts), device=device).repeat_interleave(counts))
    logits, mask = logits.repeat_interleave(counts, dim=0), mask.repeat_interleave(counts, dim=0)
    rows = [row for group in groups for row in group]
    while True:
        uniforms = torch.tensor([r.uniforms[min(r.n_drawn, r.limit - 1)] for r in rows], device=device)
        drawn = draw_from_top_k(logits, uniforms, top_k)
        tokens = [row.feed(token, lm.markers) for row, token in zip(rows, drawn.tolist(), strict=True)]
        alive = [i for i, row in enumerate(rows) if not row.done]
        if not alive:
            return
        if len(rows) - len(alive) > DROP_AT * len(rows):
            keep = torch.tensor(alive, device=device)
            cache.batch_select_indices(keep)
            mask, rows, tokens = mask[keep], [rows[i] for i in alive], [tokens[i] for i in alive]
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        logits = lm.model(
            input_ids=torch.tensor(tokens, device=device)[:, None],
            attention_mask=mask,
            position_ids=(mask.sum(dim=1, keepdim=True) - 1).clamp(max=lm.positions - 1),  # finished rows run on
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]


def _prefill(lm: NoiseLm, prompts: list[Ids]) -> tuple[DynamicCache, Tensor, Tensor]:
    """Read the prompts, padded on the left: cache, logits behind the last token [n, V], attention mask [n, L]."""
    longest = max(len(p) for p in prompts)
    ids = torch.tensor([[lm.markers.end] * (longest - len(p)) + p for p in prompts], device=lm.model.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=ids.device)
    cache = _empty_cache(lm.model.config)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    out = lm.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cache, out.logits[:, -1], mask
