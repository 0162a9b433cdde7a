"""Abstention rules of a model: fitted on its held-out predictions, bound to its weights and calibrator, stored with it.

The rule is JSON in `ebmcal.json` (entry "abstention") with its arrays in `abstention.npz`. A rule that was fitted for
other weights or another calibrator is refused: its guarantee does not hold for them. Torch is needed only to measure
distances to training texts.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.calibration import Calibrator, check_held_out, read_calibrator
from ebmcal.calibration.layout import logits_in
from ebmcal.calibration.leakage import model_differences
from ebmcal.calibration.persistence import (
    calibrator_fingerprint,
    check_model_dir,
    label_names,
    read_for_model,
    read_held_out,
)
from ebmcal.calibration.sketch import text_key
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.predictions import Predictions
from ebmcal.run_dir import CARD_FILE, predictions_of_model, read_card, update_card, weights_fingerprint
from ebmcal.selective.fitting import fit_rule
from ebmcal.selective.ood import DISTANCES, MAX_TEXTS, N_NEIGHBOURS, TrainingFeatures, fit_distance
from ebmcal.selective.rule import AbstentionRule, arrays_from
from ebmcal.selective.scores import energies_of
from ebmcal.storage import PathLike, atomic_write

if TYPE_CHECKING:
    from ebmcal.model import Model

ARRAYS_FILE = "abstention.npz"

#: Calibrators with one parameter: fitted on the rows of the rule, they do not affect its guarantee (tests measure it).
ONE_PARAMETER = ("temperature", "temperature-grid")

Featurize = Callable[[Sequence[Any]], np.ndarray]


def fit_for_model(
    model: "Model | PathLike",
    predictions: Predictions | PathLike,
    training: Any,
    normalize: bool,
    settings: dict[str, Any],
) -> AbstentionRule:
    """The rule of a model, see `fit_abstention`; not stored yet."""
    folder, calibrator = _parts(model)
    rows = read_held_out(predictions, folder, normalize=normalize)
    features = None
    if settings["ood"] != 0 and _wants_distances(folder, settings["ood_score"], training):
        rows, features = _measure_or_explain(model, rows, training, settings)
    note = "The model has no calibrator: confidence is the model's own." if calibrator is None else ""
    note = note or _check_calibrator_rows(calibrator, rows)
    rule = fit_rule(calibrated(rows, calibrator), features=features, **settings)
    notes, bound_to = (note,) if note else (), calibrator_fingerprint(calibrator)
    return replace(rule, notes=notes, model=weights_fingerprint(folder), calibrator=bound_to)


def _parts(model: "Model | PathLike") -> tuple[Path, Calibrator | None]:
    if not isinstance(model, str | os.PathLike):
        return model.folder, model.calibrator
    folder = check_model_dir(model)
    return folder, read_calibrator(folder)


def calibrated(rows: Predictions, calibrator: Calibrator | None) -> Predictions:
    """The rows after a calibrator, with the energies of the original logits; calibrated rows are left as they are."""
    if calibrator is None or rows.meta.get("calibrator"):
        return rows
    energies = energies_of(rows) if rows.energies is not None or rows.logits is not None else None
    probs = calibrator.predict_proba(logits_in(rows))
    return rows.replace(energies=energies, probs=probs, meta=rows.meta | {"calibrator": calibrator.description})


def _check_calibrator_rows(calibrator: Calibrator | None, rows: Predictions) -> str:
    """An error for rows that a flexible calibrator was fitted on: its confidences there are too good."""
    share = 0.0 if calibrator is None else calibrator.fitted_on_.share_among(rows)
    if calibrator is None or not share:
        return ""
    if calibrator.name in ONE_PARAMETER:
        return f"The {calibrator.name} was fitted on {share:.0%} of the same rows; with one parameter this is harmless."
    raise EbmcalError(
        f"{share:.0%} of these rows were used to fit the model's {calibrator.name} calibrator, so its confidences are "
        "too good there and nothing can be guaranteed. Calibrate on one half of the rows and fit the rule on the "
        "other, or calibrate by temperature."
    )


def _wants_distances(folder: Path, ood_score: str | None, training: Any) -> bool:
    if ood_score is not None:
        if training is not None and ood_score not in DISTANCES:
            raise EbmcalError("training (--training) goes with the OOD scores knn and mahalanobis (--ood-score).")
        return ood_score in DISTANCES
    return training is not None or predictions_of_model(folder, "train") is not None


def _measure_or_explain(
    model: "Model | PathLike", rows: Predictions, training: Any, settings: dict[str, Any]
) -> tuple[Predictions, TrainingFeatures | None]:
    """Rows with distances; by default, if these cannot be measured, without them and with a warning."""
    try:
        return _measure(model, rows, settings["ood_score"] or "knn", training)
    except EbmcalError as error:
        if settings["ood_score"] is not None or training is not None:
            raise
        warnings.warn(f"{str(error).rstrip('.')}. The OOD score is the energy instead.", stacklevel=5)
        return rows, None


def _measure(
    model: "Model | PathLike", rows: Predictions, name: str, training: Any
) -> tuple[Predictions, TrainingFeatures]:
    """The rows with their distances to training texts, and the features of those."""
    texts, (known, labels) = _texts_of(rows, "held-out rows"), _training_texts(model, training, name)
    if len(known) < N_NEIGHBOURS:
        raise EbmcalError(
            f"{len(known)} training texts are too few to measure distances; pass at least {N_NEIGHBOURS}, better "
            f"hundreds (up to {MAX_TEXTS:,} are used)."
        )
    _check_disjoint(texts, known)
    featurize = _featurizer(model)
    chosen = np.linspace(0, len(known) - 1, min(MAX_TEXTS, len(known))).astype(int)
    features = TrainingFeatures.of(featurize([known[i] for i in chosen]), labels[chosen])
    distance = fit_distance(name, features.features, features.labels)
    meta = rows.meta | {"distances": features.fingerprint}
    return rows.replace(distances={name: distance(featurize(texts))}, meta=meta), features


def _featurizer(model: "Model | PathLike") -> Featurize:
    if not isinstance(model, str | os.PathLike):
        return model.features
    require_extra("train", "torch", "transformers")
    try:
        from ebmcal.model import load
    except (ImportError, OSError) as error:
        raise EbmcalError(f"torch or transformers cannot be imported: {error}.") from error
    return load(model).features


def _training_texts(model: "Model | PathLike", training: Any, name: str) -> tuple[list[Any], np.ndarray]:
    """The training texts and their labels (−1 = unknown): given, or those of the run that the model belongs to."""
    folder = _parts(model)[0]
    if training is None:
        path = predictions_of_model(folder, "train")
        if path is None:
            raise EbmcalError(
                f"{folder} does not belong to a run, so its training texts, from which distances are measured, are "
                "unknown. Pass training (--training FILE), or use --ood-score energy."
            )
        training = Predictions.read(path, label_names=label_names(folder))
        if differences := model_differences(training.meta, folder):
            raise EbmcalError(
                f"{path} holds training rows of another model ({differences}). Pass those of this one: training "
                "(--training FILE); or use --ood-score energy."
            )
    if isinstance(training, Predictions):
        return _texts_of(training, "training rows"), training.labels
    return _read_texts(training, folder, with_labels=name == "mahalanobis")


def _read_texts(training: Any, folder: Path, *, with_labels: bool) -> tuple[list[Any], np.ndarray]:
    require_extra("train", "datasets")
    from ebmcal.data import as_dataset

    card, names = read_card(folder), label_names(folder)
    rows = as_dataset(
        training, text_column=card.get("text_column"), text_pair_column=card.get("text_pair_column"),
        label_column="label" if with_labels else None, label_names=names,
    )  # fmt: skip
    texts = list(rows["text"])
    is_pair = "text_pair" in rows.column_names
    labels = np.asarray(rows["label"]) if "label" in rows.column_names else np.full(len(texts), -1)
    return list(zip(texts, rows["text_pair"], strict=True)) if is_pair else texts, labels


def _texts_of(rows: Predictions, what: str) -> list[Any]:
    if rows.texts is None:
        raise EbmcalError(f"Distances are measured from texts; the {what} have none (column text). Predict again.")
    return rows.texts if rows.text_pairs is None else list(zip(rows.texts, rows.text_pairs, strict=True))


def _check_disjoint(held_out: Sequence[Any], training: Sequence[Any]) -> None:
    """An error if held-out texts are training texts: their distance is 0, and new texts would all look far away."""
    kinds = ["single texts" if isinstance(texts[0], str) else "pairs of texts" for texts in (held_out, training)]
    if kinds[0] != kinds[1]:
        raise EbmcalError(f"The held-out rows are {kinds[0]}, the training rows {kinds[1]}. Pass the same kind.")
    known = {_key(text) for text in training}
    n_same = sum(_key(text) in known for text in held_out)
    if n_same > len(held_out) // 10:
        raise EbmcalError(
            f"{n_same:,} of the {len(held_out):,} held-out texts are training texts, with distance 0, so new texts "
            "would be flagged as OOD by mistake. Pass held-out rows that the model was not trained on."
        )
    if n_same:
        warnings.warn(
            f"{n_same:,} of the {len(held_out):,} held-out texts are training texts: slightly more in-distribution "
            "texts than stated may be flagged as OOD.",
            stacklevel=6,
        )


def _key(text: Any) -> str:
    return text_key(text) if isinstance(text, str) else text_key(*text)


def save_rule(model_dir: PathLike, rule: AbstentionRule | None) -> None:
    """Store a rule in a model directory, replacing the one there; None removes it."""
    folder = check_model_dir(model_dir)
    if rule is None:
        if "abstention" in read_card(folder):
            update_card(folder, abstention=None)
        (folder / ARRAYS_FILE).unlink(missing_ok=True)
        return
    with atomic_write(folder / ARRAYS_FILE) as temporary, open(temporary, "wb") as handle:
        np.savez_compressed(handle, **rule.arrays())  # type: ignore[arg-type]
    update_card(folder, abstention=rule.to_json())


class _Unset:
    """The default of `read_rule`: the calibrator in the model directory."""


def read_rule(model_dir: PathLike, calibrator: Calibrator | type[_Unset] | None = _Unset) -> AbstentionRule | None:
    """The rule of a model directory, or None; an error if it was fitted for other weights or another calibrator.

    With a `calibrator` other than the one in the directory, for which the rule was fitted, there is no rule.
    """
    value = read_card(model_dir).get("abstention")
    if value is None:
        return None
    folder, where = Path(model_dir), Path(model_dir) / CARD_FILE
    arrays = arrays_from(path.read_bytes(), path) if (path := folder / ARRAYS_FILE).is_file() else {}
    rule = AbstentionRule.from_json(value, arrays, where)
    stored = calibrator_fingerprint(read_calibrator(folder))
    for kind, fitted_for, now in (
        ("model", rule.model, weights_fingerprint(folder)),
        ("calibrator", rule.calibrator, stored),
    ):
        if fitted_for != now:
            raise EbmcalError(
                f"The abstention rule in {where} was fitted for another {kind} than {folder} has now, so its guarantee "
                f"does not hold. Fit it again: ebmcal abstain {folder} --predictions FILE."
            )
    is_other = not isinstance(calibrator, type) and calibrator_fingerprint(calibrator) != stored
    return None if is_other else rule


def predictions_for_rule(
    model_dir: PathLike | None, source: PathLike, rule: AbstentionRule, *, normalize: bool = False
) -> Predictions:
    """A prediction file as the rule needs it: calibrated by the model's calibrator and with its distances."""
    if model_dir is None:
        return Predictions.read(source, normalize=normalize)
    folder = Path(model_dir)
    rows = check_held_out(read_for_model(source, folder, normalize=normalize), folder, where=source)
    if rule.needs_features:
        texts = _texts_of(rows, "rows")
        rows = rule.add_distances(rows, _featurizer(folder)(texts))
    return calibrated(rows, read_calibrator(folder))
