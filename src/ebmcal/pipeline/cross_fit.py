"""Cross-fitting: out-of-fold predictions of the training rows, so that calibration gives up no row.

Models are trained on all folds but one and predict the held-out fold. The temperature that fits these predictions is
applied to the final model, which is trained on all rows (as scikit-learn's `CalibratedClassifierCV(ensemble=False)`).
Fold models are deleted; their predictions are kept, so an interrupted run continues. The same predictions reveal
training labels that contradict the rest of the data.
"""

import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ebmcal.data import stratified_folds, text_keys
from ebmcal.errors import EbmcalError, plural
from ebmcal.modeling.classifier import Predictor
from ebmcal.pipeline.trials import dataset_texts, is_predicted, load_predictor, train_model, write_predictions
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter, make_reporter
from ebmcal.run_dir import Trial
from ebmcal.storage import PathLike, atomic_write, fingerprint
from ebmcal.training.classifier_trainer import text_columns, token_table
from ebmcal.training.runtime import main_process_first
from ebmcal.training.trainer import EnergyTrainer

if TYPE_CHECKING:
    from ebmcal.pipeline import Workspace

#: The split of out-of-fold predictions.
SPLIT = "out_of_fold"

#: Folds for up to `SMALL` rows. Above, one part is held out: 20% of the rows; fewer, down to 10%, if `HELD_OUT` remain.
N_FOLDS, MAX_PARTS = 5, 10
SMALL, HELD_OUT = 500, 200

#: Fewer folds than this get a warning.
FEW = 4


def plan_folds(
    keys: np.ndarray, labels: np.ndarray, names: Sequence[str], n_folds: int | None, seed: int, reporter: Reporter
) -> np.ndarray:
    """[n] the fold in which each row is held out, -1 for rows that never are.

    Folds are stratified by label; rows with equal keys (duplicate texts) are in the same fold. A class with fewer
    texts than folds is missing in some of them; one with a single text is never held out. Without `n_folds` there are
    five; if there are many rows, only one part is held out: the smaller it is, the closer the fold's model is to the
    final one, the larger, the less the temperature depends on chance.
    """
    texts = pd.Series(keys).groupby(labels).nunique()  # distinct ones of each class
    rare = texts.index[texts < 2]
    if len(texts) - len(rare) < 2:
        raise EbmcalError(
            "Cross-fitting needs at least two classes with two training rows of different texts. Add rows, or "
            "calibrate on other rows (--calibration FILE)."
        )
    if len(rare):
        shown = ", ".join(repr(names[int(label)]) for label in rare)
        reporter.info(
            f"cross-fitting: warning: labels with a single training text: {shown}. These rows are in every training "
            "part and get no out-of-fold prediction. If a label is misspelt, merge it (--merge-labels)."
        )
    is_split, folds = ~np.isin(labels, rare), np.full(len(labels), -1)
    has_one_part = n_folds is None and len(labels) > SMALL
    n_parts = n_folds or (min(MAX_PARTS, max(N_FOLDS, len(labels) // HELD_OUT)) if has_one_part else N_FOLDS)
    folds[is_split] = stratified_folds(keys[is_split], labels[is_split], n_parts, seed)
    if not has_one_part:
        return folds
    # Copies of a text stay together, so parts may differ in size: one of about the intended size.
    sizes = np.bincount(folds[is_split]) / is_split.sum() * n_parts
    held_out = folds == np.abs(sizes - 1).round(1).argmin()
    if absent := len(texts) - len(rare) - len(np.unique(labels[held_out])):
        reporter.info(
            f"cross-fitting: the held-out part has no row of {plural(absent, 'label')} (of {len(texts)}); --folds 5 "
            "covers labels with five rows."
        )
    return np.where(held_out, 0, -1)


def describe_cost(folds: np.ndarray) -> str:
    """What cross-fitting costs, for the log."""
    n_held_out = int(folds.max()) + 1
    kind, note = f"{n_held_out} folds", ""
    if n_held_out == 1:
        kind = f"one split of {int((folds == 0).sum()):,} rows"
        note = ". Label issues are searched in these rows only; --folds 5 covers all rows"
    elif n_held_out < FEW:
        note = ". Models of so few folds see far fewer rows than the final model, so the temperature may be too high"
    return f"cross-fitting: {kind}; training takes {n_held_out + 1} times as long as without{note}"


def remaining_trainings(work: "Workspace", folds: np.ndarray | None) -> list[Trial]:
    """The trial of each training that is not finished, in the order of the trainings."""
    found = []
    for trial in work.trials:
        folder = work.directory.trial(trial)
        is_folded = folds is None or work.directory.predictions(trial, SPLIT).is_file()
        parts = [] if folds is None or is_folded else [folder / "folds" / str(i) for i in range(int(folds.max()) + 1)]
        todo = [part for part in (folder, *parts) if not (part / "model" / "config.json").is_file()]
        found += [trial for part in todo if not (part / "outputs.npz").is_file()]
    return found


def run_folds(work: "Workspace") -> np.ndarray | None:
    """The folds of a run; None if it has calibration rows and was not asked to cross-fit."""
    if work.config.only:
        return None
    if work.config.calibration != "cross-fit" and "calibration" in work.data.splits:
        if work.config.folds:
            raise EbmcalError(
                "--folds has no effect: there are calibration rows, so nothing is cross-fitted. Leave it out, or "
                "choose --calibration cross-fit."
            )
        return None
    train, config = work.data.splits["train"], work.config
    labels = np.asarray(train["label"][:])
    return plan_folds(text_keys(train), labels, work.data.label_names, config.folds, config.split_seed, work.reporter)


def ensure_cross_fitted(work: "Workspace", trial: Trial, folds: np.ndarray) -> None:
    """Write the out-of-fold predictions of a trial unless they exist."""
    if is_predicted(work, trial, SPLIT):
        return
    parts = [_ensure_fold(work, trial, folds, fold) for fold in range(int(folds.max()) + 1)]
    with main_process_first():
        if is_predicted(work, trial, SPLIT):
            return
        logits = np.empty((len(folds), len(work.data.label_names)), np.float32)
        energies = np.empty(len(folds), np.float32)
        for fold, path in enumerate(parts):
            outputs = _read_arrays(path)
            logits[folds == fold], energies[folds == fold] = outputs["logits"], outputs["energies"]
        rows = np.flatnonzero(folds >= 0)
        write_predictions(work, trial, SPLIT, work.data.splits["train"].select(rows), logits[rows], energies[rows])
        shutil.rmtree(work.directory.trial(trial) / "folds")


def _ensure_fold(work: "Workspace", trial: Trial, folds: np.ndarray, fold: int) -> Path:
    """A file with the outputs for one held-out fold, by a model trained on the others."""
    directory, train = work.directory.trial(trial) / "folds" / str(fold), work.data.splits["train"]
    target, model = directory / "outputs.npz", directory / "model"
    if not (target.is_file() or (model / "config.json").is_file()):
        rows, title = train.select(np.flatnonzero(folds != fold)), f"{trial.name}, fold {fold + 1}"
        train_model(work, trial, rows, directory, title=title, curves=False)
    with main_process_first():
        if not target.is_file():
            outputs = load_predictor(work, model)(dataset_texts(train.select(np.flatnonzero(folds == fold))))
            _write_arrays(target, {"logits": outputs.logits, "energies": outputs.energies})
            shutil.rmtree(model)
    return target


def cross_fit(
    make_trainer: Callable[[Any], EnergyTrainer],
    dataset: Any,
    *,
    folds: int | None = None,
    seed: int = 0,
    directory: PathLike | None = None,
    progress: bool | None = None,
) -> Predictions:
    """Out-of-fold predictions of a training set, to calibrate a model that is trained on all of its rows.

    Args:
        make_trainer: Gets the training rows of a fold and returns a new `EnergyTrainer` with a new model. Set
            `max_steps`: with epochs, models of folds take fewer steps and are less confident than the final model.
        dataset: The training set, as for `EnergyTrainer`. Rows with equal texts are in the same fold.
        folds: Folds that are held out in turn, at least 2. Default: 5, or one split of 10 to 20% of more than 500 rows.
        seed: Seed of the folds.
        directory: Finished folds are stored here, so that the same call continues after an interruption.
        progress: Report the cost and each fold. Default: on terminals and in notebooks.

    Example:
        def make_trainer(rows):
            model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=3)
            args = ebmcal.EnergyConfig("out", max_steps=300)
            return ebmcal.EnergyTrainer(model, args, train_dataset=rows, processing_class=tokenizer)

        out_of_fold = ebmcal.cross_fit(make_trainer, train)
        final = make_trainer(train)
        final.train()
        final.save_model("model")
        ebmcal.load("model").calibrate(out_of_fold).save("model")
    """
    columns = text_columns(dataset)
    texts = list(zip(*(dataset[name] for name in columns or ["input_ids"]), strict=True))
    keys = pd.factorize(pd.Series(map(str, texts)))[0].astype(np.uint64)
    labels = np.asarray(dataset["labels" if "labels" in dataset.column_names else "label"], dtype=np.int64)
    reporter = make_reporter(progress)
    plan = plan_folds(keys, labels, [str(i) for i in range(labels.max(initial=0) + 1)], folds, seed, reporter)
    reporter.info(describe_cost(plan))
    key, found = fingerprint(keys.tolist(), labels.tolist(), plan.tolist()), dict[int, Any]()
    for fold in range(int(plan.max()) + 1):
        path = Path(directory) / f"{key}-fold{fold}.npz" if directory else None
        if path is None or not path.is_file():
            with reporter.stage(f"cross-fitting, fold {fold + 1}"):
                trainer = make_trainer(dataset.select(np.flatnonzero(plan != fold)))
                trainer.train()
                found[fold] = _fold_outputs(trainer, dataset.select(np.flatnonzero(plan == fold)))
            if path is not None:
                _write_arrays(path, found[fold])
        else:
            found[fold] = _read_arrays(path)
    order = np.argsort(np.concatenate([np.flatnonzero(plan == fold) for fold in found]))
    rows = np.flatnonzero(plan >= 0)
    chosen = [texts[i] for i in rows] if columns else None
    return Predictions(
        labels=labels[rows],
        label_names=tuple(map(str, found[0]["label_names"])),
        logits=np.concatenate([part["logits"] for part in found.values()])[order],
        energies=np.concatenate([part["energies"] for part in found.values()])[order],
        ids=[str(i) for i in (np.asarray(dataset["id"])[rows] if "id" in dataset.column_names else rows)],
        texts=[row[0] for row in chosen] if chosen else None,
        text_pairs=[row[1] for row in chosen] if chosen and len(columns) == 2 else None,
        meta={"split": SPLIT},
    )


def _fold_outputs(trainer: EnergyTrainer, rows: Any) -> dict[str, np.ndarray]:
    predictor = Predictor(trainer.classifier, trainer.processing_class, trainer.data_collator.max_length)
    outputs = predictor.predict_tokens(token_table(rows, trainer.processing_class, predictor.max_length))
    names = np.array(predictor.label_names)
    return {"logits": outputs.logits, "energies": outputs.energies, "label_names": names}


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `_write_arrays` wrote; a damaged file is removed."""
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        path.unlink()
        problem = f"{path} was damaged and is removed."
        raise EbmcalError(f"{problem} Run the same command again to repeat the fold.") from error


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with atomic_write(path) as temporary, open(temporary, "wb") as handle:
        np.savez(handle, **arrays)  # type: ignore[arg-type]


def find_label_issues(predictions: Predictions) -> pd.DataFrame:
    """Label issues by confident learning (Northcutt et al. 2021): id, text, given, suggested, score (1 = suspicious).

    A row is suspicious if another class has at least that class's average self-confidence: the mean of P(j|x) over the
    rows labelled j. Rows are ranked by the margin between that class and the given one, most suspicious first.

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.05, 0.95]]
    >>> p = Predictions([0, 0, 1, 1, 0], ("no", "yes"), probs=probs)
    >>> find_label_issues(p)[["id", "given", "suggested"]].values.tolist()
    [['4', 'no', 'yes']]
    """
    rows = predictions.labelled()
    probs, labels = rows.probs, rows.labels
    n_classes = len(rows.label_names)
    own = probs[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=n_classes)
    thresholds = np.bincount(labels, weights=own, minlength=n_classes) / np.maximum(counts, 1)
    thresholds[counts == 0] = np.inf
    others = np.where(probs >= thresholds, probs, -1.0)  # [n, C], classes the model is confident of
    others[np.arange(len(labels)), labels] = -1.0
    suggested = others.argmax(axis=1)
    best_other = others.max(axis=1)
    score = (1 + best_other - own) / 2
    chosen = np.flatnonzero((best_other > own) & (best_other >= 0))
    chosen = chosen[np.argsort(-score[chosen], kind="stable")]
    names = np.array(rows.label_names, dtype=object)
    return pd.DataFrame(
        {
            "id": [str(rows.ids[i]) for i in chosen],
            "text": [rows.texts[i] if rows.texts else "" for i in chosen],
            "given": names[labels[chosen]],
            "suggested": names[suggested[chosen]],
            "score": score[chosen],
        }
    )
