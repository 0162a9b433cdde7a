"""`EnergyTrainer`: joint training for people who have a `transformers.Trainer` script.

    loss = the Trainer's own loss + weight (data term + noise term), the terms of `ebmcal.training.losses`

The model is any `AutoModelForSequenceClassification`, padded by the script's own collator. A step goes over the data
texts and then over K batches of noise of the same size, each with its own backward pass: the loss is a sum over texts,
and so memory stays that of the script. Which noise goes with a batch is a function of the seed, the step and the
process. Evaluation, prediction, saving and pushing are the Trainer's.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import find_batch_size
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.models.classifier import CARD_FILE, HEAD_FILE, HEADS
from ebmcal.models.energies import ENERGIES
from ebmcal.storage.atomic import write_json
from ebmcal.training.methods import Rows, Settings, energy_terms
from ebmcal.training.noise_draws import DrawNumbers, column_names, fresh_rows_of, rows_of
from ebmcal.training.noting import NotingTrainer, StepTerms
from ebmcal.training.plan import Draw, NoiseSupply

#: The noise terms weigh K times the energy weight: more than this ruins accuracy in short runs.
MAX_NOISE_WEIGHT = 0.8
MAX_ENERGY_WEIGHT = 0.4

#: The key under which a batch says which part of a step it is.
_PART = "ebmcal_part"


@dataclass(frozen=True)
class _Part:
    """A pass of a step of `n_data` data texts: over these, or over noise texts of the numbered `sources`."""

    n_data: int
    sources: tuple[int, ...] = ()
    has_terms: bool = True


class EnergyTrainer(NotingTrainer):
    """A `transformers.Trainer` that trains a sequence classifier jointly with an energy-based model.

    Takes what the Trainer takes, and:

    - `noise_dataset`: "splice", which makes noise from the training texts as it is needed ("far" and mixtures such as
      "splice 0.8, far 0.2" as well); or noise texts, tokenised as the training set is (`ebmcal.write_noise`).
    - `energy`: hidden, sharp-hidden, scalar or scaled-hidden. The first two leave a plain checkpoint; the others have
      weights of their own, which `save_model` writes as `energy_head.safetensors` beside a plain checkpoint.
    - `noise_ratio`: noise texts for each data text, the paper's K. A step costs 1 + K times a plain one.
    - `energy_weight`: the paper's lambda; by default 0.4, or 0.8 / K where that is less.
    - `noise_start`, `noise_every`: the share of the training on the plain loss, then noise in every n-th step.

    Logs cross_entropy (the Trainer's loss), data_term, noise_term, energy_data, energy_noise and noise_accuracy, how
    often the energy tells data from noise. Label smoothing and `compute_loss_func` change the first of them only.

    >>> from tempfile import mkdtemp
    >>> from datasets import Dataset
    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    >>> data = Dataset.from_dict({"input_ids": [[2, 5, 6], [2, 7, 8]], "label": [0, 1]})
    >>> noise = Dataset.from_dict({"input_ids": [[2, 5, 8], [2, 7, 6], [2, 6, 8], [2, 8, 5]]})
    >>> args = TrainingArguments(mkdtemp(), max_steps=1, per_device_train_batch_size=2, report_to="none")
    >>> model = BertForSequenceClassification(config)
    >>> trainer = EnergyTrainer(model, args, train_dataset=data, noise_dataset=noise, noise_ratio=2)
    >>> trainer.energy, trainer.settings.energy_weight
    ('hidden', 0.4)
    """

    advice = "Try a smaller learning rate, a smaller energy weight, a longer warm-up or float32 (bf16=False)."

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *more: Any,
        noise_dataset: str | Any = None,
        energy: str = "hidden",
        noise_ratio: int = 2,
        energy_weight: float | None = None,
        noise_start: float = 0.0,
        noise_every: int = 1,
        **kwargs: Any,
    ) -> None:
        _check_settings(energy, noise_ratio, energy_weight, noise_start, noise_every)
        weight = energy_weight or min(MAX_ENERGY_WEIGHT, MAX_NOISE_WEIGHT / noise_ratio)
        self.energy, self.settings = energy, Settings(noise_ratio, weight)
        super().__init__(model, args, *more, **kwargs)
        if self.is_deepspeed_enabled:
            raise EbmcalError("DeepSpeed takes one backward pass a step and EnergyTrainer several: use FSDP or DDP.")
        if energy in HEADS and self.args.n_gpu > 1:
            raise EbmcalError(f"The {energy} energy cannot be trained by one process on several GPUs: use torchrun.")
        _check_model(self.model)
        self._with_head(self.model)
        self.model_accepts_loss_kwargs = False  # the loss is a mean over the batch, as the terms are
        self._step = StepTerms()
        if self.train_dataset is not None or noise_dataset is not None:
            self._supply = self._noise_supply(noise_dataset)
            n_noise = None if isinstance(noise_dataset, str) else len(noise_dataset)
            self._numbers = DrawNumbers(n_noise, noise_ratio, noise_start, noise_every)
            self.add_callback(self._numbers)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward over the data texts, then over their noise; returns the loss."""
        n_data = find_batch_size(inputs)
        numbers = self._numbers.next(self.args, self.state, n_data)
        draws = self._supply.draw(numbers) if numbers else []
        parts = [{**inputs, _PART: _Part(n_data, has_terms=bool(draws))}, *self._noise_parts(draws, n_data)]
        losses = []
        for i, part in enumerate(parts):
            # Several processes exchange gradients once, at the last pass.
            last = i == len(parts) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, part, num_items_in_batch))
        names = self._supply.names
        self.note_step(self._step, names if len(names) > 1 else ())
        self._step = StepTerms()
        total = torch.stack(losses).sum()
        if not torch.isfinite(total):
            self.diverged("loss", total.item())
        return total

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor | tuple[Tensor, Any]:
        """What a part of a step adds to the loss; outside of training steps, the Trainer's own loss."""
        part = inputs.pop(_PART, None)
        if part is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if part.sources:
            loss, outputs = torch.zeros((), device=self.args.device), model(**inputs)
        else:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            self._step.terms["cross_entropy"] = loss.item()
        rows = self._rows(outputs, part)
        energy_loss = self._step.add(energy_terms(rows, self.settings) if part.has_terms else {}, rows, part.n_data)
        if self.compute_loss_func is not None:  # then the Trainer takes the loss as scaled for accumulation
            energy_loss = energy_loss / self.current_gradient_accumulation_steps
        loss = loss + energy_loss
        return (loss, outputs) if return_outputs else loss

    def _rows(self, outputs: Any, part: _Part) -> Rows:
        logits = outputs["logits"].float()
        energies = outputs["energies"] if self.energy in HEADS else ENERGIES[self.energy](logits)
        # The terms of the energy ask of the labels only which texts are noise: -1 - s is noise of source s.
        labels = [-1 - source for source in part.sources] or [0] * len(logits)
        return Rows(logits, energies, torch.tensor(labels, device=logits.device))

    def _noise_parts(self, draws: list[Draw], n_data: int) -> Iterator[dict[str, Any]]:
        """The noise texts as model inputs, in K batches, shortest texts first."""
        known = column_names(self.train_dataset) or ()
        label = {name: 0 for name in known if name in self._label_names()}  # a collator may want to see it
        draws = sorted(draws, key=lambda draw: len(draw.tokens["input_ids"]))
        for start in range(0, len(draws), n_data):
            chosen = draws[start : start + n_data]
            batch = self.data_collator([draw.tokens | label for draw in chosen])
            inputs = {name: value for name, value in batch.items() if name not in self._label_names()}
            yield inputs | {_PART: _Part(n_data, tuple(draw.source for draw in chosen))}

    def _noise_supply(self, noise: Any) -> NoiseSupply:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        if isinstance(noise, str):
            return fresh_rows_of(noise, self.train_dataset, self.processing_class, seed)
        self._set_signature_columns_if_needed()
        return rows_of(noise, self.train_dataset, self._signature_columns, self._label_names(), seed)

    def _label_names(self) -> set[str]:
        return {"label", "labels", "label_ids", *self.label_names}

    # Energies with weights: these are a part of the model, and lie beside a plain checkpoint.

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A fresh model, with the weights of its energy if there are any."""
        return self._with_head(super().call_model_init(trial))

    def _with_head(self, model: nn.Module) -> nn.Module:
        kind = HEADS.get(self.energy)
        if kind and not isinstance(getattr(model, "energy_head", None), kind):
            model.energy_head = kind(model).to(next(model.parameters()).device)
            names = {f"energy_head.{name}" for name in model.energy_head.state_dict()}
            model._keys_to_ignore_on_save = {*(getattr(model, "_keys_to_ignore_on_save", None) or ()), *names}
            model.register_forward_hook(_add_energies)
        return model

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        # The layer is taken out of the dictionary when the rest is written.
        weights = {} if self.energy not in HEADS else dict(self._head_of(state_dict))
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            card = {"energy": self.energy, "noise_ratio": self.settings.noise_ratio}
            write_json(folder / CARD_FILE, card | {"energy_weight": self.settings.energy_weight})
            if weights:
                save_file(weights, folder / HEAD_FILE)

    def _head_of(self, state_dict: dict[str, Tensor] | None) -> Iterator[tuple[str, Tensor]]:
        found = self.accelerator.unwrap_model(self.model).state_dict() if state_dict is None else state_dict
        for name, value in found.items():
            if name.startswith("energy_head."):
                yield name.removeprefix("energy_head."), value.contiguous()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_head(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._load_head(self.state.best_model_checkpoint)

    def _load_head(self, folder: str) -> None:
        file = Path(folder) / HEAD_FILE
        if self.energy in HEADS and file.exists():  # FSDP keeps all weights in files of its own
            self.accelerator.unwrap_model(self.model).energy_head.load_state_dict(load_file(file))


@dataclass
class _OutputWithEnergies(SequenceClassifierOutput):
    """What a classifier whose energy has weights gives while it is trained."""

    energies: torch.FloatTensor | None = None


def _add_energies(model: nn.Module, _: Any, outputs: Any) -> Any:
    """While training, the outputs of the model have its energies; predictions stay as they are."""
    energies = model.energy_head.energies(outputs["logits"])
    return _OutputWithEnergies(outputs.get("loss"), outputs["logits"], energies=energies) if model.training else outputs


def _check_settings(
    energy: str, noise_ratio: int, energy_weight: float | None, noise_start: float, noise_every: int
) -> None:
    names = [name for name in (*ENERGIES, *HEADS) if name != "sngp"]  # whose covariance is learned behind a training
    if energy not in names:
        raise unknown_name("energy", energy, names)
    whole = {"noise_ratio": noise_ratio, "noise_every": noise_every}
    problems = [f"{k} must be a whole number, 1 or more; {v!r} came." for k, v in whole.items() if not _counts(v)]
    if energy_weight is not None and not 0 < energy_weight < float("inf"):
        problems.append(f"energy_weight must be above 0; {energy_weight!r} came.")
    if not 0 <= noise_start < 1:
        problems.append(f"noise_start is a share of the training, from 0 to below 1; {noise_start!r} came.")
    if problems:
        raise EbmcalError("\n".join(problems))


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_model(model: nn.Module) -> None:
    kind, n_labels = getattr(model.config, "problem_type", None), getattr(model.config, "num_labels", 0)
    if kind not in (None, "single_label_classification") or n_labels < 2:
        raise EbmcalError(
            f"EnergyTrainer trains classifiers of one label a text; {type(model).__name__} has problem_type {kind!r} "
            f"and {n_labels} label{'' if n_labels == 1 else 's'}. Load it with num_labels=2 or more, and without a "
            "problem_type or with 'single_label_classification'."
        )
