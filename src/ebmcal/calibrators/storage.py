"""A calibrator on disk: one JSON file, on its own or as `calibrator.json` in a model folder.

`attach` puts it beside the model and `attached` is what everything that loads the model asks for.
`attach_folded` divides the model's last layer instead: then there is nothing left to apply.
"""

from pathlib import Path
from typing import Any

from ebmcal.calibrators.contract import FORMAT, Calibrator
from ebmcal.calibrators.folding import fold, folded_temperature
from ebmcal.calibrators.table import CALIBRATORS
from ebmcal.calibrators.temperature import TemperatureScaling
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.storage.atomic import read_json, write_json

FILE_NAME = "calibrator.json"
FOLDED_NAME = "calibrator_folded.json"


def load_calibrator(path: str | Path) -> Calibrator:
    """The calibrator that `save` wrote, predicting the same to the bit."""
    return _calibrator_in(read_json(path), path)


def attach(model_dir: str | Path, calibrator: Calibrator) -> Path:
    """Store a fitted calibrator in a model folder, in place of one that is there; returns the file."""
    path = model_folder(model_dir) / FILE_NAME
    write_json(path, {**calibrator.to_json(), "logits_divided_by": folded_temperature(model_dir)})
    return path


def attached(model_dir: str | Path) -> Calibrator | None:
    """The calibrator to apply to the logits of a model folder, or None.

    One that was fitted before a temperature was folded into the weights does not count: it is for other logits.
    """
    path = Path(model_dir) / FILE_NAME
    if not path.exists():
        return None
    value = read_json(path)
    calibrator = _calibrator_in(value, path)
    return calibrator if value.get("logits_divided_by") == folded_temperature(model_dir) else None


def attach_folded(model_dir: str | Path, calibrator: Calibrator) -> list[str]:
    """Fold a temperature into the model's last layer; returns the names of the tensors that were divided.

    The calibrator is kept as `calibrator_folded.json`, for the record; one that was attached before is removed.
    """
    if not isinstance(calibrator, TemperatureScaling):
        raise EbmcalError(f"Only temperature can be folded into a model, not {calibrator.name}. Leave out --fold.")
    folder = model_folder(model_dir)
    value = calibrator.to_json()
    names = fold(folder, calibrator.temperature_, calibrator.n_classes_)
    write_json(folder / FOLDED_NAME, value)
    (folder / FILE_NAME).unlink(missing_ok=True)
    return names


def model_folder(model_dir: str | Path) -> Path:
    """The folder, checked: it has to hold a model."""
    folder = Path(model_dir)
    if not (folder / "config.json").is_file():
        raise EbmcalError(
            f"{folder} is not a model folder: it has no config.json. Give the folder that save_pretrained wrote, "
            "in a run folder checkpoints/<method>-seed<N>/model."
        )
    return folder


def _calibrator_in(value: Any, path: str | Path) -> Calibrator:
    _require_known(value, path)
    try:
        return CALIBRATORS[value["calibrator"]].from_json(value)
    except (KeyError, TypeError, ValueError) as error:
        raise EbmcalError(f"{path} is damaged ({error!r}). Fit the calibrator again.") from error


def _require_known(value: Any, path: str | Path) -> None:
    if not isinstance(value, dict) or "calibrator" not in value:
        raise EbmcalError(f"{path} does not hold a calibrator. Write one with save() or `ebmcal calibrate`.")
    if value["calibrator"] not in CALIBRATORS:
        raise unknown_name(f"calibrator in {path}:", str(value["calibrator"]), CALIBRATORS)
    if value.get("format") != FORMAT:
        raise EbmcalError(f"{path} has format {value.get('format')}; this version reads {FORMAT}. Fit it again.")
