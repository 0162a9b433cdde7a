"""`EnergyTrainer` trains a classifier jointly with an energy-based model.

`ebmcal run`, the scikit-learn estimator and users' own scripts all use this class. A step runs data and noise texts
through the encoder together, in packed micro-batches whose memory is bounded; the terms of the loss come from a
`Method`.
"""

import contextlib
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from ebmcal.methods import find_method, load_method
from ebmcal.modeling.classifier import EnergyClassifier
from ebmcal.modeling.packing import token_budget
from ebmcal.noise.sources import NoiseStream
from ebmcal.training.classifier_trainer import ClassifierTrainer, EnergyConfig, noise_stream, training_data
from ebmcal.training.collator import EnergyCollator, TrainingRows


class EnergyTrainer(ClassifierTrainer):
    """A `transformers.Trainer` for joint training. Takes what the Trainer takes, and:

    - `model`: any transformers sequence classifier (or an `EnergyClassifier`).
    - `args`: an `EnergyConfig`, which names the method, the noise, K and λ.
    - `train_dataset`: a `datasets.Dataset` with a label column, its text column (or two, for pairs) and, unless
      `processing_class` should tokenise it, `input_ids`. `eval_dataset` likewise.
    - `noise`: noise texts as a `datasets.Dataset` (see `ebmcal.generate_noise`) or a `NoiseStream`; by default they
      are made from the training texts (`args.noise`).

    It logs every term of the loss, the mean energies of data and noise, and the AUROC with which the energy separates
    them. `save_model` writes a plain checkpoint.

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
        super().__init__(model, args, collator, rows, eval_dataset, processing_class, card=card, **kwargs)
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
        progress = self.state.global_step / max(1, self.state.max_steps)
        total = torch.zeros((), device=self.args.device)
        energies, sums = [], defaultdict(list)
        for i, batch in enumerate(batches):
            # Several processes exchange gradients once per step, with the last micro-batch.
            is_last = i == len(batches) - 1
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(model):
                terms, output = self.method.terms(model, batch, progress)
                # Keeps the graph complete if a term does not depend on some output.
                loss = (output.logits.sum() + output.energies.sum()) * 0.0
                for name, (values, weight) in terms.items():
                    value = values.sum() / n_data
                    loss = loss + weight * value
                    sums[name].append(value.detach())
                loss = loss / self.current_gradient_accumulation_steps
                self.accelerator.backward(loss)
            total += loss.detach()
            energies.append(output.energies.detach())
        for name, parts in sums.items():
            self.record(name, torch.stack(parts).sum())
        self.record_energies(torch.cat(energies), torch.cat([batch.is_noise for batch in batches]), n_data)
        return total


def _training_rows(n_rows: int, args: EnergyConfig, seed: int, noise_ratio: int) -> TrainingRows:
    device_batch = args.train_batch_size * args.world_size
    n_batches = n_rows // device_batch if args.dataloader_drop_last else math.ceil(n_rows / device_batch)
    steps_per_epoch = max(1, math.ceil(n_batches / args.gradient_accumulation_steps))
    batch_size = device_batch * args.gradient_accumulation_steps
    return TrainingRows(n_rows, batch_size, steps_per_epoch, seed, noise_ratio, args.noise_every)
