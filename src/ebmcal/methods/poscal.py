"""PosCal (Jung et al. 2020): cross-entropy plus the distance of the posteriors from empirical label frequencies.

Ten times per epoch training rows are predicted; for each class the posteriors P(y|x) are binned, and each bin gets the
share of its texts that have the label. The term is the distance between a posterior and the frequency of its bin,
averaged over the classes, as in the authors' code; empty bins have frequency 0 there and here. The authors predict all
rows, which takes three times as long as training; here at most `poscal_rows`, drawn anew each time.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from ebmcal.methods.joint import Method, MicroBatch, Terms
from ebmcal.modeling.classifier import EnergyClassifier, EnergyOutput

if TYPE_CHECKING:
    from ebmcal.training.trainer import EnergyTrainer

#: Updates of the frequencies per epoch.
UPDATES_PER_EPOCH = 10


class PosCal(Method):
    """Cross-entropy plus PosCal's term, a squared distance or a KL divergence."""

    def __init__(self, args: Any, divergence: str = "mse") -> None:
        super().__init__(args)
        self.divergence = {"mse": squared_distance, "kl": kl_divergence}[divergence]
        self.has_frequencies = False  # before the first update

    def prepare(self, model: EnergyClassifier, tokenizer: Any) -> None:
        # A buffer, so that it is in checkpoints and a resumed training continues with the same frequencies.
        model.register_buffer("label_frequencies", torch.zeros(model.config.num_labels, self.args.poscal_bins))

    def callbacks(self, trainer: "EnergyTrainer") -> list[TrainerCallback]:
        return [UpdateFrequencies(self, trainer)]

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        terms, output = super().terms(model, batch, progress)
        if self.has_frequencies:
            frequencies = (model.module if hasattr(model, "module") else model).label_frequencies
            probs = torch.softmax(output.logits, dim=-1)
            values = self.divergence(probs, look_up(probs.detach(), frequencies))
            terms["poscal"] = (values * batch.data, self.args.poscal_weight)
        return terms, output


def label_frequencies(probs: Tensor, labels: Tensor, n_bins: int) -> Tensor:
    """The share of texts with label y among those whose P(y|x) is in a bin, 0 for empty bins: [C, bins].

    >>> label_frequencies(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), n_bins=2)
    tensor([[0., 1.],
            [0., 0.]])
    """
    n_classes = probs.shape[1]
    slots = (_bins(probs, n_bins) + torch.arange(n_classes) * n_bins).flatten()
    hits = torch.nn.functional.one_hot(labels, n_classes).to(probs.dtype).flatten()
    size = n_classes * n_bins
    counts = torch.zeros(size, dtype=probs.dtype).index_add(0, slots, torch.ones_like(hits))
    sums = torch.zeros(size, dtype=probs.dtype).index_add(0, slots, hits)
    return (sums / counts.clamp(min=1)).view(n_classes, n_bins)


def look_up(probs: Tensor, frequencies: Tensor) -> Tensor:
    """The frequency of the bin of each posterior: [n, C] -> [n, C]."""
    classes = torch.arange(frequencies.shape[0], device=probs.device)
    return frequencies[classes, _bins(probs, frequencies.shape[1])]


def _bins(probs: Tensor, n_bins: int) -> Tensor:
    return (probs * n_bins).long().clamp(max=n_bins - 1)


def squared_distance(probs: Tensor, frequencies: Tensor) -> Tensor:
    """Mean over the classes of (P - frequency)²: [n, C] twice -> [n]."""
    return (probs - frequencies).square().mean(dim=-1)


def kl_divergence(probs: Tensor, frequencies: Tensor, floor: float = 1e-6) -> Tensor:
    """KL(frequencies || posteriors), with frequencies normalised and kept above zero: [n, C] twice -> [n]."""
    target = frequencies.clamp_min(floor)
    target = target / target.sum(dim=-1, keepdim=True)
    return (target * (target.log() - probs.clamp_min(floor).log())).sum(dim=-1)


class UpdateFrequencies(TrainerCallback):
    """Updates the frequencies during training."""

    def __init__(self, method: PosCal, trainer: "EnergyTrainer") -> None:
        self.method, self.trainer = method, trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        every = max(1, round(state.max_steps / max(1e-9, state.num_train_epochs) / UPDATES_PER_EPOCH))
        self.method.has_frequencies = state.global_step >= every
        if state.global_step and state.global_step % every == 0:
            outputs, labels = self.trainer.predict_train(self._sample(args, state.global_step))
            probs = torch.softmax(torch.from_numpy(outputs.logits), dim=-1)
            found = label_frequencies(probs, torch.from_numpy(labels), args.poscal_bins)
            self.trainer.classifier.label_frequencies.copy_(found)

    def _sample(self, args: Any, step: int) -> np.ndarray:
        n_rows = len(self.trainer.data_collator.tokens)
        rng = np.random.default_rng([args.seed, step])  # of the step: a resumed training draws the same rows
        return np.sort(rng.permutation(n_rows)[: args.poscal_rows])
