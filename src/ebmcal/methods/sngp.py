"""SNGP (Liu et al. 2020): a Gaussian process as the last layer, on features that preserve distances.

    random features  φ(h) = √2 cos(W h + b), W and b fixed; h normalised to length 1
    logits           f(x), the stock last layer applied to φ: its weights are the mean of the process
    variance         v(x) = φᵀ (I + Σ φφᵀ)⁻¹ φ over the training texts, φ divided by the root of its size
    prediction       f(x) / √(1 + v(x) π / 8), the mean-field approximation of the expected posterior

The spectral norm of the layer that computes h is kept below 0.95 by one power iteration per pass. Everything hangs on
hooks of two stock layers; W, b and the covariance are saved as the energy head.
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

#: The bound of the spectral norm that the authors use for BERT.
SPECTRAL_BOUND = 0.95


class SNGP(Method):
    """Cross-entropy; the classifier's last layer is a Gaussian process."""

    is_thread_safe = False

    def finish(self, trainer: "EnergyTrainer") -> None:
        process: Any = trainer.classifier.energy_head
        with process.learn_covariance():
            trainer.predict_train()


class GaussianProcess(nn.Module):
    """The head of SNGP, with as many random features as the last layer has inputs. Its energy is `hidden`."""

    directions: Tensor  # [H, H]
    phases: Tensor  # [H]
    covariance: Tensor  # [H, H], zero until it is learned
    left: Tensor  # [D], estimate of the first left singular vector of the layer that computes the features

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        last, dense = last_layer(encoder, "SNGP"), _previous_layer(encoder)
        size = last.in_features
        self.register_buffer("directions", torch.randn(size, size))
        self.register_buffer("phases", 2 * math.pi * torch.rand(size))
        self.register_buffer("covariance", torch.zeros(size, size))
        self.register_buffer("left", F.normalize(torch.randn(dense.out_features), dim=0))
        self._last = (last,)  # in a tuple: its weights belong to the encoder
        dense.register_forward_pre_hook(self._bound_spectral_norm)
        last.register_forward_pre_hook(self._expand)
        last.register_forward_hook(self._shrink)

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of logits [n, C] that include the variance: a monotone Dempster-Shafer score."""
        return hidden(logits)

    @contextlib.contextmanager
    def learn_covariance(self) -> Iterator[None]:
        """Learn the covariance from the texts that pass through the model inside this block."""
        precision = torch.eye(len(self.phases), dtype=torch.float64, device=self.phases.device)

        def gather(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # runs after `_expand`
            phi = inputs[0].detach().double()  # [n, H]
            precision.addmm_(phi.T, phi, alpha=1 / phi.shape[1])

        hook = self._last[0].register_forward_pre_hook(gather)
        try:
            yield
        finally:
            hook.remove()
        self.covariance.copy_(torch.cholesky_inverse(torch.linalg.cholesky(precision)))

    def _is_learning(self) -> bool:
        return self.training and torch.is_grad_enabled()  # Monte-Carlo dropout trains without gradients

    def _bound_spectral_norm(self, dense: nn.Module, _: object) -> None:
        if not self._is_learning():
            return
        with torch.no_grad():
            right = F.normalize(dense.weight.T @ self.left, dim=0)
            image = dense.weight @ right
            self.left.copy_(F.normalize(image, dim=0))
            dense.weight.mul_((SPECTRAL_BOUND / image.norm()).clamp(max=1.0))

    def _expand(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        features = inputs[0]
        if features.dim() != 2:
            raise EbmcalError("SNGP needs one feature vector per text, but this encoder has one per token.")
        with torch.autocast(features.device.type, enabled=False):
            size = features.shape[1]
            unit = F.layer_norm(features.float(), (size,)) / math.sqrt(size)  # [n, H]
            return (math.sqrt(2) * torch.cos(unit @ self.directions.T + self.phases),)

    def _shrink(self, _: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        if self._is_learning():
            return None
        phi = inputs[0]
        variance = ((phi @ self.covariance) * phi).mean(dim=1, keepdim=True)  # [n, 1]
        return logits / (1 + variance * math.pi / 8).sqrt()


def _previous_layer(encoder: nn.Module) -> nn.Linear:
    """The linear layer that computes the features of the last one: the pooler's, or the first one of the head."""
    linear = [m for m in encoder.modules() if isinstance(m, nn.Linear)]
    return linear[linear.index(last_layer(encoder, "SNGP")) - 1]


HEADS["sngp"] = GaussianProcess
