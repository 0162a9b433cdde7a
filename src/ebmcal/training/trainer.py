"""Joint training: one encoder pass over data and noise serves cross-entropy and the energy terms.

A thin `transformers.Trainer`: callbacks, logging, checkpoints, schedulers, gradient accumulation, bf16 and torchrun are
the Trainer's own. Batches come from a `TrainingPlan`, in order; each step logs the terms of the loss, the mean energies
and how often the energy tells data from noise; evaluation records accuracy and calibration.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.packing import pack
from ebmcal.models.scoring import score
from ebmcal.training.callbacks import FrequencyRefresher
from ebmcal.training.losses import separation
from ebmcal.training.methods import Method, Rows, Settings, label_frequencies, plain
from ebmcal.training.microbatch import Batch, MicroBatchTrainer
from ebmcal.training.plan import Collator

#: An energy beyond this is divergence, whatever the loss still says.
ENERGY_LIMIT = 1e4

#: PosCal refreshes its table this often in an epoch.
REFRESHES = 10


class JointTrainer(MicroBatchTrainer):
    """Trains an `EnergyClassifier` by a `Method` over a `TrainingPlan`.

    `evaluation` maps the model to a dictionary of figures; it is called whenever the Trainer evaluates.
    """

    def __init__(
        self,
        model: EnergyClassifier,
        *,
        method: Method,
        settings: Settings,
        collator: Collator,
        evaluation: Callable[[EnergyClassifier], dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        # `evaluate` is our own; the Trainer only wants to see that there is something to evaluate on.
        super().__init__(model, data_collator=collator, eval_dataset=[] if evaluation else None, **kwargs)
        self.method, self.settings, self.evaluation = method, settings, evaluation
        self._terms: dict[str, float] = defaultdict(float)
        self._energies: list[tuple[Tensor, Tensor]] = []  # (labels, energies) of the micro-batches of a step
        if method.uses_frequencies:
            self.add_callback(self._frequency_refresher(collator))

    def micro_loss(self, model: nn.Module, inputs: Batch, chosen: np.ndarray) -> Tensor:
        """The weighted terms of these texts over the number of data texts of the step."""
        n_data = int((inputs["labels"] >= 0).sum())
        rows = self._forward(model, inputs, chosen)
        # Keeps the graph whole when a micro-batch has no text that a term applies to.
        total = (rows.logits.sum() + rows.energies.sum()) * 0.0
        # Without noise a step is cross-entropy alone: a data term by itself would only push energies down.
        has_terms = not self.method.uses_noise or bool((inputs["labels"] < 0).any())
        for name, (values, weight) in (self.method.terms if has_terms else plain)(rows, self.settings).items():
            part = values.sum() / n_data
            self._terms[name] += part.item()
            total = total + weight * part
        self._energies.append((rows.labels, rows.energies.detach()))
        return total

    def step_done(self) -> None:
        """Count the step and note the energies of its texts."""
        for name, value in self._terms.items():
            self.note(name, value)
        self._terms.clear()
        labels, energies = (torch.cat(parts) for parts in zip(*self._energies, strict=True))
        self._energies.clear()
        if (largest := energies.abs().max().item()) > ENERGY_LIMIT:
            self.diverged("energy", largest)
        data, noise = energies[labels >= 0], energies[labels < 0]
        self.note("energy_data", data.mean().item())
        if len(noise):
            self.note("energy_noise", noise.mean().item())
            self.note("noise_accuracy", separation(data, noise).item())

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Figures of the model as it is now, logged with the prefix `eval_`."""
        if self.evaluation is None:
            return {}
        figures = {f"eval_{k}": v for k, v in self.evaluation(self.accelerator.unwrap_model(self.model)).items()}
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures

    def _forward(self, model: nn.Module, inputs: Batch, chosen: np.ndarray) -> Rows:
        batch = pack([inputs["ids"][i] for i in chosen], [inputs["types"][i] for i in chosen])
        logits, energies = model(batch.to(self.args.device))
        return Rows(logits, energies, torch.from_numpy(inputs["labels"][chosen]).to(logits.device))

    def _frequency_refresher(self, collator: Collator) -> FrequencyRefresher:
        def refresh() -> None:
            logits, _ = score(self.accelerator.unwrap_model(self.model), collator.data)
            probs = torch.softmax(torch.from_numpy(logits), dim=-1)
            labels = torch.from_numpy(np.asarray(collator.labels, dtype=np.int64))
            self.settings.frequencies = label_frequencies(probs, labels, self.settings.poscal_bins)

        every = max(1, round(len(collator.labels) / (self.train_dataset.batch_size * REFRESHES)))
        return FrequencyRefresher(every, refresh, self.settings)
