"""`EnergyTrainer` trains a classifier jointly with an energy-based model.

`ebmcal run`, the scikit-learn estimator and users' own scripts all use this class. A step runs data and noise texts
through the encoder together, in packed micro-batches whose memory is bounded; the terms of the loss come from a
`Method`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ebmcal.methods import find_method, load_method
from ebmcal.methods.joint import MicroBatch
from ebmcal.modeling.classifier import EnergyClassifier
from ebmcal.modeling.packing import token_budget
from ebmcal.noise.sources import NoiseStream
from ebmcal.training.classifier_trainer import ClassifierTrainer, EnergyConfig, noise_stream, training_data, user_card
from ebmcal.training.collator import EnergyCollator, TrainingRows


class EnergyTrainer(ClassifierTrainer):
    """A `transformers.Trainer` for joint training. Takes what the Trainer takes, and:

    - `model`: any transformers sequence classifier (or an `EnergyClassifier`).
    - `args`: an `EnergyConfig`, which names the method, the noise, K and λ.
    - `train_dataset`: a `datasets.Dataset` with a label column, its text column (or two, for pairs) and, unless
      `processing_class` should tokenise it, `input_ids`. `eval_dataset` likewise.
    - `noise`: noise texts as a `datasets.Dataset` (see `ebmcal.generate_noise`) or a `NoiseStream`; by default they
      are made from the training texts (`args.noise`).

    It logs the terms of the loss, mean energies of data and noise, and their AUROC; `save_model` writes a checkpoint.

        trainer = EnergyTrainer(model, EnergyConfig("out"), train_dataset=train, processing_class=tokenizer)
        trainer.train()
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: EnergyConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        noise: NoiseStream | Any = None,
        card: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        args = args or EnergyConfig("ebmcal_output")
        self.check_arguments(model, args, data_collator, kwargs)
        info, seed, rows = find_method(args.method), args.seed if args.data_seed is None else args.data_seed, None
        self.method = load_method(args.method, args)
        if not isinstance(model, EnergyClassifier):
            model = EnergyClassifier(model, info.energy, args.centered)
        self.method.prepare(model, processing_class)
        collator = EnergyCollator(processing_class, args.max_length or 0)
        if train_dataset is not None:  # else for evaluation only
            collator.tokens, collator.labels = training_data(train_dataset, processing_class, args, model.config)
            collator.max_length = args.max_length or int(collator.tokens.lengths.max(initial=1))
            collator.budget = args.tokens_per_micro_batch or token_budget(model.config)
            if info.uses_noise:
                collator.noise = noise_stream(noise, train_dataset, args.noise, seed)
            rows = _training_rows(len(train_dataset), args, seed, args.noise_ratio if info.uses_noise else 0)
            card = user_card(train_dataset) if card is None else card
        super().__init__(model, args, collator, rows, eval_dataset, processing_class, card=card, **kwargs)
        collator.is_parallel = self.method.is_thread_safe and self.is_parallel()
        for callback in self.method.callbacks(self):
            self.add_callback(callback)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in the Trainer; the method then does what it does once after training."""
        result = super().train(*args, **kwargs)
        self.method.finish(self)
        return result

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward over the micro-batches of a step; returns the loss."""
        model.train()
        batches, n_data = inputs["micro_batches"], inputs["n_data"]
        found = self.run_micro_batches(model, batches, lambda batch: self._forward_backward(model, batch, n_data))
        for name in {name: None for _, values, _ in found for name in values}:
            self.record(name, torch.stack([values[name] for _, values, _ in found if name in values]).sum())
        energies = torch.cat([energies for _, _, energies in found])
        self.record_energies(energies, torch.cat([batch.is_noise for batch in batches]), n_data)
        return torch.stack([loss for loss, _, _ in found]).sum()

    def _forward_backward(
        self, model: nn.Module, batch: MicroBatch, n_data: int
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """The loss of a micro-batch, its terms, and the energies [n]; adds to the gradients."""
        terms, output = self.method.terms(model, batch, self.state.global_step / max(1, self.state.max_steps))
        # Keeps the graph complete if a term does not depend on some output.
        loss, values = (output.logits.sum() + output.energies.sum()) * 0.0, {}
        for name, (of_texts, weight) in terms.items():
            value = of_texts.sum() / n_data
            loss, values[name] = loss + weight * value, value.detach()
        loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach(), values, output.energies.detach()


def _training_rows(n_rows: int, args: EnergyConfig, seed: int, noise_ratio: int) -> TrainingRows:
    device_batch = args.train_batch_size * args.world_size
    n_batches = n_rows // device_batch if args.dataloader_drop_last else math.ceil(n_rows / device_batch)
    steps_per_epoch = max(1, math.ceil(n_batches / args.gradient_accumulation_steps))
    batch_size = device_batch * args.gradient_accumulation_steps
    return TrainingRows(n_rows, batch_size, steps_per_epoch, seed, noise_ratio, args.noise_every)
