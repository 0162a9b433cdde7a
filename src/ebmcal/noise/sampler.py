"""Drawing texts from the noise LM: one prefill a prompt, shared by its samples; top-k only; finished rows give way.

A prompt is a layout (`masking`): tokens that are read and gaps that are written, in turns. Every row advances by
one token a step, read or drawn, so rows of any layout run side by side (`decoding`). Randomness is keyed by the row:
its uniform numbers come from a counter-based generator, so a row does not depend on its neighbours' luck.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ebmcal.models.memory import reuse_freed_memory
from ebmcal.noise.decoding import Running, prepare_decoding
from ebmcal.noise.lm import NoiseLm
from ebmcal.noise.masking import Ids, Markers, Piece, assemble

#: New rows take the place of finished ones when more than this share of a batch has finished.
REFILL_AT = 0.1

#: Where none are waiting, finished rows are dropped from the batch at this share.
DROP_AT = 0.25

#: Logits in a block of `top_k`.
BLOCK = 64


@dataclass
class Row:
    """A sample being written: what is left to read, what has been written in each gap."""

    prompt: int
    pieces: list[Piece]
    uniforms: np.ndarray  # [max_new]
    limit: int  # tokens it may draw
    is_pair: bool = True  # may write a separator
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
    values, tokens = top_k(logits.float(), min(k, logits.shape[-1]))
    cumulative = torch.softmax(values, dim=-1).double().cumsum(dim=-1)
    # Rounding may leave the last sum below 1; scaling by it keeps the last token reachable and no other beyond it.
    chosen = torch.searchsorted(cumulative, (uniforms.double() * cumulative[:, -1])[:, None], right=True)
    return tokens.gather(1, chosen.clamp(max=values.shape[-1] - 1)).squeeze(1)


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`torch.topk` over the last dimension of [n, V], several times quicker when V is large.

    The k largest logits lie in the k blocks with the largest maxima, so only those are looked into.

    >>> top_k(torch.arange(1000.0)[None], 2)[1].tolist()
    [[999, 998]]
    """
    n_blocks = logits.shape[1] // BLOCK
    if n_blocks <= k:
        return logits.topk(k)
    rest = torch.arange(n_blocks * BLOCK, logits.shape[1], device=logits.device).expand(len(logits), -1)
    largest = logits[:, : n_blocks * BLOCK].unflatten(1, (n_blocks, BLOCK)).amax(dim=-1).topk(k).indices  # [n, k]
    inside = (largest[..., None] * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(1)
    tokens = torch.cat([inside, rest], dim=1)  # [n, k * BLOCK + rest]
    values, where = logits.gather(1, tokens).topk(k)
    return values, tokens.gather(1, where)


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
    reuse_freed_memory()
    lm.model.eval()
    prepare_decoding(lm.model)
    rooms = [lm.positions - len(pieces[0].read) for pieces in layouts]
    pairs = [any(lm.markers.separator in (p.written or []) for p in pieces) for pieces in layouts]
    rows = [
        [Row(i, pieces, u, len(u), is_pair, room, done=room < 0, unfinished=room < 0) for u in uniforms[i]]
        for i, (pieces, is_pair, room) in enumerate(zip(layouts, pairs, rooms, strict=True))
    ]
    waiting = _Waiting([group for group in rows if group and not group[0].done])
    while waiting:
        _write(lm, waiting, top_k, batch_rows)
    return rows


class _Waiting:
    """Groups of rows, the samples of a prompt, that have not been begun: those with short prompts first."""

    def __init__(self, groups: list[list[Row]]) -> None:
        self.groups = sorted(groups, key=lambda group: len(group[0].pieces[0].read), reverse=True)

    def __bool__(self) -> bool:
        return bool(self.groups)

    def take(self, n_rows: int, at_least_one: bool) -> list[list[Row]]:
        """The next groups, of `n_rows` rows together at most."""
        taken: list[list[Row]] = []
        while self.groups and (len(self.groups[-1]) <= n_rows - sum(map(len, taken)) or (at_least_one and not taken)):
            taken.append(self.groups.pop())
        return taken


def _write(lm: NoiseLm, waiting: _Waiting, k: int, batch_rows: int) -> None:
    """Write rows, and take in new ones where others have finished, until all are done."""
    running, rows = _begin(lm, waiting.take(batch_rows, at_least_one=True))
    while rows:
        tokens = _draw(lm, running.logits, rows, k)
        _refill(lm, waiting, running, rows, tokens, k)
        alive = [i for i, row in enumerate(rows) if not row.done]
        if len(rows) - len(alive) > DROP_AT * len(rows) or not alive:
            rows, tokens = [rows[i] for i in alive], [tokens[i] for i in alive]
            if rows:
                running.keep(torch.tensor(alive, device=running.real.device))
        if rows:
            running.feed(tokens)


def _refill(lm: NoiseLm, waiting: _Waiting, running: Running, rows: list[Row], tokens: Ids, k: int) -> None:
    """Put rows that wait, and their first tokens, in the place of finished ones, where there are enough of them."""
    free = [i for i, row in enumerate(rows) if row.done]
    enough = running.joins and len(free) > REFILL_AT * len(rows)
    groups = waiting.take(len(free), at_least_one=False) if enough else []
    if groups:
        widths = running.real.sum(dim=1).tolist()
        free.sort(key=lambda i: -widths[i])  # the longest first, so that their columns can be let go
        more, new_rows = _begin(lm, groups)
        running.replace(torch.tensor(free[: len(new_rows)], device=running.real.device), more)
        for i, row, token in zip(free, new_rows, _draw(lm, more.logits, new_rows, k), strict=False):
            rows[i], tokens[i] = row, token


def _draw(lm: NoiseLm, logits: Tensor, rows: list[Row], k: int) -> Ids:
    """Draw a token behind each row where one is due; returns the tokens that the LM sees next."""
    uniforms = torch.tensor([r.uniforms[min(r.n_drawn, r.limit - 1)] for r in rows], device=logits.device)
    drawn = draw_from_top_k(_allowed(logits, rows, lm.markers), uniforms, k)
    return [row.feed(token, lm.markers) for row, token in zip(rows, drawn.tolist(), strict=True)]


def _begin(lm: NoiseLm, groups: list[list[Row]]) -> tuple[Running, list[Row]]:
    """Read each prompt once, for all of its samples."""
    running = Running.start(lm.model, [group[0].pieces[0].read for group in groups], lm.positions, lm.markers.end)
    counts = torch.tensor([len(group) for group in groups], device=running.real.device)
    running.keep(torch.arange(len(groups), device=counts.device).repeat_interleave(counts))
    return running, [row for group in groups for row in group]


def _allowed(logits: Tensor, rows: list[Row], markers: Markers) -> Tensor:
    """Logits [n, V] without the marks that are for reading only; a separator is for pairs that are written whole."""
    logits[:, [markers.mask, markers.write]] = -torch.inf
    logits[[i for i, row in enumerate(rows) if not row.is_pair], markers.separator] = -torch.inf
    return logits
