"""One trial of a run: a method and a seed, trained and evaluated on every split. Finished parts are not repeated.

A model directory is renamed into place when it is complete, and so is every prediction file: what exists is complete.
"""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import set_seed

from ebmcal import __version__
from ebmcal.calibration.leakage import TRAINING_ROWS
from ebmcal.calibration.sketch import FittingRows
from ebmcal.errors import EbmcalError
from ebmcal.methods import find_method, register_energy
from ebmcal.metrics import compute_metrics
from ebmcal.modeling.classifier import EnergyClassifier, Predictor, Text
from ebmcal.modeling.pretrained import default_device, load_encoder, quiet
from ebmcal.pipeline.workspace import Workspace, ood_fingerprint
from ebmcal.predictions import Predictions
from ebmcal.run_dir import Trial
from ebmcal.selective.ood import DISTANCES, fit_distance
from ebmcal.storage import atomic_write, write_text
from ebmcal.training.runtime import device_batch_size, fit, is_main_process, use_bf16
from ebmcal.training.trainer import EnergyConfig, EnergyTrainer

#: Test rows that are evaluated during training, for the curves.
CURVE_ROWS = 1000

#: Training rows that OOD distances are measured from.
REFERENCE_ROWS = 2000

#: Log lines per training.
LOG_LINES = 200


def ensure_trained(work: Workspace, trial: Trial) -> None:
    """Train the model of a trial unless it exists."""
    if not (work.directory.model(trial) / "config.json").is_file():
        train_model(work, trial, work.data.splits["train"], work.directory.trial(trial), title=trial.name)


def train_model(work: Workspace, trial: Trial, rows: Any, directory: Path, *, title: str, curves: bool = True) -> None:
    """Train on rows and write `directory/model` and `directory/history.jsonl`; continues from a checkpoint."""
    start = time.monotonic()
    set_seed(trial.seed)
    trainer = make_trainer(work, trial, rows, directory, curves=curves)
    fit(trainer, title, work.reporter)
    trainer.method.finish(trainer)
    trainer.card |= {"training": _training_facts(work, trial, trainer, time.monotonic() - start)}
    if is_main_process():
        history = [line for line in trainer.state.log_history if "loss" in line or "eval_loss" in line]
        write_text(directory / "history.jsonl", "".join(json.dumps(line, sort_keys=True) + "\n" for line in history))
        with quiet(), atomic_write(directory / "model", directory=True) as temporary:
            trainer.classifier.save_pretrained(temporary, trainer.card)
            work.tokenizer.save_pretrained(temporary)
        for checkpoint in directory.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    trainer.accelerator.wait_for_everyone()


def make_trainer(work: Workspace, trial: Trial, rows: Any, directory: Path, *, curves: bool = True) -> EnergyTrainer:
    """The trainer of a trial on these rows."""
    config, settings, method = work.config, work.settings, find_method(trial.method)
    pooling = method.pooling or ("first" if config.recipe == "published" else config.pooling)
    encoder = load_encoder(config.encoder, work.data.label_names, config.trust_remote_code, pooling=pooling)
    n_steps = max(1, round(settings.steps * len(rows) / len(work.data.splits["train"])))
    args = EnergyConfig(
        str(directory),
        method=trial.method,
        centered=settings.centered,
        noise_ratio=settings.noise_ratio,
        energy_weight=settings.energy_weight,
        energy_schedule=settings.energy_schedule,
        noise_start=config.noise_start,
        noise_every=config.noise_every,
        label_smoothing=config.label_smoothing,
        poscal_weight=config.poscal_weight,
        focal_gamma=config.focal_gamma,
        mixup_alpha=config.mixup_alpha,
        masked_lm_weight=config.masked_lm_weight,
        manifold_on=config.manifold_on,
        manifold_off=config.manifold_off,
        manifold_mix=config.manifold_mix,
        l2_sp_weight=config.l2_sp_weight,
        max_length=config.max_length,
        max_steps=n_steps,
        per_device_train_batch_size=device_batch_size(settings.batch_size),
        learning_rate=settings.learning_rate,
        head_learning_rate=settings.head_learning_rate,
        warmup_steps=min(settings.warmup_steps, n_steps),
        weight_decay=config.weight_decay,
        tokens_per_micro_batch=config.tokens_per_micro_batch,
        bf16=use_bf16(config.precision),
        use_cpu=default_device() == "cpu",
        seed=trial.seed,
        dataloader_drop_last=True,
        eval_strategy="steps" if curves else "no",
        eval_steps=settings.eval_steps,
        save_steps=settings.save_steps,
        save_total_limit=2,
        logging_steps=max(1, n_steps // LOG_LINES),
        report_to=config.report_to or "none",
        run_name=trial.name,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        fsdp=config.fsdp,
        fsdp_config={"version": 2} if config.fsdp else None,
    )
    test = work.data.splits["test"]
    register_energy(method.energy)
    return EnergyTrainer(
        EnergyClassifier(encoder, method.energy, settings.centered),
        args,
        train_dataset=rows,
        eval_dataset=test.select(range(min(CURVE_ROWS, len(test)))) if curves else None,
        compute_metrics=compute_metrics,
        processing_class=work.tokenizer,
        noise=fold_noise(work, rows).stream(trial.seed) if method.uses_noise else None,
        card=_card(work, trial, rows),
    )


def fold_noise(work: Workspace, rows: Any) -> Any:
    """The noise of a training on some of the training rows: it must not be made from the other rows."""
    if work.noise is None:
        raise EbmcalError("This method needs noise, but none was built.")
    return work.noise if len(rows) == len(work.data.splits["train"]) else work.noise.restricted_to(rows)


def _card(work: Workspace, trial: Trial, rows: Any) -> dict[str, Any]:
    config = work.config
    pairs = rows["text_pair"] if work.data.is_pair else None
    return {
        "ebmcal": __version__,
        "method": trial.method,
        "seed": trial.seed,
        "task": work.data.name,
        "encoder": config.encoder,
        "max_length": config.max_length,
        "text_column": config.text_column,
        "text_pair_column": config.text_pair_column,
        "is_pair": work.data.is_pair,
        "data": work.data.fingerprints,
        TRAINING_ROWS: FittingRows.of_texts(rows["text"][:], None if pairs is None else pairs[:]).to_json(),
    }


def _training_facts(work: Workspace, trial: Trial, trainer: EnergyTrainer, seconds: float) -> dict[str, Any]:
    logs = [line["noise_auroc"] for line in trainer.state.log_history if "noise_auroc" in line]
    return {
        "steps": trainer.args.max_steps,
        "seconds": round(seconds, 1),
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "noise_auroc": round(float(np.mean(logs[-max(1, len(logs) // 10) :])), 4) if logs else None,
    }


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split that are predicted."""

    texts: list[Text]
    labels: np.ndarray
    ids: list[str]
    meta: dict[str, Any]


def ensure_predicted(work: Workspace, trial: Trial) -> None:
    """Predict every split that has no predictions yet."""
    missing = [split for split in wanted_splits(work) if not _is_predicted(work, trial, split)]
    if not missing:
        return
    classifier = EnergyClassifier.from_pretrained(work.directory.model(trial), work.config.trust_remote_code)
    predictor = Predictor(classifier.to(default_device()).eval(), work.tokenizer, work.config.max_length)
    distances = _fit_distances(work, predictor) if any(_has_distances(split) for split in missing) else {}
    for split in missing:
        rows = split_rows(work, split)
        with work.reporter.stage(f"{trial.name} on {split}", len(rows.texts)) as advance:
            outputs = predictor(rows.texts, features=_has_distances(split), on_batch=advance)
        predictions = make_predictions(work, trial, split, rows, outputs.logits, outputs.energies)
        if outputs.features is not None:
            found = {name: distance(outputs.features) for name, distance in distances.items()}
            predictions = predictions.replace(distances=found)
        predictions.write(work.directory.predictions(trial, split))


def make_predictions(
    work: Workspace, trial: Trial, split: str, rows: SplitRows, logits: np.ndarray, energies: np.ndarray | None
) -> Predictions:
    """`Predictions` of a split with texts and metadata."""
    is_pair = work.data.is_pair
    return Predictions(
        labels=rows.labels,
        label_names=work.data.label_names,
        logits=logits,
        energies=energies,
        ids=np.array([str(i) for i in rows.ids], dtype=object),
        texts=[t[0] if is_pair else t for t in rows.texts],  # type: ignore[misc]
        text_pairs=[t[1] for t in rows.texts] if is_pair else None,
        meta={"task": work.data.name, "method": trial.method, "seed": trial.seed, "split": split, **rows.meta},
    )


def wanted_splits(work: Workspace) -> list[str]:
    """The splits that every trial predicts."""
    return [*work.data.splits, *(["noise"] if work.noise else []), *(f"ood_{name}" for name in work.ood)]


def split_rows(work: Workspace, split: str) -> SplitRows:
    """Texts, labels and ids of a split; of the training rows at most `train_prediction_rows`."""
    meta: dict[str, Any] = {}
    if split == "noise" and work.noise is not None:
        dataset = work.noise.held_out()
    elif split.startswith("ood_"):
        dataset = work.ood[split.removeprefix("ood_")]
        meta["texts"] = ood_fingerprint(dataset)
    else:
        dataset = work.data.splits[split]
    if split == "train":
        dataset = dataset.select(train_sample(len(dataset), work.config.train_prediction_rows))
    labels = np.full(len(dataset), -1)
    if not split.startswith("ood_") and split != "noise":
        labels = np.asarray(dataset["label"][:], dtype=np.int64)
    return SplitRows(dataset_texts(dataset), labels, list(dataset["id"]), meta)


def dataset_texts(dataset: Any) -> list[Text]:
    """The texts or pairs of a dataset."""
    if "text_pair" in dataset.column_names:
        return list(zip(dataset["text"], dataset["text_pair"], strict=True))
    return list(dataset["text"])


def train_sample(n: int, limit: int) -> Sequence[int]:
    """All positions, or a fixed random sample of them in order."""
    if n <= limit:
        return range(n)
    return [int(i) for i in np.sort(np.random.default_rng(0).choice(n, limit, replace=False))]


def _is_predicted(work: Workspace, trial: Trial, split: str) -> bool:
    path = work.directory.predictions(trial, split)
    if not path.is_file():
        return False
    try:
        meta = Predictions.read(path).meta
    except (EbmcalError, OSError):
        work.reporter.info(f"{trial.name}: {path.name} is corrupt; predicting again")
        return False
    is_other = split.startswith("ood_") and meta.get("texts") != ood_fingerprint(work.ood[split.removeprefix("ood_")])
    if is_other:
        work.reporter.info(f"{trial.name}: the texts of {split} changed; predicting again")
    return not is_other


def _has_distances(split: str) -> bool:
    return split.startswith(("test", "ood_")) or split == "noise"


def _fit_distances(work: Workspace, predictor: Predictor) -> dict[str, Any]:
    train = work.data.splits["train"]
    chosen = train.select(train_sample(len(train), REFERENCE_ROWS))
    features = predictor(dataset_texts(chosen), features=True).features
    assert features is not None  # requested
    labels = np.asarray(chosen["label"][:])
    return {name: fit_distance(name, features, labels) for name in DISTANCES}
