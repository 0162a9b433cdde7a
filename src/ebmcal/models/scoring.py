"""A finetuned model on tokenised texts: logits and energies, and `Predictions` with everything the reader needs.

The last part of the training half: what it writes is all that the evaluation half reads. Scores are computed in float32
in length-sorted batches under a token budget, and returned in the order of the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.packing import pack
from ebmcal.models.tokens import TokenTable
from ebmcal.predictions import Predictions

Progress = Callable[[int], None]


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
    return max(512, int(memory / (34 * 4 * hidden * layers)))


@torch.no_grad()
def score(
    model: EnergyClassifier, table: TokenTable, rows: Sequence[int] | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Logits [n, C] and energies [n] (float32) of the texts at `rows` of a token table, all of them by default."""
    rows = np.arange(len(table)) if rows is None else np.asarray(rows)
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    logits = np.empty((len(rows), model.config.num_labels), dtype=np.float32)
    energies = np.empty(len(rows), dtype=np.float32)
    # No gradients are kept, so a batch may be larger than in training; a small one stays in the cache.
    for batch in micro_batches(table.lengths[rows], min(4096, token_budget(model.config))):
        ids, types = zip(*(table[int(i)] for i in rows[batch]), strict=True)
        out, energy = model(pack(ids, types).to(device))
        logits[batch], energies[batch] = out.cpu().numpy(), energy.cpu().numpy()
        if progress:
            progress(len(batch))
    model.train(was_training)
    return logits, energies


def predict(
    model: EnergyClassifier,
    table: TokenTable,
    *,
    labels: np.ndarray,
    label_names: tuple[str, ...],
    ids: np.ndarray,
    texts: Sequence[tuple[str, str | None]],
    meta: dict[str, Any],
    rows: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Predictions:
    """`Predictions` for texts that are row for row those of the token table (or its `rows`)."""
    logits, energies = score(model, table, rows, progress)
    pairs = [pair for _, pair in texts]
    return Predictions(
        labels=np.asarray(labels, dtype=np.int64),
        label_names=label_names,
        logits=logits,
        energies=energies,
        ids=np.asarray([str(i) for i in ids]),
        texts=[text for text, _ in texts],
        text_pairs=None if not pairs or pairs[0] is None else [p or "" for p in pairs],
        meta={"energy": model.energy, **meta},
    )
