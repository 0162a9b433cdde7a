"""What a training logs beside its loss: the terms of a step, the energies of its texts, how often they are told apart.

The loss of a step is a sum over its texts, so a step may be cut into passes of any size: `StepTerms` gathers the terms
over the passes. A figure that is not finite, or an energy beyond `ENERGY_LIMIT`, stops the training.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Trainer

from ebmcal.errors import EbmcalError
from ebmcal.training.losses import separation
from ebmcal.training.methods import Rows, Terms

#: An energy beyond this is divergence, whatever the loss still says.
ENERGY_LIMIT = 1e4


class StepTerms:
    """The terms of a step and the energies of its texts, gathered over its passes."""

    def __init__(self) -> None:
        self.terms: dict[str, float] = defaultdict(float)
        self._energies: list[tuple[Tensor, Tensor]] = []  # (labels, energies) of each pass

    def add(self, terms: Terms, rows: Rows, n_data: int) -> Tensor:
        """What the texts of a pass add to the loss: their weighted terms over the number of data texts of the step."""
        # Keeps the graph whole when a pass has no text that a term applies to.
        total = (rows.logits.sum() + rows.energies.sum()) * 0.0
        for name, (values, weight) in terms.items():
            part = values.sum() / n_data
            self.terms[name] += part.item()
            total = total + weight * part
        self._energies.append((rows.labels, rows.energies.detach()))
        return total

    def energies(self) -> tuple[Tensor, Tensor]:
        """The labels and the energies of all texts of the step."""
        labels, energies = (torch.cat(parts) for parts in zip(*self._energies, strict=True))
        return labels, energies


class NotingTrainer(Trainer):
    """A Trainer whose figures, added with `note`, are averaged over steps and logged with the loss."""

    #: What to try when a training diverges.
    advice = "Try a smaller learning rate, a smaller energy weight, a longer warm-up or --precision fp32."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        super().__init__(*args, **kwargs)

    def note(self, name: str, value: float) -> None:
        """A figure of this step; one that is not finite stops the training."""
        if not np.isfinite(value):
            self.diverged(name, value)
        self._sums[name] += value
        self._counts[name] += 1

    def note_step(self, step: StepTerms, sources: Sequence[str] = ()) -> None:
        """The terms of a step, the mean energies of its texts, and how often the energy tells data from noise.

        Of several `sources`, noise of source s has label -1 - s and is noted apart as well.
        """
        for name, value in step.terms.items():
            self.note(name, value)
        labels, energies = step.energies()
        if (largest := energies.abs().max().item()) > ENERGY_LIMIT:
            self.diverged("energy", largest)
        data, noise = energies[labels >= 0], energies[labels < 0]
        self.note("energy_data", data.mean().item())
        if len(noise):
            self.note("energy_noise", noise.mean().item())
            self.note("noise_accuracy", separation(data, noise).item())
        for number, name in enumerate(sources):
            if len(noise := energies[labels == -1 - number]):
                self.note(f"noise_accuracy_{name}", separation(data, noise).item())

    def diverged(self, name: str, value: float, step: int | None = None) -> None:
        """Stop before anything of this step, by default the one that is being made, is saved."""
        raise EbmcalError(
            f"Training diverged at step {step or self.state.global_step + 1}: {name} is {value}. "
            f"The last checkpoint is kept. {self.advice}"
        )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the noted figures, averaged over the steps since the last line."""
        if "loss" in logs:
            logs |= {name: total / self._counts[name] for name, total in self._sums.items()}
            self._sums.clear()
            self._counts.clear()
        # The weights are spoilt; a checkpoint would come after the log. A scaler of float16 passes such steps over.
        if not self.args.fp16 and not np.isfinite(logs.get("grad_norm", 0.0)):
            self.diverged("the norm of the gradient", logs["grad_norm"], self.state.global_step)
        super().log(logs, *args, **kwargs)
