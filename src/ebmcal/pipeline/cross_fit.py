"""Cross-fitting: out-of-fold predictions of the training rows, so that calibration gives up no row.

Models are trained on all folds but one and predict the held-out fold. The temperature that fits these predictions is
applied to the final model, which is trained on all rows (as scikit-learn's `CalibratedClassifierCV(ensemble=False)`).
Fold models are trained like the final model and deleted; their predictions are kept, so an interrupted run continues.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.data import stratified_folds, text_keys
from ebmcal.errors import EbmcalError
from ebmcal.modeling.classifier import EnergyClassifier, Predictor
from ebmcal.modeling.pretrained import default_device
from ebmcal.pipeline.trials import SplitRows, dataset_texts, make_predictions, train_model
from ebmcal.pipeline.workspace import Workspace
from ebmcal.predictions import Predictions
from ebmcal.run_dir import Trial

#: The split of out-of-fold predictions.
SPLIT = "out_of_fold"

#: Folds for small data; above `SMALL` rows, only the first of them is held out.
N_FOLDS = 5
SMALL = 500

#: Every class needs at least this many rows, so that each fold trains on all classes.
MIN_CLASS_ROWS = 2


def uses_cross_fitting(work: Workspace) -> bool:
    """Whether the run calibrates on out-of-fold predictions: if it was asked for, or has no calibration rows."""
    return work.config.calibration == "cross-fit" or "calibration" not in work.data.splits


def plan_folds(work: Workspace) -> tuple[np.ndarray, int]:
    """The fold of each training row, and how many folds are held out in turn.

    Folds are stratified by label and keep duplicate texts together.
    """
    train = work.data.splits["train"]
    labels = np.asarray(train["label"][:])
    n_folds = work.config.folds or N_FOLDS
    n_held_out = n_folds if work.config.folds or len(train) <= SMALL else 1
    rarest = int(np.bincount(labels, minlength=len(work.data.label_names)).min())
    if rarest < MIN_CLASS_ROWS:
        name = work.data.label_names[int(np.bincount(labels).argmin())]
        raise EbmcalError(
            f"Cross-fitting needs at least {MIN_CLASS_ROWS} training rows of every class, but {name!r} has {rarest}. "
            "Add rows, remove the class, or use --calibration FILE."
        )
    return stratified_folds(text_keys(train), labels, n_folds, work.config.split_seed), n_held_out


def describe_cost(work: Workspace) -> str:
    """What cross-fitting costs, for the log."""
    folds, n_held_out = plan_folds(work)
    n_rows = int((folds < n_held_out).sum())
    factor = 1 + n_held_out * (1 - 1 / (int(folds.max()) + 1))
    kind = f"{n_held_out} folds" if n_held_out > 1 else f"one split of {n_rows:,} rows"
    return f"cross-fitting: {kind}; training takes about {factor:.1f} times as long as without"


def ensure_cross_fitted(work: Workspace, trial: Trial) -> None:
    """Write the out-of-fold predictions of a trial unless they exist."""
    target = work.directory.predictions(trial, SPLIT)
    if target.is_file():
        return
    folds, n_held_out = plan_folds(work)
    parts = [_ensure_fold(work, trial, folds, fold) for fold in range(n_held_out)]
    _concatenate([Predictions.read(path) for path in parts]).write(target)
    shutil.rmtree(work.directory.trial(trial) / "folds")


def _ensure_fold(work: Workspace, trial: Trial, folds: np.ndarray, fold: int) -> Path:
    """The predictions of one held-out fold, by a model trained on the others."""
    directory = work.directory.trial(trial) / "folds" / str(fold)
    target = directory / "predictions.parquet"
    if target.is_file():
        return target
    train = work.data.splits["train"]
    if not (directory / "model" / "config.json").is_file():
        rows = train.select(np.flatnonzero(folds != fold))
        n_folds = int(folds.max()) + 1
        train_model(work, trial, rows, directory, title=f"{trial.name}, fold {fold + 1} of {n_folds}", curves=False)
    held_out = train.select(np.flatnonzero(folds == fold))
    classifier = EnergyClassifier.from_pretrained(directory / "model", work.config.trust_remote_code)
    predictor = Predictor(classifier.to(default_device()).eval(), work.tokenizer, work.config.max_length)
    labels = np.asarray(held_out["label"][:], dtype=np.int64)
    rows = SplitRows(dataset_texts(held_out), labels, list(held_out["id"]), {"fold": fold})
    outputs = predictor(rows.texts)
    make_predictions(work, trial, SPLIT, rows, outputs.logits, outputs.energies).write(target)
    shutil.rmtree(directory / "model")
    return target


def _concatenate(parts: list[Predictions]) -> Predictions:
    first = parts[0]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels", "logits", "energies", "ids")
    }
    columns |= {
        name: [text for part in parts for text in getattr(part, name)]
        for name in ("texts", "text_pairs")
        if getattr(first, name) is not None
    }
    meta = {k: v for k, v in first.meta.items() if k != "fold"}
    return Predictions(label_names=first.label_names, meta=meta, **columns)
