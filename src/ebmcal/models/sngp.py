"""A Gaussian process as the last layer, on features that keep distances (SNGP, Liu et al. 2020).

    random features  φ(h) = √2 cos(W h + b), W and b drawn once; h normalised to length 1
    logits           f(x), the stock last layer applied to φ: its weights are the mean of the process
    variance         v(x) = φᵀ (I + Σ φφᵀ)⁻¹ φ over the training texts, φ divided by the root of its size
    prediction       f(x) / √(1 + v(x) π / 8), the mean-field approximation of the expected posterior

The layer that makes h keeps a spectral norm below 0.95, by one step of power iteration in each pass. All of it hangs on
hooks of two stock layers; W, b and the covariance lie in the file of the energy heads.
"""

import contextlib
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebmcal.errors import EbmcalError
from ebmcal.models.energies import hidden
from ebmcal.models.packing import last_layer

#: As theirs for BERT: the bound of the spectral norm.
BOUND = 0.95


class GaussianProcess(nn.Module):
    """The head of sngp: as many random features as the last layer has inputs. Its energy is `hidden`."""

    directions: Tensor  # [H, H]
    phases: Tensor  # [H]
    covariance: Tensor  # [H, H], zero until it is learned
    left: Tensor  # [D], the first left singular vector of the layer that makes the features, as far as it is known

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        last, dense = last_layer(encoder, "sngp"), _layer_before(encoder)
        size = last.in_features
        self.register_buffer("directions", torch.randn(size, size))
        self.register_buffer("phases", 2 * math.pi * torch.rand(size))
        self.register_buffer("covariance", torch.zeros(size, size))
        self.register_buffer("left", F.normalize(torch.randn(dense.out_features), dim=0))
        self._last = (last,)  # not a part of this module: its weights are the encoder's
        dense.register_forward_pre_hook(self._bound)
        last.register_forward_pre_hook(self._expand)
        last.register_forward_hook(self._shrink)

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of logits [n, C], which have seen the variance: the order of their Dempster-Shafer metric."""
        return hidden(logits)

    @contextlib.contextmanager
    def learning_covariance(self) -> Iterator[None]:
        """Learn the covariance of the texts that pass through the model meanwhile."""
        precision = torch.eye(len(self.phases), dtype=torch.float64, device=self.phases.device)

        def gather(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # comes behind `_expand`
            phi = inputs[0].detach().double()  # [n, H]
            precision.addmm_(phi.T, phi, alpha=1 / phi.shape[1])

        hook = self._last[0].register_forward_pre_hook(gather)
        try:
            yield
        finally:
            hook.remove()
        self.covariance.copy_(torch.cholesky_inverse(torch.linalg.cholesky(precision)))

    def _is_learning(self) -> bool:
        return self.training and torch.is_grad_enabled()  # dropout at prediction time is training without gradients

    def _bound(self, dense: nn.Module, _: object) -> None:
        if not self._is_learning():
            return
        with torch.no_grad():
            right = F.normalize(dense.weight.T @ self.left, dim=0)
            image = dense.weight @ right
            self.left.copy_(F.normalize(image, dim=0))
            dense.weight.mul_((BOUND / image.norm()).clamp(max=1.0))

    def _expand(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        features = inputs[0]
        if features.dim() != 2:
            raise EbmcalError("sngp needs one feature vector a text, and this encoder has one a token.")
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


def _layer_before(encoder: nn.Module) -> nn.Linear:
    """The linear layer that makes the features of the last one: the pooler's, or the first one of the head."""
    linear = [m for m in encoder.modules() if isinstance(m, nn.Linear)]
    return linear[linear.index(last_layer(encoder, "sngp")) - 1]
