"""Calibrating prediction files of any classifier, without a model directory: what `ebmcal calibrate --apply` does.

The output keeps the user's ids and other columns; the class columns become calibrated `prob_<class>`.
"""

from pathlib import Path
from typing import Any

from ebmcal.calibration.base import Calibrator
from ebmcal.calibration.leakage import check_two_classes
from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions import Predictions
from ebmcal.predictions.columns import without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns, write_columns
from ebmcal.storage import PathLike

_CLASS_PREFIXES = ("prob_", "logit_")


def fit_on_file(
    calibrator: Calibrator, path: PathLike, *, normalize: bool = False, allow_mismatch: bool = False
) -> Predictions:
    """Fit a calibrator on the labelled rows of a prediction file; returns these rows."""
    with error_context(path):
        rows = Predictions.read(path, normalize=normalize).labelled()
        check_two_classes(rows, "These predictions")
        if rows.meta.get("split") == "train" and not allow_mismatch:
            raise EbmcalError(
                "Predictions for training rows, on which the model is too often right. Pass held-out rows, or "
                "--allow-mismatch."
            )
        calibrator.fit_predictions(rows)
    return rows


def apply_to_file(
    calibrator: Calibrator, source: PathLike, output: PathLike, *, normalize: bool = False
) -> Predictions:
    """Write the calibrated predictions of a file, which needs no labels, with its other columns; returns them.

    For example:

        apply_to_file(load_calibrator("calibrator.json"), "new.csv", "calibrated.csv")
    """
    table = without_error_rows(read_columns(source), source)
    with error_context(source):
        rows = Predictions.from_columns(table, calibrator.label_names_, normalize=normalize, labels_required=False)
        done = calibrator.apply(rows)
    is_table = any(name.startswith(_CLASS_PREFIXES) for name in table.columns)  # else arrays of an NPZ
    if not is_table or Path(output).suffix.lower() == ".npz":
        done.write(output)
    else:
        write_columns(output, FileColumns(_replace_class_columns(table, done), done.label_names, done.meta))
    return done


def _replace_class_columns(table: FileColumns, done: Predictions) -> dict[str, Any]:
    """The columns of the table, with calibrated probabilities at the place of the first class column."""
    probs = {f"prob_{name}": done.probs[:, i] for i, name in enumerate(done.label_names)}
    derived = {"predicted": done.predicted_labels.tolist(), "confidence": done.confidence}
    columns: dict[str, Any] = {}
    for name, column in table.columns.items():
        if name.startswith(_CLASS_PREFIXES):
            columns |= probs
        else:
            columns[name] = derived.get(name, column)
    return columns
