"""`hidden` with an energy whose gradient reaches the encoder, but not the classifier's last layer."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ebmcal.methods.joint import Joint
from ebmcal.modeling.energies import HEADS, hidden, last_layer


class SparedHead(nn.Module):
    """The energy of the logits that the last layer gives with constant weights."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self._last = (last_layer(encoder, "hidden-spared"),)  # in a tuple: its weights belong to the encoder
        self._features: Any = None
        self._last[0].register_forward_pre_hook(self._keep_features)

    def energies(self, logits: Tensor) -> Tensor:
        last, features = self._last[0], self._features
        return hidden(F.linear(features, last.weight.detach(), last.bias.detach()).float())

    def _keep_features(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]


HEADS["hidden-spared"] = SparedHead


class Spared(Joint):
    """As `hidden`."""
