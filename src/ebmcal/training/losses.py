"""The terms of the joint loss, one value a text. Their sum over a step divided by its data texts is the loss.

    data term    -log 1 / (1 + K exp E(x))    = softplus( E(x) + log K)
    noise term   -log K / (K + exp(-E(x)))    = softplus(-E(x) - log K)

The noise term averaged over noise is weighted by K, and there are K noise texts a data text, so both terms are
plain sums over texts divided by the number of data texts. softplus is the stable form: log(1 + exp(E)) overflows.
"""

import math

import torch.nn.functional as F
from torch import Tensor


def nce_data_term(energies: Tensor, noise_ratio: float) -> Tensor:
    """softplus(E + log K) for data texts: [n] -> [n].

    >>> import torch
    >>> nce_data_term(torch.zeros(1), noise_ratio=1).item()
    0.6931471824645996
    """
    return F.softplus(energies + math.log(noise_ratio))


def nce_noise_term(energies: Tensor, noise_ratio: float) -> Tensor:
    """softplus(-E - log K) for noise texts: [n] -> [n].

    >>> import torch
    >>> nce_noise_term(torch.zeros(1), noise_ratio=1).item()
    0.6931471824645996
    """
    return F.softplus(-energies - math.log(noise_ratio))


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log P(y|x), a share `smoothing` of the label spread over all classes: logits [n, C], labels [n] -> [n]."""
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def focal(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """-(1 - P(y|x))^gamma log P(y|x): what is learned already weighs less: logits [n, C], labels [n] -> [n].

    >>> import torch
    >>> focal(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0).item()
    0.3465735912322998
    """
    log_prob = -cross_entropy(logits, labels)
    missing = (1 - log_prob.exp()).clamp(min=1e-12)  # a power below 1 has no finite slope at 0
    return -(missing**gamma) * log_prob


def uniform_term(logits: Tensor) -> Tensor:
    """Cross-entropy with the uniform distribution: logits [n, C] -> [n]."""
    return -F.log_softmax(logits, dim=-1).mean(dim=-1)


def negative_entropy(logits: Tensor) -> Tensor:
    """sum_y P(y) log P(y), least for the uniform distribution: logits [n, C] -> [n].

    >>> import torch
    >>> negative_entropy(torch.zeros(1, 2)).item()
    -0.6931471824645996
    """
    logs = F.log_softmax(logits, dim=-1)
    return (logs.exp() * logs).sum(dim=-1)


def posterior_mse(probs: Tensor, frequencies: Tensor) -> Tensor:
    """PosCal's squared distance between posteriors and the frequencies of their bins: [n, C] twice -> [n]."""
    return (probs - frequencies).square().sum(dim=-1)


def posterior_kl(probs: Tensor, frequencies: Tensor, floor: float = 1e-6) -> Tensor:
    """PosCal's KL(frequency || posterior), frequencies normalised and kept off zero: [n, C] twice -> [n]."""
    target = frequencies.clamp_min(floor)
    target = target / target.sum(dim=-1, keepdim=True)
    return (target * (target.log() - probs.clamp_min(floor).log())).sum(dim=-1)


def separation(data_energies: Tensor, noise_energies: Tensor) -> Tensor:
    """How often a data text has a lower energy than a noise text, ties half: the AUROC of telling them apart.

    >>> import torch
    >>> separation(torch.tensor([-1.0]), torch.tensor([1.0, -2.0])).item()
    0.5
    """
    gap = noise_energies[None, :] - data_energies[:, None]  # [n_data, n_noise]
    return (gap > 0).double().mean() + 0.5 * (gap == 0).double().mean()
