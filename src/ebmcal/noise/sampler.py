"""Step 3 of LM noise: draw texts from the LM by top-k sampling. 4 to 6 times as fast as `generate`, same distribution.

Each prompt is read once for all of its samples, and samples that end make room for new ones, so that the batch stays
full. The random numbers of a sample are its own, so it does not depend on the others in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ebmcal.noise.acceleration import Decoder, prepare_decoding, top_k_logits
from ebmcal.noise.causal_lm import NoiseLm
from ebmcal.noise.masking import Ids, Layout
from ebmcal.training.runtime import reuse_freed_memory

#: New samples are started when more than this share of a batch has ended; if none are left, the ended ones are removed
#: at the second share.
REFILL_AT, REMOVE_AT = 0.1, 0.25


@dataclass
class Sample:
    """A text that is being written. `max_tokens` is the number of its random numbers, or what the LM has room for."""

    layout: Layout
    uniforms: np.ndarray
    max_tokens: int
    is_pair: bool  # it may write a separator
    written: Ids = field(default_factory=list)
    is_done: bool = False
    is_unfinished: bool = False  # it reached its limit before its end

    def __post_init__(self) -> None:
        self.is_done = self.is_unfinished = self.max_tokens <= 0

    def append(self, token: int, end: int) -> int:
        """Append a drawn token; returns the token that the LM reads next."""
        if self.is_done or token == end:
            self.is_done = True
            return end
        self.written.append(token)
        self.is_done = self.is_unfinished = len(self.written) >= self.max_tokens
        return token

    @property
    def ids(self) -> Ids:
        """The token ids of the text."""
        return self.layout.before + self.written + self.layout.after


def draw_from_top_k(logits: Tensor, uniforms: Tensor, k: int) -> Tensor:
    """Sample from the softmax of the k largest logits by inverse CDF: logits [n, V], uniforms [n] -> tokens [n].

    >>> draw_from_top_k(torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([0.5]), k=1).tolist()
    [1]
    """
    values, tokens = top_k_logits(logits.float(), min(k, logits.shape[-1]))
    cumulative = torch.softmax(values, dim=-1).double().cumsum(dim=-1)
    # Rounding may leave the last sum below 1; scaling by it keeps the last token reachable.
    chosen = torch.searchsorted(cumulative, (uniforms.double() * cumulative[:, -1])[:, None], right=True)
    return tokens.gather(1, chosen.clamp(max=values.shape[-1] - 1)).squeeze(1)


@torch.inference_mode()
def sample(
    lm: NoiseLm, layouts: Sequence[Layout], uniforms: Sequence[Sequence[np.ndarray]], *, top_k: int = 20,
    batch_size: int = 256,
) -> list[list[Sample]]:  # fmt: skip
    """One sample per array of uniform random numbers for each layout; an array's length limits the sample's tokens."""
    reuse_freed_memory()
    lm.model.eval()
    prepare_decoding(lm.model)
    are_pairs = [lm.markers.separator in layout.target for layout in layouts]
    groups = [
        [Sample(layout, u, min(len(u), lm.n_positions - len(layout.prompt)), is_pair) for u in us]
        for layout, us, is_pair in zip(layouts, uniforms, are_pairs, strict=True)
    ]
    queue = [group for group in groups if group and not group[0].is_done]
    queue.sort(key=lambda group: -len(group[0].layout.prompt))  # taken from the end: short prompts first
    while queue:
        _write_batch(lm, queue, top_k, batch_size)
    return groups


def _write_batch(lm: NoiseLm, queue: list[list[Sample]], top_k: int, batch_size: int) -> None:
    """Write a batch of samples, replacing those that end, until none are left or the LM cannot replace rows."""
    decoder, samples = _start(lm, _take(queue, batch_size, at_least_one=True))
    while samples:
        tokens = _draw(lm, decoder.logits, samples, top_k)
        ended = [i for i, s in enumerate(samples) if s.is_done]
        if decoder.can_replace and len(ended) > REFILL_AT * len(samples) and (new := _take(queue, len(ended))):
            widths = decoder.n_tokens()
            ended.sort(key=lambda i: -widths[i])  # the longest first, so that their columns can be freed
            other, started = _start(lm, new)
            decoder.replace(ended[: len(started)], other)
            for i, s, token in zip(ended, started, _draw(lm, other.logits, started, top_k), strict=False):
                samples[i], tokens[i] = s, token
        active = [i for i, s in enumerate(samples) if not s.is_done]
        if len(samples) - len(active) > REMOVE_AT * len(samples) or not active:
            samples, tokens = [samples[i] for i in active], [tokens[i] for i in active]
            decoder.keep(active)
        if samples:
            decoder.read(tokens)


def _take(queue: list[list[Sample]], n: int, at_least_one: bool = False) -> list[list[Sample]]:
    """Remove groups of at most n samples in total from the end of the queue."""
    taken: list[list[Sample]] = []
    while queue and (len(queue[-1]) <= n or (at_least_one and not taken)):
        n -= len(queue[-1])
        taken.append(queue.pop())
    return taken


def _start(lm: NoiseLm, groups: list[list[Sample]]) -> tuple[Decoder, list[Sample]]:
    """Read each prompt once, for all of its samples."""
    decoder = Decoder(lm.model, [group[0].layout.prompt for group in groups], lm.n_positions, lm.markers.end)
    decoder.keep([i for i, group in enumerate(groups) for _ in group])
    return decoder, [s for group in groups for s in group]


def _draw(lm: NoiseLm, logits: Tensor, samples: list[Sample], top_k: int) -> Ids:
    """Draw a token for each sample: logits [n, V] -> the tokens that the LM reads next."""
    markers = lm.markers
    logits[:, [markers.mask, markers.write]] = -torch.inf  # only ever read
    logits[[i for i, s in enumerate(samples) if not s.is_pair], markers.separator] = -torch.inf
    uniforms = [0.0 if s.is_done else float(s.uniforms[len(s.written)]) for s in samples]
    tokens = draw_from_top_k(logits, torch.tensor(uniforms, dtype=torch.float64, device=logits.device), top_k)
    return [s.append(token, markers.end) for s, token in zip(samples, tokens.tolist(), strict=True)]
