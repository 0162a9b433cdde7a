"""`decide`: a rule fitted on held-out predictions and kept with the model; what `ebmcal decide` does.

The rule itself needs no torch (`ebmcal.decisions`). Where texts are to be unusual by distance, the model is loaded to
measure how far held-out texts are from training texts, and the features of those are kept with the rule.
"""

import warnings
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ebmcal.calibrators.held_out import other_model
from ebmcal.calibrators.in_model import label_names
from ebmcal.decisions import Rule
from ebmcal.decisions import decide as keep_rule
from ebmcal.decisions.fitting import check_settings
from ebmcal.decisions.in_model import predictions_as_decided
from ebmcal.decisions.unusual import ENERGY, NEAREST, TrainingFeatures, unusual_scores
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.predictions import Predictions
from ebmcal.runfolder import predictions_of_model


def decide(
    model: str | PathLike[str] | None,
    on: Predictions | str | PathLike[str],
    *,
    output: str | PathLike[str] | None = None,
    max_error: float | None = None,
    confidence: float = 0.9,
    score: str = "confidence",
    coverage: float | None = None,
    sets: str = "split",
    false_alarms: float | None = None,
    unusual_by: str | None = None,
    training: Any = None,
    normalize: bool = False,
    progress: bool = False,
) -> Rule:
    """Fit a rule on a model's predictions for labelled rows it was not trained on, and keep it in the model's folder.

    With no model the rule is for the predictions as they are in the file. `output` writes it there as well. What is
    promised: see `ebmcal.decisions.fit_rule`. `unusual_by` is "energy", "knn" or "mahalanobis"; the last two measure
    distances to `training` texts (a file or table, with a column `label` for mahalanobis; those of its run for a model
    of a run) by the features of the model: they need its texts in `on`, torch, and no second encoder. Left open: knn
    where the training texts are known, else energy. `normalize` is for probabilities that were rounded.

        ebmcal.decide("model", "calibration.parquet", max_error=0.05).decide(predictions).answers
    """
    check_settings(max_error, confidence, coverage, false_alarms, score, sets, unusual_by)
    if training is not None and (unusual_by == ENERGY or model is None):
        raise EbmcalError(
            "training (--training) are texts that a model measures distances from: it goes with a model and with "
            "unusual_by knn or mahalanobis (--unusual-by)."
        )

    of_a_run = model is not None and predictions_of_model(Path(model), "train") is not None

    def measure(folder: Path, rows: Predictions) -> tuple[Predictions, TrainingFeatures | None]:
        try:
            return measured(folder, rows, unusual_by or NEAREST, training, progress)
        except EbmcalError as error:
            if unusual_by is not None or training is not None:
                raise
            warnings.warn(f"{str(error).rstrip('.')}. So texts are unusual by their energy.", stacklevel=2)
            return rows, None

    return keep_rule(
        model, on, output=output, max_error=max_error, confidence=confidence, score=score, coverage=coverage, sets=sets,
        false_alarms=false_alarms, unusual_by=unusual_by, normalize=normalize,
        measure=measure if unusual_by != ENERGY and (unusual_by or training is not None or of_a_run) else None,
    )  # fmt: skip


def measured(
    folder: Path, rows: Predictions, by: str, training: Any, progress: bool
) -> tuple[Predictions, TrainingFeatures]:
    """The rows with their distances by the model in a folder, and the features these are measured from."""
    given = training_texts(folder) if training is None else training
    require_extra("train", "torch", "transformers")
    from ebmcal.data.given import check_given

    check_given(given)
    try:
        from ebmcal.model import load
    except (ImportError, OSError) as error:
        raise EbmcalError(f"torch or transformers is installed and cannot be imported: {error}.") from error
    return load(folder).measured(rows, by, given, progress=progress)


def training_texts(folder: Path) -> Predictions:
    """The training rows of a model of a run, as it predicted them; refuses those of another model."""
    path = predictions_of_model(folder, "train")
    if path is None:
        raise EbmcalError(
            f"{folder} is not in the folder of a run, so its training texts are unknown, and distances are measured "
            "from them. Give them: training (--training FILE); or take --unusual-by energy."
        )
    rows = Predictions.read(path, label_names=label_names(folder))
    if differing := other_model(rows.meta, folder):
        raise EbmcalError(
            f"{path} holds training rows of another model: {differing}. Give those of this one: training (--training "
            "FILE); or take --unusual-by energy."
        )
    return rows


def score_to_judge(rows: Predictions, unusual_by: str | None, model: Path | None, training: object) -> str | None:
    """What texts shall be unusual by in a rule that is then judged on these rows; left open, energy if it must be.

    Refuses rows that have neither the distances that were asked for nor texts to measure them of.
    """
    if model is not None and rows.texts is not None:
        return unusual_by
    asked = unusual_by or (NEAREST if training is not None else None)
    if asked not in (None, ENERGY):
        unusual_scores(asked, rows if model is None else replace(rows, distances=None))
    elif asked is None and model is not None and predictions_of_model(model, "train") is not None:
        warnings.warn(
            "The rows to judge the rule on have no texts (column text) to measure distances of. So texts are unusual "
            "by their energy.",
            stacklevel=2,
        )
    return asked or ENERGY


def rows_to_judge(model: Path | None, source: str | PathLike[str], rule: Rule, *, normalize: bool) -> Predictions:
    """A file of predictions as the rule takes them, with the distances that it asks for."""
    rows = predictions_as_decided(model, source, normalize=normalize)
    if model is None or rows.texts is None or rule.unusual is None or rule.unusual.measure is None:
        return rows
    from ebmcal.model import load

    return load(model).with_distances(rows, rule)
