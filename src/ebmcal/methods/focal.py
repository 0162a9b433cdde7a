"""Focal loss (Lin et al. 2017; for calibration: Mukhoti et al. 2020): texts that are already learned count less."""

from torch import Tensor, nn

from ebmcal.methods.joint import Method, MicroBatch, Terms
from ebmcal.modeling.classifier import EnergyOutput


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """-(1 - P(y|x))^γ log P(y|x): logits [n, C], labels [n] -> [n].

    >>> focal_loss(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0).item()
    0.3465735912322998
    """
    log_prob = -nn.functional.cross_entropy(logits, labels, reduction="none")
    missing = (1 - log_prob.exp()).clamp(min=1e-12)  # a power below 1 has no finite slope at 0
    return -(missing**gamma) * log_prob


class Focal(Method):
    """Focal loss instead of cross-entropy."""

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        output = model(batch.texts)
        values = focal_loss(output.logits, batch.labels, self.args.focal_gamma)
        return {"focal": (values * batch.data, 1.0)}, output
