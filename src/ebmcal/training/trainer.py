"""Joint training: one encoder pass over data and noise serves cross-entropy and the energy terms.

A thin `transformers.Trainer`: callbacks, logging, checkpoints, schedulers, gradient accumulation, bf16 and torchrun are
the Trainer's own. Batches come from a `TrainingPlan`, in order; each step logs the terms of the loss, the mean energies
and how often the energy tells data from noise; evaluation records accuracy and calibration.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.manifold import Around
from ebmcal.models.packing import pack
from ebmcal.models.scoring import score
from ebmcal.training.callbacks import FrequencyRefresher
from ebmcal.training.methods import Method, Rows, Settings, label_frequencies
from ebmcal.training.microbatch import Batch, MicroBatchTrainer
from ebmcal.training.noting import StepTerms
from ebmcal.training.plan import Collator

#: PosCal refreshes its table this often in an epoch.
REFRESHES = 10


class JointTrainer(MicroBatchTrainer):
    """Trains an `EnergyClassifier` by a `Method` over a `TrainingPlan`.

    `evaluation` maps the model to a dictionary of figures; it is called whenever the Trainer evaluates.

        trainer = JointTrainer(model, method=METHODS["hidden"], settings=Settings(), collator=collator, args=arguments)
        trainer.train()
    """

    control: Any  # the Trainer's own

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
        self.noise_names = collator.noise.names if collator.noise is not None else ()
        self._step = StepTerms()
        if method.uses_frequencies:
            self.add_callback(self._frequency_refresher(collator))

    def micro_loss(self, model: nn.Module, inputs: Batch, chosen: np.ndarray) -> Tensor:
        """The weighted terms of these texts over the number of data texts of the step."""
        n_data = int((inputs["labels"] >= 0).sum())
        rows = self._forward(model, inputs, chosen)
        # Without noise a step has no energy terms: a data term by itself would only push energies down.
        has_noise = not self.method.uses_noise or bool((inputs["labels"] < 0).any())
        terms = self.method.terms if has_noise else self.method.terms_without_noise
        return self._step.add(terms(rows, self.settings), rows, n_data)

    def step_done(self) -> None:
        """Note the terms of the step and the energies of its texts."""
        self.note_step(self._step, self.noise_names)
        self._step = StepTerms()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Figures of the model as it is now, logged with the prefix `eval_`."""
        if self.evaluation is None:
            return {}
        figures = {f"eval_{k}": v for k, v in self.evaluation(self.accelerator.unwrap_model(self.model)).items()}
        for name, value in figures.items():
            if not np.isfinite(value):
                self.diverged(name.removeprefix("eval_"), value, self.state.global_step)
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures

    def _forward(self, model: nn.Module, inputs: Batch, chosen: np.ndarray) -> Rows:
        batch = pack([inputs["ids"][i] for i in chosen], [inputs["types"][i] for i in chosen])
        labels, mixed = (torch.from_numpy(inputs[name][chosen]).to(self.args.device) for name in ("labels", "mixed"))
        if not self.method.uses_manifold:
            logits, energies, *masked = model(batch.to(self.args.device))
            return Rows(logits, energies, labels, mixed, *masked)
        around = Around(labels, self.settings.manifold_on, self.settings.manifold_off)
        logits, energies, near, far, partners = model(batch.to(self.args.device), around)
        return Rows(logits, energies, labels, mixed, near=near, far=far, partners=partners)

    def _frequency_refresher(self, collator: Collator) -> FrequencyRefresher:
        def refresh() -> None:
            logits, _ = score(self.accelerator.unwrap_model(self.model), collator.data)
            probs = torch.softmax(torch.from_numpy(logits), dim=-1)
            labels = torch.from_numpy(np.asarray(collator.labels, dtype=np.int64))
            self.settings.frequencies = label_frequencies(probs, labels, self.settings.poscal_bins)

        every = max(1, round(len(collator.labels) / (self.train_dataset.batch_size * REFRESHES)))
        return FrequencyRefresher(every, refresh, self.settings)
