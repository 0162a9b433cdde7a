"""Step 1 of LM noise: mask a text x and lay it out as what the LM reads (the prompt) and what it writes (the target).

    mode      the LM reads                        and writes
    infill    the masked text x^m, <WRITE>        the whole text (the paper's noise)
    continue  the beginning of the text           the rest of it; of a pair, the rest of the second sentence
    plain     <WRITE>                             the whole text
    half      a pair with one sentence masked     that sentence; the other one is kept

In x^m every run of masked tokens is one `<M>`. Each target is followed by the LM's end-of-text token. The two
sentences of a pair are joined by `<SEP>`, which is never masked.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ebmcal.errors import unknown_name

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


def find_mode(name: str) -> Mode:
    """The mode with that name."""
    if name not in MODES:
        raise unknown_name("noise mode", name, MODES)
    return MODES[name]
