"""The paper's method: cross-entropy plus noise contrastive estimation (He et al., EACL 2021, section 3).

    L_CE    = E_data [-log P(y|x)]                                                            (equation 1)
    L_NCE   = E_data [-log 1 / (1 + K exp Ê(x))] + K E_noise [-log K / (K + exp -Ê(x))]       (equation 7)
    L_joint = L_CE + λ L_NCE, with λ = 1 in the paper                                         (equation 8)

The density of the model is exp(-Ê(x)) P_noise(x), so the density of the noise cancels and is never evaluated. Both
fractions are sigmoids, so the terms are softplus(Ê + log K) and softplus(-Ê - log K), which cannot overflow. There are
K noise texts per data text: the mean over noise times K is a sum over noise divided by the number of *data* texts. So
every term is a sum over texts divided by the number of data texts of the step, and a step can be split into
micro-batches of any size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebmcal.modeling.classifier import EnergyClassifier, EnergyOutput
from ebmcal.modeling.packing import PackedBatch

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from ebmcal.training.trainer import EnergyTrainer


@dataclass(frozen=True)
class MicroBatch:
    """Some texts of a training step: data texts with their labels, and noise texts."""

    texts: PackedBatch
    labels: Tensor  # [n] int64; 0 for noise, where it is not used
    is_noise: Tensor  # [n] bool
    step_has_noise: bool = False  # whether any text of the whole step is noise

    @property
    def data(self) -> Tensor:
        """1 for data texts, 0 for noise: [n]. Weights instead of indexing, which would wait for the GPU."""
        return (~self.is_noise).float()

    @property
    def noise(self) -> Tensor:
        """1 for noise texts, 0 for data: [n]."""
        return self.is_noise.float()

    def to(self, device: torch.device | str, **_: Any) -> "MicroBatch":
        return self._map(lambda x: x.to(device))

    def pin_memory(self) -> "MicroBatch":
        return self._map(lambda x: x.pin_memory())

    def _map(self, f: Callable[[Any], Any]) -> "MicroBatch":
        return MicroBatch(f(self.texts), f(self.labels), f(self.is_noise), self.step_has_noise)


#: name -> (one value per text [n], weight). The loss is their weighted sum over the number of data texts.
Terms = dict[str, tuple[Tensor, float]]


def nce_data_term(energies: Tensor, noise_ratio: float) -> Tensor:
    """First expectation of equation 7, for data texts: softplus(Ê + log K), [n] -> [n]."""
    return F.softplus(energies + math.log(noise_ratio))


def nce_noise_term(energies: Tensor, noise_ratio: float) -> Tensor:
    """Second expectation of equation 7, for noise texts: softplus(-Ê - log K), [n] -> [n]."""
    return F.softplus(-energies - math.log(noise_ratio))


class Method:
    """Cross-entropy (equation 1): the baseline, optionally with label smoothing. Base class of all methods."""

    #: Whether `terms` neither draws random numbers nor changes anything, so that two threads may call it.
    is_thread_safe = True

    def __init__(self, args: Any, smoothed: bool = False) -> None:
        self.args = args
        self.smoothing: float = args.label_smoothing if smoothed else args.label_smoothing_factor

    def prepare(self, model: EnergyClassifier, tokenizer: Any) -> None:
        """Called once before training; may add modules to the model."""

    def callbacks(self, trainer: "EnergyTrainer") -> "list[TrainerCallback]":
        """Trainer callbacks of this method."""
        return []

    def finish(self, trainer: "EnergyTrainer") -> None:
        """Called once after training, before the model is saved."""

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        """The terms of the loss and the outputs of the model. `progress` is the finished share of the training."""
        output = model(batch.texts)
        return {"cross_entropy": (self.cross_entropy(output.logits, batch), 1.0)}, output

    def cross_entropy(self, logits: Tensor, batch: MicroBatch) -> Tensor:
        """-log P(y|x) for data texts, 0 for noise: [n]."""
        values = F.cross_entropy(logits, batch.labels, reduction="none", label_smoothing=self.smoothing)
        return values * batch.data


class Joint(Method):
    """Cross-entropy plus noise contrastive estimation (equation 8)."""

    def terms(self, model: nn.Module, batch: MicroBatch, progress: float) -> tuple[Terms, EnergyOutput]:
        terms, output = super().terms(model, batch, progress)
        return terms | self.nce_terms(output.energies, batch, progress), output

    def nce_terms(self, energies: Tensor, batch: MicroBatch, progress: float) -> Terms:
        """Both terms of equation 7; none in a step without noise, where only the data's energies would fall."""
        if not batch.step_has_noise:
            return {}
        k, weight = self.args.noise_ratio, self.args.energy_weight_at(progress)
        return {
            "nce_data": (nce_data_term(energies, k) * batch.data, weight),
            "nce_noise": (nce_noise_term(energies, k) * batch.noise, weight),
        }
