"""All calibrators by the name that files and the command line use: made from a name, read from JSON, applied to files.

Calibrating prediction files of any classifier, without a model directory, is what `ebmcal calibrate --apply` does. The
output keeps the user's ids and other columns; the class columns become calibrated `prob_<class>`.
"""

from pathlib import Path
from typing import Any

import yaml

from ebmcal.calibration.base import Calibrator
from ebmcal.calibration.curves import HistogramBinning, Isotonic, ScalingBinning, Spline, VennAbers
from ebmcal.calibration.leakage import check_two_classes
from ebmcal.calibration.scaling import Beta, MatrixScaling, Platt, VectorScaling
from ebmcal.calibration.temperature import EnsembleTemperature, TemperatureGrid, TemperatureScaling
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.predictions.columns import without_error_rows
from ebmcal.predictions.files import FileColumns, read_columns, write_columns
from ebmcal.storage import PathLike, read_json

CALIBRATORS: dict[str, type[Calibrator]] = {
    calibrator.name: calibrator
    for calibrator in (
        TemperatureScaling, ScalingBinning, Platt, VectorScaling, HistogramBinning, Isotonic, Beta,
        EnsembleTemperature, TemperatureGrid, Spline, VennAbers, MatrixScaling,
    )
}  # fmt: skip
_CLASS_PREFIXES = ("prob_", "logit_")


def make_calibrator(spec: str, **settings: Any) -> Calibrator:
    """An unfitted calibrator by its name in `CALIBRATORS`; settings may follow the name, as on the command line.

    >>> make_calibrator("temperature")
    TemperatureScaling()
    >>> make_calibrator("histogram-binning:n_bins=15,binning=width", pseudo_rows=0)
    HistogramBinning(n_bins=15, binning='width', pseudo_rows=0)
    """
    name, _, text = spec.partition(":")
    if name not in CALIBRATORS:
        raise unknown_name("calibrator", name, CALIBRATORS)
    for part in filter(None, text.split(",")):
        setting, equals, value = part.partition("=")
        if not equals:
            raise EbmcalError(f"{spec!r}: expected name:setting=value,setting=value, got no value for {part!r}.")
        settings.setdefault(setting.strip(), yaml.safe_load(value))
    return CALIBRATORS[name]().set_params(**settings)


def load_calibrator(path: PathLike) -> Calibrator:
    """The calibrator that `save` wrote; it predicts the same numbers to the bit.

    For example:

        calibrator.save("calibrator.json")
        load_calibrator("calibrator.json").predict_proba(logits)
    """
    return calibrator_from_json(read_json(path), path)


def calibrator_from_json(value: Any, where: object) -> Calibrator:
    """The calibrator of a JSON value; errors name `where` it was read from."""
    if not isinstance(value, dict) or "calibrator" not in value:
        raise EbmcalError(f"{where} does not contain a calibrator. Write one with save() or `ebmcal calibrate`.")
    name = str(value["calibrator"])
    if name not in CALIBRATORS:
        raise unknown_name(f"calibrator in {where}:", name, CALIBRATORS)
    try:
        return CALIBRATORS[name].from_json(value)
    except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EbmcalError(
            f"The calibrator in {where} is damaged: {reason}. Fit it again (ebmcal calibrate)."
        ) from error


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
        return done
    probs = {f"prob_{name}": done.probs[:, i] for i, name in enumerate(done.label_names)}
    derived = {"predicted": done.predicted_labels.tolist(), "confidence": done.confidence}
    columns: dict[str, Any] = {}
    for name, column in table.columns.items():  # the probabilities at the place of the first class column
        columns |= probs if name.startswith(_CLASS_PREFIXES) else {name: derived.get(name, column)}
    write_columns(output, FileColumns(columns, done.label_names, done.meta))
    return done
