"""Mixup of the features that enter the last layer (Verma et al. 2019; for finetuning: Park and Caragea 2022).

The last layer is linear, so mixing its logits equals mixing its features. Texts are paired within a micro-batch.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ebmcal.methods.joint import Method, MicroBatch, Terms
from ebmcal.modeling.classifier import EnergyOutput


class Mixup(Method):
    """Cross-entropy of mixed logits with labels mixed in the same shares, drawn from Beta(α, α)."""

    is_thread_safe = False

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        output = model(batch.texts)
        logits, labels = output.logits, batch.labels
        partner = torch.randperm(len(labels), device=labels.device)
        alpha = torch.full((len(labels),), self.args.mixup_alpha, dtype=logits.dtype, device=logits.device)
        share = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()  # [n]
        mixed = share[:, None] * logits + (1 - share)[:, None] * logits[partner]
        own, other = (F.cross_entropy(mixed, target, reduction="none") for target in (labels, labels[partner]))
        return {"cross_entropy": (share * own + (1 - share) * other, 1.0)}, output
