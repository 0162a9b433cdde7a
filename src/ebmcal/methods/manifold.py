"""On- and off-manifold regularisation (Kong et al. 2020): samples next to the texts in the word-embedding space.

    on the manifold    x + δ_on  · sign ∇ cos(features(x), features(partner))     towards another text; shared label
    off the manifold   x + δ_off · sign ∇ CE(f(x), y)                             where the label is lost; no label

A forward hook replaces the word embeddings, so the model classes stay stock. As in the paper, all terms weigh the same.
"""

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebmcal.methods.joint import Method, MicroBatch, Terms
from ebmcal.modeling.classifier import EnergyClassifier, EnergyOutput


class Manifold(Method):
    """Cross-entropy on texts and on-manifold samples, entropy on off-manifold samples."""

    is_thread_safe = False

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        classifier: EnergyClassifier = model.module if hasattr(model, "module") else model
        with word_embeddings(classifier.encoder) as embeddings:
            output = classifier(batch.texts, features="last")
        logits, features, labels = output.logits, output.features, batch.labels
        partner = torch.randperm(len(labels), device=labels.device)
        similarity = F.cosine_similarity(features, features.detach()[partner]).sum()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        near = self._sample(classifier, batch, embeddings, similarity, self.args.manifold_on)
        far = self._sample(classifier, batch, embeddings, loss, self.args.manifold_off)
        own, other = (F.cross_entropy(near, target, reduction="none") for target in (labels, labels[partner]))
        share = self.args.manifold_mix
        return {
            "cross_entropy": (F.cross_entropy(logits, labels, reduction="none"), 1.0),
            "on_manifold": ((1 - share) * own + share * other, 1.0),
            "off_manifold": (_negative_entropy(far), 1.0),
        }, output

    def _sample(
        self, classifier: EnergyClassifier, batch: MicroBatch, embeddings: list[Tensor], goal: Tensor, size: float
    ) -> Tensor:
        """Logits [n, C] of texts whose embeddings moved by `size` in the direction that increases `goal`."""
        (slope,) = torch.autograd.grad(goal, embeddings, retain_graph=True)
        moved = (embeddings[0] + size * slope.sign()).detach()  # embeddings learn from the texts only, as theirs
        with word_embeddings(classifier.encoder, moved):
            return classifier(batch.texts).logits


def _negative_entropy(logits: Tensor) -> Tensor:
    logs = F.log_softmax(logits, dim=-1)
    return (logs.exp() * logs).sum(dim=-1)


@contextlib.contextmanager
def word_embeddings(encoder: nn.Module, replacement: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Yields the word embeddings that passes inside this block look up; `replacement` is used instead, if given."""
    seen: list[Tensor] = []

    def hook(_: nn.Module, __: object, words: Tensor) -> Tensor | None:
        seen.append(words)
        return replacement  # None leaves them unchanged

    handle = encoder.get_input_embeddings().register_forward_hook(hook)
    try:
        yield seen
    finally:
        handle.remove()
