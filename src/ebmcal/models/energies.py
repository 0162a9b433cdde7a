"""Energies of a text from a classifier's logits: low = looks like data.

    hidden         E(x) = -logsumexp_y f(x)[y]
    sharp-hidden   E(x) = -max_y f(x)[y]
    scalar         E(x) = g(features(x)), a linear layer of its own (`ebmcal.models.classifier` holds it)
    scaled-hidden  E(x) = -s logsumexp_y f(x)[y] + b, with s > 0 and b learned (there as well)
    sngp           hidden, of the logits of a Gaussian process (`ebmcal.models.sngp`)

Pure functions of tensors; the model density is exp(-E(x)) P_N(x), so the noise density cancels in the loss.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def hidden(logits: Tensor) -> Tensor:
    """-logsumexp over the classes: [n, C] -> [n].

    >>> hidden(torch.tensor([[0.0, 0.0]])).item()
    -0.6931471824645996
    """
    return -torch.logsumexp(logits, dim=-1)


def sharp_hidden(logits: Tensor) -> Tensor:
    """-max over the classes: [n, C] -> [n].

    >>> sharp_hidden(torch.tensor([[1.0, 3.0]])).item()
    -3.0
    """
    return -logits.amax(dim=-1)


#: Energies that are functions of the logits alone; those with weights are in `ebmcal.models.classifier.HEADS`.
ENERGIES: dict[str, Callable[[Tensor], Tensor]] = {"hidden": hidden, "sharp-hidden": sharp_hidden}
