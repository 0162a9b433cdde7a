"""What `EnergyTrainer` needs besides the method: its arguments (`EnergyConfig`) and its base, `ClassifierTrainer`.

The tokens, labels and noise of users' datasets, evaluation on packed texts, the learning rate of the head, logs of
recorded values that stop a diverging training, and plain checkpoints. Callbacks, schedulers, gradient accumulation,
bf16 and several processes are the Trainer's own.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainingArguments

from ebmcal.calibration.leakage import TRAINING_ROWS, FittingRows
from ebmcal.errors import EbmcalError
from ebmcal.methods import find_method
from ebmcal.modeling.classifier import EnergyClassifier, Outputs, Predictor, tokenize
from ebmcal.modeling.energies import last_layer
from ebmcal.modeling.packing import Tokens, TokenTable, max_positions
from ebmcal.modeling.threads import SeededDropout, parallel_map
from ebmcal.noise import online_stream
from ebmcal.noise.sources import NoiseStream
from ebmcal.training import recipe
from ebmcal.training.collator import EnergyCollator, EpochSampler, TrainingRows
from ebmcal.training.runtime import reuse_freed_memory

#: A larger absolute energy means divergence, whatever the loss says.
ENERGY_LIMIT = 1e4

#: In a checkpoint: weights that are neither the encoder's nor the energy head's.
AUXILIARY_FILE = "auxiliary.safetensors"

T = TypeVar("T")


@dataclass
class EnergyConfig(TrainingArguments):
    """Arguments of an `EnergyTrainer`: those of `transformers.TrainingArguments`, and:

    - `method`: hidden, scalar, sharp-hidden, baseline or one of the controls (see `ebmcal.methods.METHODS`).
    - `noise`: "splice" makes noise from the training texts as it is needed; "unrelated" and mixtures such as
      "splice 0.8, unrelated 0.2" as well. Pass `noise=` to the trainer for texts from a language model.
    - `noise_ratio`: noise texts per data text, the paper's K. A step costs 1 + K times a plain one.
    - `energy_weight`: the paper's λ. It falls to 0 over the training unless `energy_schedule="constant"`.
    - `noise_every`: noise in every n-th step.

    >>> EnergyConfig("out", method="hidden", use_cpu=True, report_to="none").noise_ratio
    1
    """

    method: str = field(default="hidden", metadata={"help": "The training method."})
    noise: str = field(default=recipe.NOISE, metadata={"help": "Noise sources that are made from the texts."})
    noise_ratio: int = field(default=recipe.NOISE_RATIO, metadata={"help": "Noise texts per data text, K."})
    energy_weight: float = field(default=recipe.ENERGY_WEIGHT, metadata={"help": "Weight of the NCE loss, λ."})
    energy_schedule: str = field(default=recipe.ENERGY_SCHEDULE, metadata={"help": "linear: λ falls to 0."})
    centered: bool = field(default=True, metadata={"help": "Centre the energy (False: as published)."})
    noise_every: int = field(default=recipe.NOISE_EVERY, metadata={"help": "Noise in every n-th step."})
    label_smoothing: float = field(default=recipe.LABEL_SMOOTHING, metadata={"help": "Of the smoothing methods."})
    poscal_weight: float = field(default=recipe.POSCAL_WEIGHT, metadata={"help": "Weight of PosCal's term."})
    poscal_rows: int = field(default=recipe.POSCAL_ROWS, metadata={"help": "Training rows PosCal predicts per update."})
    poscal_bins: int = field(default=recipe.POSCAL_BINS, metadata={"help": "Bins of PosCal's posteriors."})
    focal_gamma: float = field(default=recipe.FOCAL_GAMMA, metadata={"help": "Exponent of the focal loss."})
    mixup_alpha: float = field(default=recipe.MIXUP_ALPHA, metadata={"help": "Mixup draws from Beta(a, a)."})
    masked_lm_weight: float = field(default=recipe.MASKED_LM_WEIGHT, metadata={"help": "Auxiliary masked LM."})
    manifold_on: float = field(default=recipe.MANIFOLD_ON, metadata={"help": "On-manifold step size."})
    manifold_off: float = field(default=recipe.MANIFOLD_OFF, metadata={"help": "Off-manifold step size."})
    manifold_mix: float = field(default=recipe.MANIFOLD_MIX, metadata={"help": "Share of the partner's label."})
    l2_sp_weight: float = field(default=recipe.L2_SP_WEIGHT, metadata={"help": "Weight of the L2-SP penalty."})
    head_learning_rate: float | None = field(default=None, metadata={"help": "Of the head, if different."})
    max_length: int | None = field(default=None, metadata={"help": "Tokens per noise text. Default: as the data."})
    tokens_per_micro_batch: int | None = field(default=None, metadata={"help": "Bounds memory."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Texts are needed to make noise."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Divergence stops the training."})

    def __post_init__(self) -> None:
        super().__post_init__()
        find_method(self.method)
        if self.remove_unused_columns:
            raise EbmcalError("EnergyConfig needs remove_unused_columns=False: noise is made from the text columns.")
        is_valid = {
            "noise_ratio": isinstance(self.noise_ratio, int) and self.noise_ratio >= 1,
            "noise_every": isinstance(self.noise_every, int) and self.noise_every >= 1,
            "energy_weight": 0 <= self.energy_weight < math.inf,
            "energy_schedule": self.energy_schedule in ("constant", "linear"),
        }
        if wrong := [f"{name}={getattr(self, name)!r}" for name, valid in is_valid.items() if not valid]:
            raise EbmcalError(f"EnergyConfig: invalid {', '.join(wrong)}.")

    def energy_weight_at(self, progress: float) -> float:
        """λ after a share of the training."""
        return self.energy_weight * (1 - progress if self.energy_schedule == "linear" else 1.0)


class ClassifierTrainer(Trainer):
    """A Trainer of an `EnergyClassifier` on `TrainingRows`. `card` is what `ebmcal.json` of its checkpoints gets."""

    args: EnergyConfig
    control: Any

    def __init__(
        self, model: EnergyClassifier, args: EnergyConfig, collator: EnergyCollator, rows: TrainingRows | None,
        eval_dataset: Any, processing_class: Any, *, card: dict[str, Any] | None, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.classifier, self.card = model, dict(card or {})
        self._recorded: dict[str, list[Tensor]] = defaultdict(list)
        args.label_names = ["labels"]
        super().__init__(model, args, collator, rows, eval_dataset, processing_class=processing_class, **kwargs)
        if self.is_deepspeed_enabled:
            raise EbmcalError("EnergyTrainer runs several backward passes per step, unlike DeepSpeed. Use FSDP or DDP.")

    @staticmethod
    def check_arguments(model: Any, args: Any, data_collator: Any, kwargs: dict[str, Any]) -> None:
        """Raise for arguments of a Trainer that an `EnergyTrainer` does not take."""
        if model is None or kwargs.get("model_init") is not None:
            raise EbmcalError("EnergyTrainer needs a model; model_init is not supported.")
        if not isinstance(args, EnergyConfig):
            raise EbmcalError(f"args must be an ebmcal.EnergyConfig, got {type(args).__name__}.")
        if data_collator is not None:
            raise EbmcalError("EnergyTrainer has its own collator, which adds noise and packs. Remove data_collator=.")
        if getattr(model.config, "problem_type", None) in ("regression", "multi_label_classification"):
            raise EbmcalError(f"Expected a single-label classifier, got problem_type={model.config.problem_type!r}.")

    def train(self, *args: Any, **kwargs: Any) -> Any:
        reuse_freed_memory()
        return super().train(*args, **kwargs)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Loss, logits and labels of an evaluation batch."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            output = model(inputs["texts"].to(self.args.device))
        labels = inputs.get("labels")
        loss = None if labels is None else F.cross_entropy(output.logits, labels)
        return (loss, None, None) if prediction_loss_only else (loss, output.logits, labels)

    def has_seeded_dropout(self) -> bool:
        """Whether dropout can depend on the step alone, which is also faster than torch's: on a CPU, unless something
        divides a step into several or repeats a part of it."""
        args = self.args
        return (
            args.device.type == "cpu"
            and args.world_size == 1
            and args.gradient_accumulation_steps == 1
            and not (args.gradient_checkpointing or args.torch_compile or args.fsdp or args.deepspeed)
        )

    def is_parallel(self) -> bool:
        """Whether two threads may share a step: if they share nothing but the gradients, which are empty when it
        starts."""
        return self.has_seeded_dropout() and self.classifier.energy_head is None and torch.get_num_threads() > 1

    def run_micro_batches(self, model: nn.Module, batches: Sequence[Any], run: Callable[[Any], T]) -> list[T]:
        """The results of the micro-batches of a step: one after the other, or the two of a divided step in two threads.

        The sum of two gradients does not depend on their order, and dropout depends on the step and the half only. So a
        training with the same seed ends with the same weights.
        """
        if self.has_seeded_dropout():
            n_threads = 2 if self.data_collator.is_parallel and len(batches) == 2 else 1
            seeds = np.random.SeedSequence([self.args.seed, self.state.global_step]).generate_state(len(batches))
            with parallel_map(n_threads) as run_all:
                return list(run_all(lambda seed, batch: _run_seeded(run, batch, seed), seeds.tolist(), batches))
        results = []
        for i, batch in enumerate(batches):
            # Several processes exchange gradients once per step, with the last micro-batch.
            is_last = i == len(batches) - 1
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(model):
                results.append(run(batch))
        return results

    def predict_train(self, rows: np.ndarray | None = None) -> tuple[Outputs, np.ndarray]:
        """Outputs of the model as it is now for the training rows, or for some of them, and their labels."""
        collator: EnergyCollator = self.data_collator
        predictor = Predictor(self.classifier, self.processing_class, collator.max_length)
        if rows is None:
            return predictor.predict_tokens(collator.tokens), collator.labels
        return predictor.predict_tokens([collator.tokens[i] for i in rows.tolist()]), collator.labels[rows]

    def record(self, name: str, value: Tensor) -> None:
        """A value of this step; the next log line has the mean since the last one."""
        self._recorded[name].append(value)

    def record_energies(self, energies: Tensor, is_noise: Tensor, n_data: int) -> None:
        """Mean energies of data and noise and their AUROC; no device synchronisation."""
        self.record("energy_data", torch.where(is_noise, 0.0, energies).sum() / n_data)
        self.record("largest_energy", energies.abs().max())
        if n_noise := len(energies) - n_data:
            self.record("energy_noise", torch.where(is_noise, energies, 0.0).sum() / n_noise)
            self.record("noise_auroc", noise_auroc(energies, is_noise))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the recorded values; values that are not finite stop the training."""
        if "loss" in logs:
            logs |= {name: torch.stack(values).mean().item() for name, values in self._recorded.items()}
            self._recorded.clear()
            self._check_divergence(logs)
            logs.pop("largest_energy", None)
        super().log(logs, *args, **kwargs)

    def _check_divergence(self, logs: dict[str, float]) -> None:
        wrong = [name for name, value in logs.items() if isinstance(value, float) and not math.isfinite(value)]
        if self.args.fp16:  # a gradient scaler skips such steps
            wrong = [name for name in wrong if name != "grad_norm"]
        if logs.get("largest_energy", 0.0) > ENERGY_LIMIT:
            wrong.append("largest_energy")
        if wrong:
            raise EbmcalError(
                f"Training diverged by step {self.state.global_step}: {wrong[0]} is {logs[wrong[0]]}. The last "
                "checkpoint is kept. Try a lower learning rate, a lower energy weight, more warm-up steps or fp32."
            )

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's optimizer; the head gets its own learning rate if `head_learning_rate` is set."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.args.head_learning_rate is not None:
            head = {id(p) for p in last_layer(self.classifier.encoder, "head_learning_rate").parameters()}
            for group in list(optimizer.param_groups):
                inside = [p for p in group["params"] if id(p) in head]
                if inside:
                    group["params"] = [p for p in group["params"] if id(p) not in head]
                    optimizer.add_param_group({**group, "params": inside, "lr": self.args.head_learning_rate})
        return optimizer

    def _get_dataloader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dataset, TrainingRows):
            return super()._get_dataloader(dataset, *args, **kwargs)
        tokens = token_table(dataset, self.processing_class, self.data_collator.max_length or None)
        labels = dataset_labels(dataset)
        dataset = list(zip(tokens, [None] * len(tokens) if labels is None else labels.tolist(), strict=True))
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False  # evaluation needs every row
        try:
            return super()._get_dataloader(dataset, *args, **kwargs)
        finally:
            self.args.dataloader_drop_last = drop_last

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int]:
        return EpochSampler(self.train_dataset, lambda: self.state.global_step)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write a plain checkpoint (plus the energy head), so that `from_pretrained` reads it without ebmcal."""
        directory = Path(output_dir or self.args.output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        weights = self.classifier.state_dict() if state_dict is None else state_dict
        self.classifier.save_pretrained(directory, self.card, weights)
        auxiliary = {k: v for k, v in weights.items() if not k.startswith(("encoder.", "energy_head."))}
        if auxiliary:
            save_file(auxiliary, directory / AUXILIARY_FILE)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(directory)
        torch.save(self.args, directory / "training_args.bin")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        directory = Path(resume_from_checkpoint)
        weights = EnergyClassifier.from_pretrained(directory).state_dict()
        if (directory / AUXILIARY_FILE).exists():
            weights |= load_file(directory / AUXILIARY_FILE)
        self.classifier.load_state_dict(weights)

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)


def noise_auroc(energies: Tensor, is_noise: Tensor) -> Tensor:
    """How often a data text has a lower energy than a noise text, ties half: an AUROC.

    >>> noise_auroc(torch.tensor([-1.0, 1.0, -2.0]), torch.tensor([False, True, True])).item()
    0.5
    """
    gap = energies[None, :] - energies[:, None]  # [i, j] = E_j - E_i
    pairs = (~is_noise[:, None] & is_noise[None, :]).float()  # i is data, j is noise
    wins = (gap > 0).float() + 0.5 * (gap == 0).float()
    return (wins * pairs).sum() / pairs.sum()


def dataset_labels(dataset: Any) -> np.ndarray | None:
    """The column labels or label; None without one."""
    name = next((name for name in ("labels", "label") if name in dataset.column_names), None)
    return None if name is None else np.asarray(dataset[name])


def training_data(train: Any, tokenizer: Any, args: EnergyConfig, model_config: Any) -> tuple[TokenTable, np.ndarray]:
    """The tokens of a training set and its labels, checked: [n] int64."""
    tokens, labels = token_table(train, tokenizer, args.max_length), dataset_labels(train)
    longest, limit = int(tokens.lengths.max(initial=0)), max_positions(model_config)
    if limit is not None and longest > limit:
        raise EbmcalError(
            f"A text has {longest} tokens, but the encoder reads at most {limit}. Set max_length={limit}."
        )
    if not len(train):
        raise EbmcalError("The training set has no rows.")
    n_labels = model_config.num_labels
    if labels is None or labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < n_labels:
        raise EbmcalError(f"Labels must be integers from 0 to {n_labels - 1}, the classes of the model.")
    return tokens, labels.astype(np.int64)


def token_table(dataset: Any, tokenizer: Any, max_length: int | None) -> TokenTable:
    """The tokens of all rows of a user's dataset: of their `input_ids`, or of their texts."""
    if not hasattr(dataset, "column_names"):
        raise EbmcalError(f"Expected a datasets.Dataset, got {type(dataset).__name__}.")
    if "input_ids" in dataset.column_names:
        return TokenTable([_row_tokens(row) for row in dataset])
    columns = text_columns(dataset)
    if tokenizer is None or not columns:
        raise EbmcalError(
            "The dataset has no input_ids. Tokenise it, or pass processing_class=tokenizer and a text column."
        )
    texts = [dataset[name] for name in columns]
    rows = list(texts[0]) if len(texts) == 1 else list(zip(*texts, strict=True))
    return TokenTable(tokenize(rows, tokenizer, max_length or min(recipe.MAX_LENGTH, tokenizer.model_max_length)))


def _row_tokens(row: Mapping[str, Any]) -> Tokens:
    """The tokens of a tokenised row, without its padding."""
    ids = np.asarray(row["input_ids"], dtype=np.int32)
    types = np.asarray(row.get("token_type_ids", np.zeros(len(ids))), dtype=np.uint8)
    is_token = np.asarray(row.get("attention_mask", np.ones(len(ids))), dtype=bool)
    return Tokens(ids[is_token], types[is_token])


def text_columns(dataset: Any) -> list[str]:
    """The text column, or the two of pairs: `text` and `text_pair`, or the only string columns."""
    if "text" in dataset.column_names:
        return [name for name in ("text", "text_pair") if name in dataset.column_names]
    kinds = {name: getattr(kind, "dtype", "") for name, kind in dataset.features.items() if name != "id"}
    strings = [name for name, kind in kinds.items() if kind in ("string", "large_string")]
    return strings if len(strings) <= 2 else []


def user_card(dataset: Any) -> dict[str, Any]:
    """`ebmcal.json` of a user's training set, by which its rows are recognised later; empty without a text column."""
    columns = [list(map(str, dataset[name])) for name in text_columns(dataset)]
    return {TRAINING_ROWS: FittingRows.of_texts(*columns).to_json()} if columns else {}


def noise_stream(noise: Any, train: Any, setting: str, seed: int) -> NoiseStream:
    """The noise of a training: given as a stream or a dataset, or made from the training texts (`setting`)."""
    if hasattr(noise, "draw"):
        stream: NoiseStream = noise
        return stream
    dataset = train if noise is None else noise
    columns = text_columns(dataset) if hasattr(dataset, "column_names") and len(dataset) else []
    if not columns:
        raise EbmcalError(
            "Noise is made from a datasets.Dataset with a text column (or two, for pairs) and at least one row: "
            "keep the text column of train_dataset, or pass noise=ebmcal.generate_noise(…)."
        )
    names = dict(zip(columns, ("text", "text_pair"), strict=False))
    dataset = dataset.select_columns(columns).rename_columns(names)
    if noise is None:
        return online_stream(setting, dataset, seed)
    from ebmcal.noise.generation import StoredStream

    table = dataset.with_format("arrow")[:]
    if len(columns) == 1:
        table = table.append_column("text_pair", pa.nulls(len(table), pa.string()))
    return StoredStream(table, seed)


def _run_seeded(run: Callable[[Any], T], batch: Any, seed: int) -> T:
    with SeededDropout(seed):
        return run(batch)
