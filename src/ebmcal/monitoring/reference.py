"""The reference of a monitored model (labelled predictions for typical texts), and which model wrote a file."""

import warnings
from pathlib import Path

from ebmcal.calibration import LeakageWarning, folded_temperature, read_calibrator
from ebmcal.calibration.leakage import IDENTITY, model_differences
from ebmcal.calibration.persistence import check_model_dir, read_for_model
from ebmcal.errors import EbmcalError
from ebmcal.monitoring.drift import MIN_ROWS
from ebmcal.predictions import Predictions
from ebmcal.run_dir import predictions_of_model
from ebmcal.storage import PathLike


def find_reference(
    folder: Path, given: PathLike | Predictions | None, normalize: bool = False
) -> tuple[Predictions, str]:
    """The given reference, or the predictions of the run for its calibration (else test) split; and its name."""
    check_model_dir(folder)
    if given is None:
        rows, name = _run_predictions(folder)
    else:
        name = "the given reference" if isinstance(given, Predictions) else Path(given).name
        rows = read_for_model(given, folder, normalize=normalize)
        check_same_model(folder, rows, name)
    if rows.meta.get("split") == "train":
        raise EbmcalError(f"{name} holds training rows, on which the model is too accurate. Give held-out rows.")
    n_labelled = int((rows.labels >= 0).sum())
    if n_labelled < MIN_ROWS:
        raise EbmcalError(f"{name} has {n_labelled} labelled rows; expected at least {MIN_ROWS}.")
    return rows, name


def _run_predictions(folder: Path) -> tuple[Predictions, str]:
    path, split = None, ""
    for split in ("calibration", "test"):
        path = predictions_of_model(folder, split)
        if path is not None:
            break
    if path is None:
        raise EbmcalError(
            f"{folder} is not in a run directory with predictions, so there is no reference. Give labelled predictions "
            "of the model for typical texts: --reference FILE"
        )
    rows, temperature = read_for_model(path, folder), folded_temperature(folder)
    if temperature is not None and rows.logits is not None:  # the run predicted before the temperature was folded in
        rows = rows.replace(logits=rows.logits / temperature)
    return rows, f"the {split} split"


def calibrated(rows: Predictions, folder: Path) -> Predictions:
    """Logits with the model's calibrator applied; probabilities are what the model returned and stay as they are."""
    calibrator = read_calibrator(folder)
    if calibrator is None or rows.logits is None or rows.meta.get("calibrator"):
        return rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakageWarning)  # the calibrator may have been fitted on the reference
        return calibrator.apply(rows)


def check_same_model(folder: Path, rows: Predictions, name: str) -> None:
    """Refuse predictions of another model; warn if they do not state their model."""
    if differences := model_differences(rows.meta, folder):
        raise EbmcalError(f"{name} was written by another model than {folder}: {differences}.")
    if not rows.meta.keys() & {"model", "weights", *IDENTITY}:
        warnings.warn(f"{name} does not state which model wrote it, so this was not checked.", stacklevel=2)
