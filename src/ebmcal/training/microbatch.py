"""A `transformers.Trainer` whose steps are cut into length-sorted micro-batches under a token budget.

Activation memory is bounded by the budget, whatever the batch and the noise ratio. A subclass says what a micro-batch
adds to the loss of its step; batches arrive as dictionaries whose `ids` are the token arrays of the texts.
"""

import contextlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler

from ebmcal.models.scoring import micro_batches, token_budget
from ebmcal.training.noting import NotingTrainer

Batch = dict[str, Any]


class MicroBatchTrainer(NotingTrainer):
    """Override `micro_loss`."""

    loss_is_scaled_for_ga = False

    def __init__(self, model: nn.Module, *, tokens_per_micro_batch: int | None = None, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.budget = tokens_per_micro_batch or token_budget(model.config)

    def micro_loss(self, model: nn.Module, inputs: Batch, chosen: np.ndarray) -> Tensor:
        """What the texts `chosen` (indices, shortest first) add to the loss of the step."""
        raise NotImplementedError

    def step_done(self) -> None:
        """Called behind the last micro-batch of a step."""

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward over the micro-batches of a step; returns the loss."""
        model.train()
        batches = list(micro_batches(np.array([len(t) for t in inputs["ids"]]), self.budget))
        losses = []
        for i, chosen in enumerate(batches):
            # Several processes exchange gradients once a step, at its last micro-batch.
            last = i == len(batches) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                loss = self.micro_loss(model, inputs, chosen) / self.current_gradient_accumulation_steps
                self.accelerator.backward(loss)
            losses.append(loss.detach())
        self.step_done()
        total = torch.stack(losses).sum()
        if not torch.isfinite(total):  # the terms may be finite and their weighted sum overflow
            self.diverged("loss", total.item())
        return total

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler:
        # The order is the plan's: the same for one process, several, and a resumed run.
        return SequentialSampler(self.train_dataset)
