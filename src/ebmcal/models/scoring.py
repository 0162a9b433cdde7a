"""A finetuned model on tokenised texts: logits and energies, and `Predictions` with everything the reader needs.

The last part of the training half: what it writes is all that the evaluation half reads. Scores are computed in float32
in length-sorted batches under a token budget, and returned in the order of the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.packing import Pack, mean_states, pack
from ebmcal.models.tokens import TokenTable
from ebmcal.predictions import Predictions

Progress = Callable[[int], None]
Positions = Sequence[int] | np.ndarray


def micro_batches(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Indices of texts, shortest first, in batches of at most `budget` tokens (one text at least).

    >>> [b.tolist() for b in micro_batches(np.array([3, 1, 2]), budget=3)]
    [[1, 2], [0]]
    """
    order = np.argsort(lengths, kind="stable")
    start, total = 0, 0
    for i, length in enumerate(lengths[order]):
        if i > start and total + length > budget:
            yield order[start:i]
            start, total = i, 0
        total += length
    if len(order):
        yield order[start:]


def token_budget(config: Any, memory: float = 4e9) -> int:
    """Tokens whose activations fit in `memory` bytes: about 34 values of 4 bytes a layer and hidden unit."""
    hidden = getattr(config, "hidden_size", 768)
    layers = getattr(config, "num_hidden_layers", 12)
    return max(512, int(memory / (34 * 4 * hidden * max(layers, 1))))


def score(
    model: EnergyClassifier,
    table: TokenTable,
    rows: Positions | None = None,
    progress: Progress | None = None,
    dropout_seed: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Logits [n, C] and energies [n] (float32) of the texts at `rows` of a token table, all of them by default.

    With a `dropout_seed` dropout stays on, drawn by it: one pass of Monte-Carlo dropout.
    """
    if len(table) == 0 or (rows is not None and len(rows) == 0):
        return np.empty((0, model.config.num_labels), dtype=np.float32), np.empty(0, dtype=np.float32)
    logits, energies = _over(table, rows, model, model, progress, dropout_seed)
    return logits, energies


def features(
    encoder: nn.Module,
    table: TokenTable,
    rows: Positions | None = None,
    progress: Progress | None = None,
    *,
    middle: bool = False,
) -> np.ndarray:
    """Mean last hidden states [n, H] (float32) of the texts at `rows` of a token table, all of them by default.

    `middle` takes the states half-way up instead: those of a finetuned encoder that `predict` measures distances by.
    """
    (found,) = _over(table, rows, encoder, lambda batch: (mean_states(encoder, batch, middle=middle),), progress)
    return found


@torch.no_grad()
def _over(
    table: TokenTable,
    rows: Positions | None,
    model: nn.Module,
    forward: Callable[[Pack], tuple[torch.Tensor, ...]],
    progress: Progress | None,
    dropout_seed: int | None = None,
) -> list[np.ndarray]:
    """What `forward` gives for each text, in the order of the rows: arrays [n, …]."""
    chosen = np.arange(len(table)) if rows is None else np.asarray(rows)
    was_training, device = model.training, next(model.parameters()).device
    model.train(dropout_seed is not None)
    found: list[np.ndarray] = []
    with torch.random.fork_rng(enabled=dropout_seed is not None):
        torch.manual_seed(dropout_seed) if dropout_seed is not None else None
        # No gradients are kept, so a batch may be larger than in training; a small one stays in the cache.
        for batch in micro_batches(table.lengths[chosen], min(4096, token_budget(model.config))):
            ids, types = zip(*(table[int(i)] for i in chosen[batch]), strict=True)
            outputs = [out.cpu().numpy() for out in forward(pack(ids, types).to(device))]
            found = found or [np.empty((len(chosen), *out.shape[1:]), dtype=np.float32) for out in outputs]
            for kept, out in zip(found, outputs, strict=True):
                kept[batch] = out
            if progress:
                progress(len(batch))
    model.train(was_training)
    return found


def predict(
    model: EnergyClassifier,
    table: TokenTable,
    *,
    labels: np.ndarray,
    label_names: tuple[str, ...],
    ids: np.ndarray,
    texts: Sequence[tuple[str, str | None]],
    meta: dict[str, Any],
    rows: Positions | None = None,
    progress: Progress | None = None,
    dropout_seed: int | None = None,
    distances: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None,
) -> Predictions:
    """`Predictions` for texts that are row for row those of the token table (or its `rows`).

    `distances` makes named distances [n] of their features [n, H], which come with the same forward pass.
    """
    if distances is None:
        (logits, energies), far = score(model, table, rows, progress, dropout_seed), None
    else:
        logits, energies, found = _over(table, rows, model, model.with_features, progress)
        far = distances(found)
    pairs = [pair for _, pair in texts]
    return Predictions(
        labels=np.asarray(labels, dtype=np.int64),
        label_names=label_names,
        logits=logits,
        energies=energies,
        distances=far,
        ids=np.asarray([str(i) for i in ids]),
        texts=[text for text, _ in texts],
        text_pairs=None if not pairs or pairs[0] is None else [p or "" for p in pairs],
        meta={"energy": model.energy, **meta},
    )
