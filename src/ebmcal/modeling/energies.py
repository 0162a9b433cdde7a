"""The three energies of the paper; f(x) are the logits of a classifier. Low energy = looks like data.

    scalar         Ê(x) = g(enc(x)), a linear layer             equation 3
    hidden         Ê(x) = -(logsumexp_y f(x)[y] - log C)        equation 4, centred
    sharp-hidden   Ê(x) = -max_y f(x)[y]                        equation 5

Why centred: at initialisation all logits are about 0, so the published -logsumexp f is about -log C. NCE starts from
Ê = 0 (data and noise equally likely) only if that offset is removed; otherwise it first lowers every logit, which with
many classes costs calibration and OOD detection. `centered=False` gives the published form.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ebmcal.errors import EbmcalError


def hidden(logits: Tensor, centered: bool = True) -> Tensor:
    """-logsumexp over the classes, 0 for logits of 0 if centred: [n, C] -> [n].

    >>> hidden(torch.zeros(1, 150)).item(), round(hidden(torch.zeros(1, 150), centered=False).item(), 2)
    (-0.0, -5.01)
    """
    offset = math.log(logits.shape[-1]) if centered else 0.0
    return -(torch.logsumexp(logits, dim=-1) - offset)


def sharp_hidden(logits: Tensor, centered: bool = True) -> Tensor:
    """-max over the classes; 0 for logits of 0 with or without centring: [n, C] -> [n]."""
    return -logits.amax(dim=-1)


#: Energies that are functions of the logits alone.
ENERGIES: dict[str, Callable[[Tensor, bool], Tensor]] = {"hidden": hidden, "sharp-hidden": sharp_hidden}


class ScalarHead(nn.Linear):
    """The `scalar` energy: a linear layer on the features that enter the classifier's last layer, [n, H] -> [n]."""

    def __init__(self, encoder: nn.Module) -> None:
        last = last_layer(encoder, "The scalar energy")
        super().__init__(last.in_features, 1)
        self._features: Any = None  # [n, H] of the last forward pass
        last.register_forward_pre_hook(self._keep_features)

    def energies(self, logits: Tensor) -> Tensor:
        """Energies [n] of the last forward pass, in float32; the logits [n, C] are not used."""
        features, self._features = self._features, None
        with torch.autocast(features.device.type, enabled=False):
            return self(features.float()).squeeze(-1)

    def _keep_features(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].dim() != 2:  # classifiers made from language models have logits at every position
            raise EbmcalError("The scalar energy needs one feature vector per text, but this model has one per token.")
        self._features = inputs[0]


#: Energies with their own weights: name -> module with `energies(logits)`. Methods may add theirs (see `methods/sngp`).
HEADS: dict[str, Callable[[nn.Module], Any]] = {"scalar": ScalarHead}


def last_layer(encoder: nn.Module, user: str) -> nn.Linear:
    """The linear layer that computes the logits; `user` is named in the error if there is none."""
    n_labels = encoder.config.num_labels
    layers = [m for m in encoder.modules() if isinstance(m, nn.Linear) and m.out_features == n_labels]
    if not layers:
        raise EbmcalError(f"{user} needs a linear last layer, and {type(encoder).__name__} has none. Use hidden.")
    return layers[-1]
