"""Energies of a text, computed from the logits f(x) of a classifier: low energy = looks like data.

    hidden         Ê(x) = -(logsumexp_y f(x)[y] - log C)        equation 4 of the paper, centred
    sharp-hidden   Ê(x) = -max_y f(x)[y]                        equation 5 of the paper
    scalar         Ê(x) = g(features(x)), a linear layer        equation 3; see `ebmcal.modeling.classifier`

Why centred: at initialisation all logits are about 0, so the published -logsumexp f is about -log C. NCE starts from
Ê = 0 (data and noise equally likely) only if that offset is removed; otherwise it first drags every logit down, which
costs accuracy when there are many classes (-log 150 = -5.0). With two classes the offset is only -0.7. -max f is 0 for
equal logits and needs no centring. `centered=False` gives the published form.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def hidden(logits: Tensor, centered: bool = True) -> Tensor:
    """-logsumexp over the classes, 0 for logits of 0 if centred: [n, C] -> [n].

    >>> hidden(torch.zeros(1, 150)).item(), round(hidden(torch.zeros(1, 150), centered=False).item(), 2)
    (-0.0, -5.01)
    """
    offset = math.log(logits.shape[-1]) if centered else 0.0
    return -(torch.logsumexp(logits, dim=-1) - offset)


def sharp_hidden(logits: Tensor, centered: bool = True) -> Tensor:
    """-max over the classes; 0 for logits of 0 with or without centring: [n, C] -> [n].

    >>> sharp_hidden(torch.tensor([[1.0, 3.0]])).item()
    -3.0
    """
    return -logits.amax(dim=-1)


#: Energies that are functions of the logits alone.
ENERGIES: dict[str, Callable[[Tensor, bool], Tensor]] = {"hidden": hidden, "sharp-hidden": sharp_hidden}
