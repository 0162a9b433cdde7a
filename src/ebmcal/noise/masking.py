"""From a text to what the noise LM reads and writes: masks, layouts, and back to a text.

A layout is a list of pieces. Of each piece the LM reads `kept` (tokens that stay in the text) and `context` (tokens it
is only told), then writes `written` and an end mark; the first has an end of text to read `before`, and perhaps a
label. Reading and writing alternate, so one sampler serves every mode:

    infill   masked text as prefix, then the whole text is written (the paper's)
    continue the beginning is read, the rest is written (Deng et al. 2020); of a pair, the rest of the second sentence
    gaps     left to right: kept words, a preview of the words behind the gap, then only the gap is written
    plain    nothing is read, the whole text is written
    half     pairs: one sentence is kept, the other is written, the kept one as preview
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ebmcal.errors import unknown_name

Ids = list[int]


@dataclass(frozen=True)
class Markers:
    """Token ids of the marks: three that are added to the LM's vocabulary, and its own end of text."""

    mask: int
    separator: int
    write: int
    end: int

    #: The marks that are added, and what each begins as: something that stands in such a place in other texts.
    NEAR = {"<M>": " ___", "<SEP>": "\n", "<WRITE>": "\n\n"}  # noqa: RUF012


@dataclass(frozen=True)
class Piece:
    """What is read (`before`, `kept`, `context`) and then written; `written` is None behind the last gap."""

    kept: Ids
    context: Ids
    written: Ids | None
    before: Ids = field(default_factory=list)

    @property
    def read(self) -> Ids:
        return self.before + self.kept + self.context


@dataclass(frozen=True)
class Mode:
    """How a text is masked and laid out. `lookahead` is the preview behind a gap, in tokens."""

    draw: Callable[[np.ndarray, float, np.random.Generator, Markers], np.ndarray]
    lay_out: Callable[[np.ndarray, np.ndarray, Markers, int], list[Piece]]
    lookahead: int = 0
    whole_words: bool = False  # a word of several tokens is hidden as a whole or not at all
    pairs_only: bool = False
    cut_back: bool = False  # a text that finds no end may be cut at its last sentence


def draw_tokens(ids: np.ndarray, ratio: float, rng: np.random.Generator, markers: Markers) -> np.ndarray:
    """Each token independently with probability `ratio`, never the separator; one at least: [n] bool."""
    masked = (rng.random(len(ids)) < ratio) & (ids != markers.separator)
    free = np.flatnonzero(ids != markers.separator)
    if not masked.any() and len(free):
        masked[rng.choice(free)] = True  # a text with nothing hidden would come back as itself
    return masked


def draw_half(ids: np.ndarray, ratio: float, rng: np.random.Generator, markers: Markers) -> np.ndarray:
    """The whole of the first or of the second sentence."""
    behind = np.cumsum(ids == markers.separator) > 0
    return (behind if rng.random() < 0.5 else ~behind) & (ids != markers.separator)


def draw_rest(ids: np.ndarray, ratio: float, rng: np.random.Generator, markers: Markers) -> np.ndarray:
    """The end of the text, or of the second sentence: as many as if each were drawn with probability `ratio`."""
    n_free = int((np.cumsum((ids == markers.separator)[::-1]) == 0).sum())  # behind the last separator, or all
    n_hidden = max(1, int((rng.random(n_free) < ratio).sum()))
    return np.arange(len(ids)) >= len(ids) - min(n_free, n_hidden)


def draw_nothing(ids: np.ndarray, ratio: float, rng: np.random.Generator, markers: Markers) -> np.ndarray:
    return np.zeros(len(ids), dtype=bool)


def draw_words(
    mode: Mode, ids: np.ndarray, begins: np.ndarray, ratio: float, rng: np.random.Generator, markers: Markers
) -> np.ndarray:
    """Draw over words instead of tokens; `begins` [n] says which tokens begin one. The separator stands alone."""
    begins = begins | (ids == markers.separator) | np.concatenate([[True], ids[:-1] == markers.separator])
    word = np.cumsum(begins) - 1  # [n], which word a token belongs to
    return mode.draw(ids[begins], ratio, rng, markers)[word]


def collapse(ids: np.ndarray, masked: np.ndarray, mask_id: int) -> Ids:
    """The masked text: a run of masked tokens becomes one mask.

    >>> collapse(np.array([5, 6, 7, 8]), np.array([False, True, True, False]), mask_id=1)
    [5, 1, 8]
    """
    starts = masked & ~np.concatenate([[False], masked[:-1]])
    return np.where(masked, mask_id, ids)[~masked | starts].tolist()


def lay_out_whole(ids: np.ndarray, masked: np.ndarray, markers: Markers, lookahead: int) -> list[Piece]:
    """The masked text is read, the whole text is written."""
    prefix = collapse(ids, masked, markers.mask) if masked.any() else []
    return [Piece([], [*prefix, markers.write], ids.tolist())]


def lay_out_gaps(ids: np.ndarray, masked: np.ndarray, markers: Markers, lookahead: int) -> list[Piece]:
    """Kept words and a preview are read, each gap is written."""
    if not len(ids):
        return [Piece([], [markers.write], [])]  # an LM cannot be shown a sequence of no tokens
    edges = np.flatnonzero(np.diff(np.concatenate([[False], masked, [False]]).astype(np.int8)))
    pieces, position = [], 0
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        preview = collapse(ids[stop:], masked[stop:], markers.mask)[:lookahead]
        context = [markers.mask, *preview, markers.write]
        pieces.append(Piece(ids[position:start].tolist(), context, ids[start:stop].tolist()))
        position = int(stop)
    return [*pieces, Piece(ids[position:].tolist(), [], None)]


def lay_out_rest(ids: np.ndarray, masked: np.ndarray, markers: Markers, lookahead: int) -> list[Piece]:
    """The beginning is read, the rest is written."""
    return [Piece(ids[~masked].tolist(), [], ids[masked].tolist())]


MODES: dict[str, Mode] = {
    "infill": Mode(draw_tokens, lay_out_whole),
    "continue": Mode(draw_rest, lay_out_rest, whole_words=True, cut_back=True),
    "gaps": Mode(draw_tokens, lay_out_gaps, lookahead=4, whole_words=True),
    "plain": Mode(draw_nothing, lay_out_whole),
    "half": Mode(draw_half, lay_out_gaps, lookahead=1 << 20, pairs_only=True),
}


def find_mode(name: str) -> Mode:
    """The mode of that name, or an error with close matches."""
    if name not in MODES:
        raise unknown_name("noise mode", name, MODES)
    return MODES[name]


def to_sequence(pieces: list[Piece], markers: Markers) -> tuple[np.ndarray, np.ndarray]:
    """Token ids to train on, and where the loss is: text and end marks, not what was only read: [T], [T] bool."""
    ids, learn = [], []
    for piece in pieces:
        written = [] if piece.written is None else [*piece.written, markers.end]
        ids += piece.read + written
        learn += [False] * len(piece.before) + [True] * len(piece.kept) + [False] * len(piece.context)
        learn += [True] * len(written)
    return np.array(ids, dtype=np.int64), np.array(learn, dtype=bool)


def assemble(pieces: list[Piece], written: list[Ids]) -> Ids:
    """The text that results when the gaps hold `written` instead; gaps that were not reached are empty."""
    parts = iter(written)
    return [t for p in pieces for t in (p.kept + (next(parts, []) if p.written is not None else []))]
