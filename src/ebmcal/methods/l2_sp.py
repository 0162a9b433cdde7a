"""L2-SP (Li et al. 2018; for calibration: He et al., ICLR 2023): a penalty on the distance from the pretrained weights.

loss = cross-entropy + (β / 2) ||w - w_pretrained||²    over the encoder's weights, without the new head
"""

from typing import Any

import torch
from torch import Tensor, nn

from ebmcal.methods.joint import Method, MicroBatch, Terms
from ebmcal.modeling.classifier import EnergyClassifier, EnergyOutput


class L2SP(Method):
    """Cross-entropy and the anchor to the pretrained weights."""

    def prepare(self, model: EnergyClassifier, tokenizer: Any) -> None:
        base = model.encoder.base_model
        self.anchors: list[tuple[nn.Parameter, Tensor]] = [(p, p.detach().clone()) for p in base.parameters()]

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        terms, output = super().terms(model, batch, progress)
        distance = torch.stack([(p - anchor.to(p.device)).square().sum() for p, anchor in self.anchors]).sum()
        # Spread over the data texts, because terms are sums over texts divided by their number.
        return terms | {"l2_sp": (distance * batch.data / 2, self.args.l2_sp_weight)}, output
