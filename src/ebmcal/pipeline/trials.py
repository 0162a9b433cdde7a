"""One trial of a run: a method and a seed, trained and predicted on every split. Finished parts are not repeated.

A model directory is renamed into place when it is complete, and so is every prediction file: what exists is complete.
"""

import json
import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import set_seed

from ebmcal import __version__
from ebmcal.calibration.leakage import TRAINING_ROWS, FittingRows
from ebmcal.data import dataset_fingerprint
from ebmcal.errors import EbmcalError
from ebmcal.methods import find_method, register_energy
from ebmcal.metrics import compute_metrics
from ebmcal.modeling.classifier import EnergyClassifier, Predictor, Text
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import default_device, load_encoder, quiet
from ebmcal.predictions import Predictions
from ebmcal.run_dir import Trial, read_card
from ebmcal.selective.ood import DISTANCES, fit_distance
from ebmcal.storage import atomic_write, write_text
from ebmcal.training.classifier_trainer import EnergyConfig
from ebmcal.training.runtime import device_batch_size, fit, is_main_process
from ebmcal.training.trainer import EnergyTrainer

if TYPE_CHECKING:
    from ebmcal.pipeline import Workspace

#: Test rows that are evaluated during training, for the curves; training rows that OOD distances are measured from.
CURVE_ROWS, REFERENCE_ROWS = 1000, 2000

#: Log lines per training.
LOG_LINES = 200


def ensure_trained(work: "Workspace", trial: Trial) -> None:
    """Train the model of a trial unless it exists."""
    if not (work.directory.model(trial) / "config.json").is_file():
        train_model(work, trial, work.data.splits["train"], work.directory.trial(trial), title=trial.name)


def train_model(
    work: "Workspace", trial: Trial, rows: Any, directory: Path, *, title: str, curves: bool = True
) -> None:
    """Train on rows and write `directory/model` and `directory/history.jsonl`; continues from a checkpoint."""
    set_seed(trial.seed)
    trainer = make_trainer(work, trial, rows, directory, curves=curves)
    if work.duration:
        trainer.add_callback(work.duration)
    seconds = fit(trainer, title, work.reporter)
    trainer.card["training"] = _training_facts(trainer, seconds)
    if is_main_process():
        history = [line for line in trainer.state.log_history if "loss" in line or "eval_loss" in line]
        write_text(directory / "history.jsonl", "".join(json.dumps(line, sort_keys=True) + "\n" for line in history))
        save_model(work, trainer.classifier, directory / "model", trainer.card)
        for checkpoint in directory.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    trainer.accelerator.wait_for_everyone()


def save_model(work: "Workspace", classifier: EnergyClassifier, target: Path, card: dict[str, Any]) -> None:
    """Write a model directory with its tokenizer."""
    with quiet(), atomic_write(target, directory=True) as temporary:
        classifier.save_pretrained(temporary, card)
        work.tokenizer.save_pretrained(temporary)


def make_trainer(work: "Workspace", trial: Trial, rows: Any, directory: Path, *, curves: bool = True) -> EnergyTrainer:
    """The trainer of a trial on these rows."""
    config, settings, method = work.config, work.settings, find_method(trial.method)
    known = {field.name for field in fields(EnergyConfig)}
    given = {name: value for name, value in (vars(config) | asdict(settings)).items() if name in known}
    args = EnergyConfig(
        **given
        | {
            "output_dir": str(directory),
            "method": trial.method,
            "max_steps": settings.steps,  # of folds, too: with fewer, they are less confident than the final model
            "per_device_train_batch_size": device_batch_size(settings.batch_size),
            "bf16": use_bf16(config.precision),
            "use_cpu": default_device() == "cpu",
            "seed": trial.seed,
            "dataloader_drop_last": True,
            "eval_strategy": "steps" if curves else "no",
            "save_total_limit": 2,
            "logging_steps": max(1, settings.steps // LOG_LINES),
            "report_to": config.report_to or "none",
            "run_name": trial.name,
            "disable_tqdm": True,
            "ddp_find_unused_parameters": False,
            "fsdp_config": {"version": 2} if config.fsdp else None,
        }
    )
    pooling = method.pooling or ("first" if config.recipe == "published" else config.pooling)
    encoder = load_encoder(config.encoder, work.data.label_names, config.trust_remote_code, pooling=pooling)
    test = work.data.splits["test"]
    register_energy(method.energy)
    return EnergyTrainer(
        EnergyClassifier(encoder, method.energy, settings.centered),
        args,
        train_dataset=rows,
        eval_dataset=test.select(range(min(CURVE_ROWS, len(test)))) if curves else None,
        compute_metrics=compute_metrics,
        processing_class=work.tokenizer,
        noise=_noise(work, rows).stream(trial.seed) if method.uses_noise else None,
        card=make_card(work, trial, rows),
    )


def _noise(work: "Workspace", rows: Any) -> Any:
    """The noise of a training on some of the training rows: it must not be made from the other rows."""
    assert work.noise is not None  # built if any method uses it
    return work.noise if len(rows) == len(work.data.splits["train"]) else work.noise.restricted_to(rows)


def make_card(work: "Workspace", trial: Trial, rows: Any) -> dict[str, Any]:
    """What `ebmcal.json` says about the training of a model on these rows."""
    pairs = rows["text_pair"] if work.data.is_pair else None
    names = ("encoder", "max_length", "text_column", "text_pair_column", "label_column", "id_column")
    return {
        "ebmcal": __version__,
        "method": trial.method,
        "seed": trial.seed,
        "task": work.data.name,
        **{name: getattr(work.config, name) for name in names},
        "is_pair": work.data.is_pair,
        "data": work.data.fingerprints,
        TRAINING_ROWS: FittingRows.of_texts(rows["text"][:], None if pairs is None else pairs[:]).to_json(),
    }


def _training_facts(trainer: EnergyTrainer, seconds: float) -> dict[str, Any]:
    logs = [line["noise_auroc"] for line in trainer.state.log_history if "noise_auroc" in line]
    return {
        "steps": trainer.args.max_steps,
        "seconds": round(seconds, 1),
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "noise_auroc": round(float(np.mean(logs[-max(1, len(logs) // 10) :])), 4) if logs else None,
    }


def ensure_predicted(work: "Workspace", trial: Trial) -> None:
    """Predict every split that has no predictions yet."""
    wanted = [*work.data.splits, *(["noise"] if work.noise else []), *(f"ood_{name}" for name in work.ood)]
    missing = [split for split in wanted if not is_predicted(work, trial, split)]
    if not missing:
        return
    predictor = load_predictor(work, work.directory.model(trial))
    distances = _fit_distances(work, predictor) if any(_has_distances(split) for split in missing) else {}
    for split in missing:
        rows = split_rows(work, split)
        with work.reporter.stage(f"{trial.name} on {split}", len(rows)) as advance:
            outputs = predictor(dataset_texts(rows), features=_has_distances(split), on_batch=advance)
        found = {name: distance(outputs.features) for name, distance in distances.items() if _has_distances(split)}
        write_predictions(work, trial, split, rows, outputs.logits, outputs.energies, found)


def load_predictor(work: "Workspace", model: Path) -> Predictor:
    """The predictor of a model of this run."""
    register_energy(str(read_card(model).get("energy", "hidden")))
    classifier = EnergyClassifier.from_pretrained(model, work.config.trust_remote_code)
    return Predictor(classifier.to(default_device()).eval(), work.tokenizer, work.config.max_length)


def write_predictions(
    work: "Workspace",
    trial: Trial,
    split: str,
    rows: Any,
    logits: np.ndarray,
    energies: np.ndarray | None = None,
    distances: dict[str, np.ndarray] | None = None,
) -> None:
    """Store the outputs for the rows of a split, with their texts, ids and labels."""
    is_other = split == "noise" or split.startswith("ood_")
    meta: dict[str, Any] = {"task": work.data.name, "method": trial.method, "seed": trial.seed, "split": split}
    Predictions(
        labels=np.full(len(rows), -1) if is_other else np.asarray(rows["label"][:], dtype=np.int64),
        label_names=work.data.label_names,
        logits=logits,
        energies=energies,
        distances=distances or None,
        ids=np.array([str(i) for i in rows["id"]], dtype=object),
        texts=list(rows["text"]),
        text_pairs=list(rows["text_pair"]) if work.data.is_pair else None,
        meta=meta | ({"texts": dataset_fingerprint(rows)} if split.startswith("ood_") else {}),
    ).write(work.directory.predictions(trial, split))


def split_rows(work: "Workspace", split: str) -> Any:
    """The rows of a split; of the training rows at most `train_prediction_rows`."""
    if split == "noise" and work.noise is not None:
        return work.noise.held_out
    if split.startswith("ood_"):
        return work.ood[split.removeprefix("ood_")]
    rows = work.data.splits[split]
    return sample_rows(rows, work.config.train_prediction_rows) if split == "train" else rows


def dataset_texts(rows: Any) -> list[Text]:
    """The texts or pairs of a dataset."""
    if "text_pair" in rows.column_names:
        return list(zip(rows["text"], rows["text_pair"], strict=True))
    return list(rows["text"])


def sample_rows(rows: Any, limit: int) -> Any:
    """All rows, or a fixed random sample of them in order."""
    return rows if len(rows) <= limit else rows.select(sample_indices(len(rows), limit))


def sample_indices(n: int, limit: int) -> np.ndarray:
    """The indices that `sample_rows` selects."""
    return np.arange(n) if n <= limit else np.sort(np.random.default_rng(0).choice(n, limit, replace=False))


def is_predicted(work: "Workspace", trial: Trial, split: str) -> bool:
    """Whether a trial has readable predictions of a split, of the same texts."""
    path = work.directory.predictions(trial, split)
    if not path.is_file():
        return False
    try:
        meta = Predictions.read(path).meta
    except (EbmcalError, OSError):
        work.reporter.info(f"{trial.name}: {path.name} is corrupt; predicting again")
        return False
    if split.startswith("ood_") and meta.get("texts") != dataset_fingerprint(work.ood[split.removeprefix("ood_")]):
        work.reporter.info(f"{trial.name}: the texts of {split} changed; predicting again")
        return False
    return True


def _has_distances(split: str) -> bool:
    return split.startswith(("test", "ood_")) or split == "noise"


def _fit_distances(work: "Workspace", predictor: Predictor) -> dict[str, Any]:
    rows = sample_rows(work.data.splits["train"], REFERENCE_ROWS)
    features, labels = predictor(dataset_texts(rows), features=True).features, np.asarray(rows["label"][:])
    assert features is not None  # requested
    return {name: fit_distance(name, features, labels) for name in DISTANCES}
