"""Last-layer Laplace approximation (Daxberger et al. 2021): a Gaussian over the weights of the last layer.

    features        φ(x), what enters the last layer, and a 1 for its bias; logits f(x) = W φ(x)
    curvature       n A ⊗ B, A = mean φφᵀ [H + 1, H + 1], B = mean (diag p - p pᵀ) [C, C] over the n training texts
    posterior       N(W, (n A ⊗ B + τ I)⁻¹); the prior precision τ maximises the marginal likelihood
    prediction      f(x) / √(1 + v(x) π / 8), v(x) [C] the variances of the logits (probit approximation)

The training is the baseline's. Nothing is fitted on other rows than the training texts, and their labels are not
needed either. Everything hangs on hooks of the stock last layer; the Gaussian is saved as the energy head.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebmcal.errors import EbmcalError
from ebmcal.methods.joint import Method
from ebmcal.modeling.energies import HEADS, hidden, last_layer

if TYPE_CHECKING:
    from ebmcal.training.trainer import EnergyTrainer

#: Prior precisions to choose from.
PRECISIONS = torch.logspace(-4, 8, 241, dtype=torch.float64)


class Laplace(Method):
    """Cross-entropy; after training, a Gaussian over the weights of the last layer is fitted."""

    def finish(self, trainer: "EnergyTrainer") -> None:
        gaussian: Any = trainer.classifier.energy_head
        with gaussian.fitting():
            trainer.predict_train()


class LastLayerGaussian(nn.Module):
    """The Gaussian over the last layer's weights, in the eigenbasis of its covariance. Its energy is `hidden`."""

    basis: Tensor  # [H + 1, H + 1], eigenvectors of A
    classes: Tensor  # [C, C], eigenvectors of B
    variances: Tensor  # [H + 1, C], of the weights in this basis; zero until they are fitted

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        last = last_layer(encoder, "Last-layer Laplace")
        size, n_classes = last.in_features + 1, last.out_features
        self.register_buffer("basis", torch.zeros(size, size))
        self.register_buffer("classes", torch.zeros(n_classes, n_classes))
        self.register_buffer("variances", torch.zeros(size, n_classes))
        self._last = (last,)  # in a tuple: its weights belong to the encoder
        last.register_forward_hook(self._shrink)

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of logits [n, C] that include the variance."""
        return hidden(logits)

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Fit the Gaussian to the texts that pass through the model inside this block."""
        self.variances.zero_()
        a, b = (torch.zeros_like(x, dtype=torch.float64) for x in (self.basis, self.classes))
        n = 0

        def gather(_: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
            nonlocal n
            phi, probs = _with_bias(inputs[0]).double(), logits.double().softmax(dim=-1)
            n += len(phi)
            a.addmm_(phi.T, phi)
            b.add_(probs.sum(dim=0).diag()).addmm_(probs.T, probs, alpha=-1)

        hook = self._last[0].register_forward_hook(gather)
        try:
            yield
        finally:
            hook.remove()
        (a_values, basis), (b_values, classes) = torch.linalg.eigh(a / n), torch.linalg.eigh(b / n)
        curvature = n * torch.outer(a_values.clamp(min=0), b_values.clamp(min=0))  # [H + 1, C]
        norm = sum(float(p.detach().double().square().sum()) for p in self._last[0].parameters())
        self.variances.copy_(1 / (curvature + best_precision(curvature, norm)))
        self.basis.copy_(basis)
        self.classes.copy_(classes)

    def logit_variances(self, features: Tensor) -> Tensor:
        """The variances of the logits: features [n, H] -> [n, C]."""
        return (_with_bias(features) @ self.basis).square() @ self.variances @ self.classes.square().T

    def _shrink(self, _: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        if self.training and torch.is_grad_enabled():  # Monte-Carlo dropout trains without gradients
            return None
        if logits.dim() != 2:
            raise EbmcalError("Laplace needs one feature vector per text, but this encoder has one per token.")
        with torch.autocast(logits.device.type, enabled=False):
            return logits.float() / (1 + self.logit_variances(inputs[0]) * math.pi / 8).sqrt()


def best_precision(curvature: Tensor, norm: float) -> Tensor:
    """The τ with the largest marginal likelihood, up to a constant -τ |W|² / 2 + Σ log(τ / (curvature + τ)) / 2."""
    precisions = PRECISIONS.to(curvature.device)
    fit = torch.stack([torch.log(tau / (curvature + tau)).sum() for tau in precisions])
    return precisions[(fit - precisions * norm).argmax()]


def _with_bias(features: Tensor) -> Tensor:
    return F.pad(features.float(), (0, 1), value=1.0)


HEADS["laplace"] = LastLayerGaussian
