"""A `transformers.Trainer` whose steps are cut into length-sorted micro-batches under a token budget.

Activation memory is bounded by the budget, whatever the batch and the noise ratio. A subclass says what a micro-batch
adds to the loss of its step; batches arrive as dictionaries whose `ids` are the token arrays of the texts.
"""

import contextlib
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer

from ebmcal.errors import EbmcalError
from ebmcal.models.scoring import micro_batches, token_budget

Batch = dict[str, Any]


class MicroBatchTrainer(Trainer):
    """Override `micro_loss`; figures added with `note` are averaged over steps and logged with the loss."""

    loss_is_scaled_for_ga = False

    def __init__(self, model: nn.Module, *, tokens_per_micro_batch: int | None = None, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.budget = tokens_per_micro_batch or token_budget(model.config)
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

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

    def note(self, name: str, value: float) -> None:
        """A figure of this step; one that is not finite stops the training."""
        if not np.isfinite(value):
            self.diverged(name, value)
        self._sums[name] += value
        self._counts[name] += 1

    def diverged(self, name: str, value: float, step: int | None = None) -> None:
        """Stop before anything of this step, by default the one that is being made, is saved."""
        raise EbmcalError(
            f"Training diverged at step {step or self.state.global_step + 1}: {name} is {value}. "
            "The last checkpoint is kept. Try a smaller learning rate, a smaller energy weight, a longer warm-up or "
            "--precision fp32."
        )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the noted figures, averaged over the steps since the last line."""
        if "loss" in logs:
            logs |= {name: total / self._counts[name] for name, total in self._sums.items()}
            self._sums.clear()
            self._counts.clear()
        if not np.isfinite(logs.get("grad_norm", 0.0)):  # the weights are spoilt; a checkpoint would come after the log
            self.diverged("the norm of the gradient", logs["grad_norm"], self.state.global_step)
        super().log(logs, *args, **kwargs)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler:
        # The order is the plan's: the same for one process, several, and a resumed run.
        return SequentialSampler(self.train_dataset)
