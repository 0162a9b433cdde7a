"""The training methods: each says which energy it has, whether it needs noise, and which terms its loss has.

A term is one value a text and a weight; the loss of a step is the weighted sum over its texts divided by the number of
data texts (see `losses` for why that equals the paper's form). Adding a method is a function, an entry in
`METHODS` and a test.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ebmcal.errors import unknown_name
from ebmcal.training import losses


@dataclass(frozen=True)
class Rows:
    """The outputs of a (micro-)batch: data texts come with a label, noise texts of source s with label -1 - s."""

    logits: Tensor  # [n, C]
    energies: Tensor  # [n]
    labels: Tensor  # [n]
    mixed: Tensor | None = None  # [n, 3], labels of the parts of a noise text and the share of the first, or -1
    masked: Tensor | None = None  # [n], losses of filling in masked tokens
    near: Tensor | None = None  # [n, C], logits of samples on the manifold
    far: Tensor | None = None  # [n, C], of samples off the manifold
    partners: Tensor | None = None  # [n], the texts that `near` lean towards

    @property
    def is_data(self) -> Tensor:
        return self.labels >= 0


@dataclass
class Settings:
    """What the terms depend on. `frequencies` [C, B] is PosCal's table, refreshed during training."""

    noise_ratio: int = 8
    energy_weight: float = 1.0  # the paper's lambda
    poscal_weight: float = 1.0
    label_smoothing: float = 0.1
    focal_gamma: float = 2.0
    mix_weight: float = 1.0
    mixup_alpha: float = 0.4
    mlm_weight: float = 0.1
    manifold_on: float = 1e-4
    manifold_off: float = 1e-3
    manifold_mix: float = 0.1
    poscal_bins: int = 20
    frequencies: Tensor | None = field(default=None, repr=False)


#: name -> (one value a text, weight)
Terms = dict[str, tuple[Tensor, float]]


def plain(rows: Rows, settings: Settings) -> Terms:
    """Cross-entropy alone."""
    data = rows.is_data
    return {"cross_entropy": (losses.cross_entropy(rows.logits[data], rows.labels[data]), 1.0)}


def smoothed(rows: Rows, settings: Settings) -> Terms:
    """Cross-entropy with smoothed labels (Szegedy et al. 2016)."""
    data = rows.is_data
    values = losses.cross_entropy(rows.logits[data], rows.labels[data], settings.label_smoothing)
    return {"cross_entropy": (values, 1.0)}


def focal(rows: Rows, settings: Settings) -> Terms:
    """Focal loss in place of cross-entropy (Lin et al. 2017; for calibration Mukhoti et al. 2020)."""
    data = rows.is_data
    return {"focal": (losses.focal(rows.logits[data], rows.labels[data], settings.focal_gamma), 1.0)}


def mixup(rows: Rows, settings: Settings) -> Terms:
    """Mixup of the features in front of the last layer (Verma et al. 2019; for finetuning Park and Caragea 2022).

    That layer is linear, so logits are mixed, and labels in the same shares, drawn from Beta(a, a). Texts are paired
    within the (micro-)batch.
    """
    data = rows.is_data
    logits, labels = rows.logits[data], rows.labels[data]
    order = torch.randperm(len(labels), device=labels.device)
    alpha = torch.full((len(labels),), settings.mixup_alpha, dtype=logits.dtype, device=logits.device)
    share = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()  # [n]
    mixed = share[:, None] * logits + (1 - share)[:, None] * logits[order]
    of_one, of_other = (losses.cross_entropy(mixed, which) for which in (labels, labels[order]))
    return {"cross_entropy": (share * of_one + (1 - share) * of_other, 1.0)}


def masked_aux(rows: Rows, settings: Settings) -> Terms:
    """Cross-entropy, and words of the texts are masked and filled in, as in pretraining (He et al. 2023)."""
    terms = plain(rows, settings)
    if rows.masked is not None:
        terms["masked_term"] = (rows.masked[rows.is_data], settings.mlm_weight)
    return terms


def manifold(rows: Rows, settings: Settings) -> Terms:
    """Cross-entropy; samples near a text share its label with another's, farther ones have none (Kong et al. 2020).

    `ebmcal.models.manifold` makes the samples. All terms weigh the same, as in the paper.
    """
    terms = plain(rows, settings)
    if rows.near is not None and rows.far is not None and rows.partners is not None:
        data, share = rows.is_data, settings.manifold_mix
        of_own, of_other = (
            losses.cross_entropy(rows.near[data], labels[data]) for labels in (rows.labels, rows.labels[rows.partners])
        )
        terms["near_term"] = ((1 - share) * of_own + share * of_other, 1.0)
        terms["far_term"] = (losses.negative_entropy(rows.far[data]), 1.0)
    return terms


def energy_terms(rows: Rows, settings: Settings) -> Terms:
    """Noise contrastive estimation alone (He et al. 2021), beside whichever loss the labels have."""
    data, k, weight = rows.is_data, settings.noise_ratio, settings.energy_weight
    return {
        "data_term": (losses.nce_data_term(rows.energies[data], k), weight),
        "noise_term": (losses.nce_noise_term(rows.energies[~data], k), weight),
    }


def joint(rows: Rows, settings: Settings) -> Terms:
    """Cross-entropy and noise contrastive estimation: the paper's loss."""
    return plain(rows, settings) | energy_terms(rows, settings)


def joint_smoothed(rows: Rows, settings: Settings) -> Terms:
    """The paper's loss with smoothed labels."""
    return smoothed(rows, settings) | energy_terms(rows, settings)


def noise_entropy(rows: Rows, settings: Settings) -> Terms:
    """Cross-entropy, and uniform labels on the noise: it is seen, and no energy learned (after NoiER, 2021)."""
    return plain(rows, settings) | {
        "uniform_term": (losses.uniform_term(rows.logits[~rows.is_data]), settings.energy_weight)
    }


def joint_entropy(rows: Rows, settings: Settings) -> Terms:
    """The paper's loss, and uniform labels on the noise."""
    return noise_entropy(rows, settings) | energy_terms(rows, settings)


def cutmix(rows: Rows, settings: Settings) -> Terms:
    """Cross-entropy, and on spliced noise the labels of its parts in their shares (after CutMix, Yun et al. 2019)."""
    terms = plain(rows, settings)
    if rows.mixed is not None:
        known = rows.mixed[:, 2] >= 0
        first, other, share = rows.mixed[known].unbind(dim=1)
        of_first, of_other = (losses.cross_entropy(rows.logits[known], labels.long()) for labels in (first, other))
        terms["mixed_term"] = (share * of_first + (1 - share) * of_other, settings.mix_weight)
    return terms


def joint_cutmix(rows: Rows, settings: Settings) -> Terms:
    """The paper's loss, and mixed labels on spliced noise."""
    return cutmix(rows, settings) | energy_terms(rows, settings)


def poscal(
    rows: Rows, settings: Settings, distance: Callable[[Tensor, Tensor], Tensor] = losses.posterior_mse
) -> Terms:
    """Cross-entropy and the distance of posteriors from the label frequencies of their bins (Jung et al. 2020).

    Until the table is first filled, and in bins that held no text, there is nothing to move towards.
    """
    terms = plain(rows, settings)
    if settings.frequencies is not None:
        probs = torch.softmax(rows.logits[rows.is_data], dim=-1)
        terms["posterior_term"] = (
            distance(probs, _bin_frequencies(probs, settings.frequencies)),
            settings.poscal_weight,
        )
    return terms


def poscal_kl(rows: Rows, settings: Settings) -> Terms:
    """PosCal with the KL divergence in place of the squared distance."""
    return poscal(rows, settings, losses.posterior_kl)


def label_frequencies(probs: Tensor, labels: Tensor, n_bins: int) -> Tensor:
    """Share of texts with label y among those whose P(y|x) is in each bin; NaN where a bin is empty: [C, B].

    >>> label_frequencies(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), n_bins=2)
    tensor([[nan, 1.],
            [0., nan]])
    """
    n_classes = probs.shape[1]
    bins = (probs * n_bins).long().clamp(max=n_bins - 1)  # [n, C]
    slots = (bins + torch.arange(n_classes) * n_bins).flatten()
    hits = torch.nn.functional.one_hot(labels, n_classes).to(probs.dtype).flatten()
    size = n_classes * n_bins
    counts = torch.zeros(size, dtype=probs.dtype).index_add(0, slots, torch.ones_like(hits))
    return (torch.zeros(size, dtype=probs.dtype).index_add(0, slots, hits) / counts).view(n_classes, n_bins)


def _bin_frequencies(probs: Tensor, table: Tensor) -> Tensor:
    fixed = probs.detach()
    bins = (fixed * table.shape[1]).long().clamp(max=table.shape[1] - 1)  # [n, C]
    found = table.to(probs)[torch.arange(table.shape[0], device=probs.device), bins]  # [n, C]
    return torch.where(found.isnan(), fixed, found)


@dataclass(frozen=True)
class Method:
    """A row of the results table."""

    title: str
    energy: str  # what predictions record; without noise it is the classifier's own, untrained
    terms: Callable[[Rows, Settings], Terms]
    uses_noise: bool = False
    uses_frequencies: bool = False
    uses_masking: bool = False  # needs an encoder that comes with its masked-LM head
    uses_manifold: bool = False  # sees samples beside the texts
    terms_without_noise: Callable[[Rows, Settings], Terms] = plain  # of a step that has none


METHODS: dict[str, Method] = {
    "baseline": Method("Baseline", "hidden", plain),
    "poscal": Method("PosCal (MSE)", "hidden", poscal, uses_frequencies=True),
    "poscal-kl": Method("PosCal (KL)", "hidden", poscal_kl, uses_frequencies=True),
    "label-smoothing": Method("Label smoothing", "hidden", smoothed),
    "focal": Method("Focal loss", "hidden", focal),
    "mixup": Method("Mixup of features", "hidden", mixup),
    "mlm-aux": Method("Masked LM beside the labels", "hidden", masked_aux, uses_masking=True),
    "manifold": Method("On and off the manifold", "hidden", manifold, uses_manifold=True),
    "sngp": Method("SNGP", "sngp", plain),
    "noise-entropy": Method("Uniform labels on noise", "hidden", noise_entropy, uses_noise=True),
    "cutmix": Method("Mixed labels on spliced noise", "hidden", cutmix, uses_noise=True),
    "scalar": Method("EBM scalar", "scalar", joint, uses_noise=True),
    "hidden": Method("EBM hidden", "hidden", joint, uses_noise=True),
    "sharp-hidden": Method("EBM sharp-hidden", "sharp-hidden", joint, uses_noise=True),
    "scaled-hidden": Method("EBM scaled hidden", "scaled-hidden", joint, uses_noise=True),
    "hidden-cutmix": Method("EBM hidden, mixed labels", "hidden", joint_cutmix, uses_noise=True),
    "hidden-entropy": Method("EBM hidden, uniform labels on noise", "hidden", joint_entropy, uses_noise=True),
    "hidden-smoothing": Method(
        "EBM hidden, label smoothing", "hidden", joint_smoothed, uses_noise=True, terms_without_noise=smoothed
    ),
}


def find_method(name: str) -> Method:
    """The method of that name, or an error with close matches."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
