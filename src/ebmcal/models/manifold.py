"""Samples beside the texts of a batch, by a step in the space of word embeddings (Kong et al. 2020).

    on the manifold    x + on · sign ∇ cos(features(x), features(partner))     towards another text of the batch
    off the manifold   x + off · sign ∇ CE(f(x), y)                            where the label is lost soonest

A step of signs ends in a corner of the ball of the largest norm, which is where one step of projected gradient ends. A
forward hook puts the samples in the place of the word embeddings: the model classes stay stock.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebmcal.models.packing import Pack, classify_packed, classify_padded, classify_with_features, packs


@dataclass(frozen=True)
class Around:
    """What samples are made by: the labels [n] of the texts, and how far each word embedding is moved."""

    labels: Tensor
    on: float
    off: float


def classify_around(encoder: nn.Module, batch: Pack, around: Around) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of the texts, of their samples on and off the manifold [n, C] each, and the partners [n] of the former.

    Both steps are read off the one pass over the texts, so there are three forward passes, and two backward passes that
    stop at the word embeddings. Partners are drawn from torch's generator.
    """
    with word_embeddings(encoder) as seen:
        logits, features = classify_with_features(encoder, batch, middle=False)
    partners = torch.randperm(len(logits), device=logits.device)
    likeness = F.cosine_similarity(features, features.detach()[partners]).sum()
    loss = F.cross_entropy(logits.float(), around.labels, reduction="sum")
    classify = classify_packed if packs(encoder) else classify_padded
    samples = []
    for goal, size in ((likeness, around.on), (loss, around.off)):
        (slope,) = torch.autograd.grad(goal, seen, retain_graph=True)
        place = (seen[0] + size * slope.sign()).detach()  # as theirs: the embeddings learn from the texts alone
        with word_embeddings(encoder, place):
            samples.append(classify(encoder, batch).float())
    return logits.float(), *samples, partners


@contextlib.contextmanager
def word_embeddings(encoder: nn.Module, instead: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Passes of an encoder that go on with `instead`, where it is given; gives the word embeddings it looked up."""
    seen: list[Tensor] = []

    def look(_: nn.Module, __: object, words: Tensor) -> Tensor | None:
        seen.append(words)
        return instead  # None leaves them as they are

    hook = encoder.get_input_embeddings().register_forward_hook(look)
    try:
        yield seen
    finally:
        hook.remove()
