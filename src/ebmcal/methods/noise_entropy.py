"""Uniform labels on noise texts, after NoiER (2021): the classifier should be unsure about what is not data.

`noise-entropy` uses it instead of the energy, `hidden-entropy` in addition to it.
"""

from typing import Any

import torch.nn.functional as F
from torch import nn

from ebmcal.methods.joint import Joint, MicroBatch, Terms
from ebmcal.modeling.classifier import EnergyOutput


class NoiseEntropy(Joint):
    """Cross-entropy plus the cross-entropy of noise texts with the uniform distribution."""

    def __init__(self, args: Any, joint: bool = False) -> None:
        super().__init__(args)
        self.joint = joint

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        output = model(batch.texts)
        terms: Terms = {"cross_entropy": (self.cross_entropy(output.logits, batch), 1.0)}
        uniform = -F.log_softmax(output.logits, dim=-1).mean(dim=-1)  # [n]
        terms["noise_uniform"] = (uniform * batch.noise, self.args.energy_weight_at(progress))
        return terms | (self.nce_terms(output.energies, batch, progress) if self.joint else {}), output
