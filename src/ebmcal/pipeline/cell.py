"""One cell of a run: a method and a seed, trained, saved and run on every split. What is done is not done again.

The model folder appears whole or not at all; model and predictions have checksums, and what is damaged is made again.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import set_seed

from ebmcal.calibrators.in_model import FILE_NAME, FOLDED_NAME
from ebmcal.calibrators.weights import folded_temperature
from ebmcal.config import ResolvedConfig
from ebmcal.data import TaskData, Texts
from ebmcal.errors import EbmcalError
from ebmcal.histograms import FILE_NAME as HISTOGRAMS
from ebmcal.histograms import keep_histograms
from ebmcal.metrics import accuracy, ece_classwise, ece_top_label, nll
from ebmcal.models.classifier import CARD_FILE, EnergyClassifier
from ebmcal.models.loading import best_device, load_encoder, load_tokenizer, quiet
from ebmcal.models.masked import MaskedHead, load_masked_lm
from ebmcal.models.scoring import predict, score
from ebmcal.models.sngp import GaussianProcess
from ebmcal.models.tokens import TokenTable
from ebmcal.pipeline.cache import tokens_of
from ebmcal.pipeline.distances import Reference, untouched_distances
from ebmcal.pipeline.run_noise import Noise
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json, write_text
from ebmcal.storage.checksums import checksum
from ebmcal.storage.sealing import SEAL, damage, is_whole, reseal, writing_folder
from ebmcal.training.methods import Method, Settings, find_method
from ebmcal.training.plan import Collator, TrainingPlan, plan_of
from ebmcal.training.processes import is_main_process
from ebmcal.training.running import gathered_weights, sharding, training_arguments
from ebmcal.training.running import run as train_to_the_end
from ebmcal.training.trainer import JointTrainer

#: Test rows that are scored while training, for the curves.
WATCHED_ROWS = 1000

#: The curve of a training, in its model folder; `history/` has a copy.
HISTORY = "training_history.jsonl"


@dataclass(frozen=True)
class CellWork:
    """What the cells of a run share."""

    config: ResolvedConfig
    data: TaskData
    tables: dict[str, TokenTable]
    noise: Noise | None
    extra: dict[str, Texts]
    untouched: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # split → distances, once for all cells

    def noise_for(self, method: Method) -> Noise | None:
        """The noise that a method is trained with, None for one that uses none."""
        if method.uses_noise and self.noise is None:
            raise EbmcalError(f"{method.title} is trained with noise, and this run has made none.")
        return self.noise if method.uses_noise else None


def training_facts(folder: RunFolder, cell: Cell) -> dict[str, Any]:
    """What the card of a model says of its training."""
    return read_json(folder.model(cell) / CARD_FILE)["training"]


def finish_cell(folder: RunFolder, cell: Cell, work: CellWork, reporter: Reporter) -> None:
    """Train and predict what is missing of a cell."""
    model_folder = folder.model(cell)
    ensure_trained(folder, cell, work, reporter)
    wanted = _wanted_splits(work)
    missing = [split for split in wanted if not is_predicted(folder, cell, split)]
    _say_lost(folder, cell, missing, reporter)
    other = [s for s in wanted if s not in missing and _is_of_other_texts(folder.predictions(cell, s), s, work)]
    for split in other:
        reporter.say(f"{cell.name}: the texts of {split} are others than before: predicted again")
    missing += other
    missing += [s for s in wanted if s not in missing and _is_without_distances(folder, cell, s, missing)]
    check_unfolded(folder, cell, missing)
    if missing:
        model = EnergyClassifier.from_pretrained(model_folder, work.config.trust_remote_code).to(best_device())
        far = _distances(model, missing, work, reporter)
        for split in missing:
            _predict_split(folder, cell, split, model, work, reporter, far.get(split))
    if missing or not (model_folder / HISTOGRAMS).exists():  # a model that was made again has none
        keep_histograms(model_folder, {split: Predictions.read(folder.predictions(cell, split)) for split in wanted})


def _is_of_other_texts(path: Path, split: str, work: CellWork) -> bool:
    """Whether predictions on texts from elsewhere are of another file than the one that is given now."""
    if not split.startswith("ood_"):  # the others belong to the folder, which refuses others
        return False
    return Predictions.read(path).meta.get("texts", now := work.extra[split.removeprefix("ood_")].fingerprint) != now


def _is_without_distances(folder: RunFolder, cell: Cell, split: str, missing: Sequence[str]) -> bool:
    """Whether test rows were predicted before there were other texts to set them against, and now there are."""
    if not split.startswith("test") or not any(s.startswith("ood_") or s == "noise" for s in missing):
        return False
    return not _is_folded(folder.model(cell)) and Predictions.read(folder.predictions(cell, split)).distances is None


def check_unfolded(folder: RunFolder, cell: Cell, missing: Sequence[str]) -> None:
    """Refuse predictions by a model into which a temperature was folded: they would not be those of the training."""
    if missing and _is_folded(folder.model(cell)) and is_trained(folder, cell):
        raise EbmcalError(
            f"{cell.name}: a temperature was folded into the model, so predictions for {', '.join(missing)} would not "
            f"be those of the trained model. Move {folder.model(cell)} away: the same command trains it again."
        )


def _is_folded(model: Path) -> bool:
    try:
        return folded_temperature(model) is not None
    except EbmcalError:  # damaged: trained again
        return False


def _say_lost(folder: RunFolder, cell: Cell, missing: list[str], reporter: Reporter) -> None:
    """Name the predictions that were there once: by their file, or by the checksums of the folder."""
    for path in (folder.predictions(cell, split) for split in missing):
        if path.exists():
            reporter.say(f"{cell.name}: {path.name} is damaged: predicted again")
        elif f"{path.name} is missing" in damage(path.parent):
            reporter.say(f"{cell.name}: {path.name} is missing: predicted again")


def ensure_trained(folder: RunFolder, cell: Cell, work: CellWork, reporter: Reporter) -> None:
    """Train a cell unless its model is there, whole."""
    there = is_whole(folder.model(cell), f"{cell.name}: the model", reporter.say)
    if not there:
        train_cell(folder, cell, work, reporter)
    if is_main_process():
        _copy_history(folder, cell, reporter if there else Reporter())


def _copy_history(folder: RunFolder, cell: Cell, reporter: Reporter) -> None:
    wanted, place = (folder.model(cell) / HISTORY).read_text(encoding="utf-8"), folder.history(cell)
    if not place.exists() or place.read_bytes() != wanted.encode():
        reporter.say(f"{cell.name}: {place.name} is missing or damaged: written again")
        write_text(place, wanted)


def train_cell(folder: RunFolder, cell: Cell, work: CellWork, reporter: Reporter) -> None:
    """Train a model into `checkpoints/<cell>/model`, with its history beside."""
    config, method, start = work.config, find_method(cell.method), time.monotonic()
    set_seed(cell.seed)
    encoder = load_encoder(config.encoder, work.data.label_names, config.trust_remote_code)
    masked_head = MaskedHead(*load_masked_lm(config.encoder, config.trust_remote_code)) if method.uses_masking else None
    model = EnergyClassifier(encoder, method.energy, masked_head)
    if not model.packed:
        reporter.say(f"{encoder.config.model_type}: cannot run without padding here; uses length-sorted batches")
    trainer = _trainer(folder, cell, model, method, work)
    train_to_the_end(trainer, cell.name, reporter)
    if isinstance(model.energy_head, GaussianProcess):
        with model.energy_head.learning_covariance():
            score(model, work.tables["train"])
    facts, weights = _facts(trainer, work, time.monotonic() - start), gathered_weights(trainer)
    if trainer.is_world_process_zero():
        _save(folder, cell, model, weights, trainer, facts, work, reporter)
    trainer.accelerator.wait_for_everyone()


def _trainer(folder: RunFolder, cell: Cell, model: EnergyClassifier, method: Method, work: CellWork) -> JointTrainer:
    config, noise = work.config, work.noise_for(method)
    args = training_arguments(
        folder.checkpoints(cell),
        n_steps=config.steps,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        precision=config.precision,
        seed=cell.seed,
        save_steps=config.save_steps,
        eval_steps=config.eval_steps,
        report_to=config.report_to,
        run_name=cell.name,
        **(sharding(model.encoder) if config.fsdp else {}),
    )
    labels = work.data.splits["train"].labels
    return JointTrainer(
        model,
        method=method,
        settings=Settings(
            noise_ratio=config.noise_ratio,
            energy_weight=config.energy_weight,
            poscal_weight=config.poscal_weight,
            label_smoothing=config.label_smoothing,
            focal_gamma=config.focal_gamma,
            mix_weight=config.mix_weight,
            mixup_alpha=config.mixup_alpha,
            mlm_weight=config.mlm_weight,
            manifold_on=config.manifold_on,
            manifold_off=config.manifold_off,
            manifold_mix=config.manifold_mix,
        ),
        collator=Collator(work.tables["train"], labels, noise.supply(cell.seed) if noise else None),
        evaluation=_watch(work),
        tokens_per_micro_batch=config.tokens_per_micro_batch,
        args=args,
        train_dataset=plan_of(config, len(labels), cell.seed, with_noise=method.uses_noise),
    )


def _watch(work: CellWork) -> Any:
    """Accuracy and calibration on test rows, for the curves over training steps."""
    split, table = work.data.splits["test"], work.tables["test"]
    rows = np.flatnonzero(split.labels >= 0)[:WATCHED_ROWS]

    def evaluate(model: EnergyClassifier) -> dict[str, float]:
        logits, _ = score(model, table, rows)
        if not np.isfinite(logits).all():
            return {"logits": float("nan")}  # the trainer says that it diverged
        labels = split.labels[rows]
        metrics = {"accuracy": accuracy, "ece_classwise": ece_classwise, "ece_top_label": ece_top_label, "nll": nll}
        return {name: float(function(labels, logits=logits)) for name, function in metrics.items()}

    return evaluate


def _facts(trainer: JointTrainer, work: CellWork, seconds: float) -> dict[str, Any]:
    plan: TrainingPlan = trainer.train_dataset
    noise = work.noise_for(trainer.method)
    facts: dict[str, Any] = {
        "steps": plan.n_steps,
        "seconds": round(seconds, 1),
        "noise_texts_used": plan.n_noise_draws,
        "noise_rounds": round(noise.rounds(plan.n_noise_draws), 3) if noise else 0,
        "told_apart_at_the_end": _at_the_end(trainer, "noise_accuracy"),
        "precision": "bf16" if trainer.args.bf16 else "fp32",
    }
    if noise:
        names = [part.name for part in noise.parts]
        facts["told_apart_by_source"] = {name: _at_the_end(trainer, f"noise_accuracy_{name}") for name in names}
    return facts


def _at_the_end(trainer: JointTrainer, name: str) -> float | None:
    """The mean of a logged figure over the last tenth of the training."""
    values = [line[name] for line in trainer.state.log_history if name in line]
    return round(float(np.mean(values[-max(1, len(values) // 10) :])), 4) if values else None


def _save(
    folder: RunFolder, cell: Cell, model: EnergyClassifier, weights: dict[str, Any] | None, trainer: JointTrainer,
    facts: dict[str, Any], work: CellWork, reporter: Reporter,
) -> None:  # fmt: skip
    told = [line for line in trainer.state.log_history if "loss" in line or "eval_accuracy" in line]
    lines = [json.dumps(line, sort_keys=True) for line in told]  # those of a checkpoint come back sorted
    card = {
        "method": cell.method,
        "seed": cell.seed,
        "task": work.data.task_name,
        "max_length": work.config.max_length,
        "text_column": work.config.text_column,
        "text_pair_column": work.config.text_pair_column,
        "is_pair": work.data.is_pair,
        "data": {name: split.fingerprint for name, split in work.data.splits.items()},
        "training": facts,
    }
    place = folder.model(cell)
    calibrator, folded = ((place / name) for name in (FILE_NAME, FOLDED_NAME))
    kept = calibrator.read_text(encoding="utf-8") if calibrator.exists() else None
    if folded.exists():
        reporter.say(f"{cell.name}: the temperature that was folded in is not in the new weights: fold it again")
    with quiet(), writing_folder(place) as aside:
        model.save_pretrained(aside, card, weights)
        write_text(aside / HISTORY, "\n".join(lines) + "\n")
        load_tokenizer(work.config.encoder, work.config.trust_remote_code).save_pretrained(aside)
    if kept is not None:
        write_text(calibrator, kept)
    if not work.config.keep_checkpoints:
        for checkpoint in folder.checkpoints(cell).glob("checkpoint-*"):
            shutil.rmtree(checkpoint)


def _wanted_splits(work: CellWork) -> list[str]:
    others = [f"ood_{name}" for name in work.extra]
    return [*work.data.splits, *(["noise"] if work.noise else []), *others]


Distances = Callable[[np.ndarray], dict[str, np.ndarray]]  # features [n, H] → name → [n]


def _distances(
    model: EnergyClassifier, missing: Sequence[str], work: CellWork, reporter: Reporter
) -> dict[str, Distances]:
    """Split → what makes distances of its features; for test and other texts, in a run that has other texts."""
    wanted = [s for s in _wanted_splits(work) if s.startswith(("test", "ood_")) or s == "noise"]
    if not (work.extra or work.noise) or not set(wanted) & set(missing):
        return {}
    rows = _train_rows(work)
    reference = Reference.of(work.tables["train"], rows, work.data.splits["train"].labels[rows])
    if not work.untouched:
        config = work.config

        def untouched() -> Any:
            return load_encoder(config.encoder, work.data.label_names, config.trust_remote_code).to(best_device())

        splits = [(s, *_inputs(s, work, reporter)[:2]) for s in wanted]
        work.untouched.update(untouched_distances(untouched, reference, splits))
    fitted = reference.distances(model.encoder, middle=True)

    def distances_of(split: str) -> Distances:
        return lambda features: {name: d(features) for name, d in fitted.items()} | work.untouched[split]

    return {split: distances_of(split) for split in wanted}


def _predict_split(
    folder: RunFolder, cell: Cell, split: str, model: EnergyClassifier, work: CellWork, reporter: Reporter,
    distances: Distances | None = None,
) -> None:  # fmt: skip
    table, chosen, labels, ids, texts = _inputs(split, work, reporter)
    meta = {"task": work.data.task_name, "method": cell.method, "seed": cell.seed, "split": split}
    if split.startswith("ood_"):
        meta["texts"] = work.extra[split.removeprefix("ood_")].fingerprint
    with reporter.stage(f"{cell.name} on {split}", len(texts)) as advance:
        predictions = predict(
            model, table, labels=labels, label_names=work.data.label_names, texts=texts, progress=advance,
            ids=np.array([f"{split}-{i}" for i in ids]), meta=meta, rows=chosen,
            distances=distances,
        )  # fmt: skip
    path = folder.predictions(cell, split)
    predictions.write(path)
    reseal(path)


def _inputs(
    split: str, work: CellWork, reporter: Reporter
) -> tuple[TokenTable, np.ndarray, np.ndarray, Iterable[Any], list[Any]]:
    """Tokens and which of them, labels, ids and texts of a split."""
    if split == "noise" and work.noise is not None:
        held_out = work.noise.held_out
        n = len(held_out.texts)
        return held_out.table, np.arange(n), np.full(n, -1), held_out.ids, held_out.texts
    rows = work.data.splits[split] if split in work.data.splits else work.extra[split.removeprefix("ood_")]
    table = work.tables[split] if split in work.tables else tokens_of(rows, work.config, reporter)
    chosen = _train_rows(work) if split == "train" else np.arange(len(rows))
    rows = rows.take(chosen)
    return table, chosen, rows.labels, rows.ids, rows.texts()


def _train_rows(work: CellWork) -> np.ndarray:
    """The training rows that are predicted: all, or a fixed sample of them."""
    n, limit = len(work.data.splits["train"]), work.config.train_prediction_rows
    return np.arange(n) if n <= limit else np.sort(np.random.default_rng(0).choice(n, limit, replace=False))


def is_trained(folder: RunFolder, cell: Cell) -> bool:
    """Whether the model of a cell is there, whole."""
    return (folder.model(cell) / CARD_FILE).exists() and not damage(folder.model(cell))


def is_predicted(folder: RunFolder, cell: Cell, split: str) -> bool:
    """Whether the predictions of a cell on a split are there and whole."""
    path = folder.predictions(cell, split)
    try:
        return checksum(path) == read_json(path.parent / SEAL)[path.name]
    except Exception:  # absent or damaged: made again
        return False
