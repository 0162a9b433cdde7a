"""A calibrator stored with a model: in `ebmcal.json` (entry "calibrator"), or folded into the last layer.

`save_calibrator` stores one, `read_calibrator` is what everything that loads a model asks for. `read_held_out` reads
predictions that a calibrator or an abstention rule may be fitted on.

Folding divides weight and bias of the last layer by T, so that its logits are f(x)/T. T is also written into the header
of the same safetensors file: weights and the record that they were divided are replaced in one step. Reading the record
needs neither torch nor safetensors, folding needs both.

`apply_to_file` calibrates prediction files of any classifier, without a model directory (`ebmcal calibrate --apply`).
"""

import json
from pathlib import Path
from typing import Any

from ebmcal.calibration.base import Calibrator, calibrator_from_json
from ebmcal.calibration.leakage import check_held_out
from ebmcal.calibration.scaling import TemperatureScaling
from ebmcal.errors import EbmcalError, error_context, require_extra
from ebmcal.predictions import Predictions
from ebmcal.predictions.files import FileColumns, read_columns, write_columns
from ebmcal.run_dir import CARD_FILE, RULE_ARRAYS_FILE, read_card, recommended_model, update_card
from ebmcal.storage import PathLike, atomic_write, fingerprint, read_json

#: In the header of a weights file: the temperature that the last layer was divided by.
RECORD = "ebmcal_folded_temperature"
# Names of the layer that computes the logits in transformers, most specific first; "model." or similar may precede.
LAST_LAYERS = ("classifier.out_proj", "classification_head.out_proj", "logits_proj", "classifier", "score")
_CLASS_PREFIXES = ("prob_", "logit_")
_WITHOUT_FOLD = "Without --fold the calibrator is stored next to the model and applied by ebmcal."


def save_calibrator(model_dir: PathLike, calibrator: Calibrator, *, fold: bool = False) -> tuple[str, ...]:
    """Store a fitted calibrator in a model directory, replacing the one there.

    With `fold`, divide the last layer by the temperature instead; returns the names of the tensors that changed. An
    abstention rule that was fitted with another calibrator is removed.
    """
    folder, value = check_model_dir(model_dir), calibrator.to_json()
    rule = read_card(folder).get("abstention")  # holds only for the calibrator it was fitted with
    is_same = isinstance(rule, dict) and rule.get("calibrator") == calibrator_fingerprint(calibrator)
    if not fold:
        update_card(folder, calibrator=value, abstention=rule if is_same else None)
        if not is_same:
            (folder / RULE_ARRAYS_FILE).unlink(missing_ok=True)
        return ()
    if not isinstance(calibrator, TemperatureScaling):
        raise EbmcalError(f"Only a temperature can be folded into a model (--fold), got {calibrator.name}.")
    temperature = calibrator.temperature_
    # First the removal: a process that dies in between leaves a model without a calibrator, never one applied twice.
    update_card(folder, calibrator=None, abstention=None)
    (folder / RULE_ARRAYS_FILE).unlink(missing_ok=True)
    names = fold_temperature(folder, temperature, calibrator.n_classes_)
    update_card(folder, folded_temperature=temperature)
    return tuple(names)


def calibrator_fingerprint(calibrator: Calibrator | None) -> str | None:
    """The identity of a fitted calibrator, to which an abstention rule is bound."""
    return None if calibrator is None else fingerprint(calibrator.to_json())


def read_calibrator(model_dir: PathLike) -> Calibrator | None:
    """The calibrator to apply to the logits of a model, or None.

    read_calibrator("model").predict_proba(logits)
    """
    value = read_card(model_dir).get("calibrator")
    return None if value is None else calibrator_from_json(value, Path(model_dir) / CARD_FILE)


def check_model_dir(model_dir: PathLike) -> Path:
    """The directory of a model, or of the recommended model of a run; an error unless it contains a model."""
    folder = Path(model_dir)
    if (folder / "config.yaml").is_file():
        folder = recommended_model(folder)
    if not (folder / "config.json").is_file():
        problem = "is not a model directory: it has no config.json" if folder.exists() else "does not exist"
        raise EbmcalError(f"{folder} {problem}. Pass the directory that save_pretrained wrote, or a run directory.")
    return folder


def read_held_out(
    predictions: Predictions | PathLike,
    model_dir: PathLike | None,
    *,
    allow_mismatch: bool = False,
    normalize: bool = False,
) -> Predictions:
    """Labelled, held-out predictions; of a model they are uncalibrated and have its classes in its order.

    `allow_mismatch` accepts predictions for training rows or of another model; `normalize`: of rounded probabilities.
    """
    where = "These predictions" if isinstance(predictions, Predictions) else predictions
    folder = None if model_dir is None else check_model_dir(model_dir)
    rows = read_for_model(predictions, folder, normalize=normalize)
    with error_context(where):
        rows = rows.labelled()
    if folder is not None and rows.meta.get("calibrator"):
        raise EbmcalError(f"{where}: already calibrated. Predict again with --raw (calibrated=False).")
    folded = None if folder is None else folded_temperature(folder)
    if folder is not None and rows.meta.get("folded_temperature") != folded:
        raise EbmcalError(
            f"The last layer of {folder} is divided by a temperature of {folded or 1:.4g}, but the predictions are not "
            "of the model in that state; a temperature would be applied twice. Predict again with this model."
        )
    return check_held_out(rows, folder, where=where, allow_mismatch=allow_mismatch)


def read_for_model(predictions: Predictions | PathLike, folder: Path | None, *, normalize: bool = False) -> Predictions:
    """Predictions with the classes of a model, if there is one, in its order."""
    names = None if folder is None else label_names(folder)
    if isinstance(predictions, Predictions):
        return predictions if names is None else predictions.reorder(names)
    return Predictions.read(predictions, label_names=names, normalize=normalize)


def label_names(model_dir: Path) -> list[str] | None:
    """The model's class names in order, or None if it has only transformers' defaults LABEL_0, LABEL_1, …"""
    config = read_json(model_dir / "config.json")
    try:
        by_index = config.get("id2label") or {}
        names = [str(by_index[key]) for key in sorted(by_index, key=int)]
    except (AttributeError, TypeError, ValueError) as error:
        raise EbmcalError(f"{model_dir / 'config.json'} is not the config of a classifier: {error}.") from error
    return None if not names or names == [f"LABEL_{i}" for i in range(len(names))] else names


def folded_temperature(model_dir: PathLike) -> float | None:
    """The temperature that `fold_temperature` divided the last layer by, or None."""
    for path in _weight_files(model_dir):
        record = _read_header(path).get("__metadata__", {}).get(RECORD)
        if record is not None:
            return float(record)
    return None


def fold_temperature(model_dir: PathLike, temperature: float, n_classes: int) -> list[str]:
    """Divide the last layer by T; returns the names of the tensors that changed."""
    earlier = folded_temperature(model_dir)
    if earlier is not None:
        raise EbmcalError(
            f"A temperature of {earlier:.4g} is already folded into {model_dir}. Folding again would divide twice: "
            "start from the original checkpoint."
        )
    path, names = _find_last_layer(model_dir)
    header = _read_header(path)
    if header[names[0]]["shape"][0] != n_classes:
        raise EbmcalError(
            f"{names[0]} in {path} has shape {header[names[0]]['shape']}, but the calibrator was fitted on {n_classes} "
            "classes. Fit it on predictions of this model."
        )
    require_extra("train", "torch", "safetensors")
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise EbmcalError(f"{path} is not a complete safetensors file ({error}). Save the model again.") from error
    for name in names:  # in float64, rounded to nearest
        tensors[name] = (tensors[name].double() / temperature).to(tensors[name].dtype)
    metadata = {"format": "pt", **header.get("__metadata__", {}), RECORD: repr(float(temperature))}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
    return names


def _weight_files(model_dir: PathLike) -> list[Path]:
    return sorted(path for path in Path(model_dir).glob("*.safetensors") if path.name != "energy_head.safetensors")


def _read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file."""
    try:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            return dict(json.loads(handle.read(min(length, path.stat().st_size))))
    except (OSError, ValueError, TypeError) as error:
        raise EbmcalError(f"{path} is not a safetensors file ({error}). Copy or save the model again.") from error


def _find_last_layer(model_dir: PathLike) -> tuple[Path, list[str]]:
    """The file and the names of the weight and bias that compute the logits."""
    paths = _weight_files(model_dir)
    if not paths:
        raise EbmcalError(
            f"{model_dir} has no model.safetensors. Save the model with save_pretrained(directory). {_WITHOUT_FOLD}"
        )
    for path in paths:
        header = _read_header(path)
        for layer in LAST_LAYERS:
            for name in header:
                if f".{name}".endswith(f".{layer}.weight"):
                    bias = f"{name.removesuffix('weight')}bias"
                    return path, [name, bias] if bias in header else [name]
    names = ", ".join(f"{name}.weight" for name in LAST_LAYERS)
    raise EbmcalError(f"No last layer found in {model_dir}: no tensor is called {names}. {_WITHOUT_FOLD}")


def apply_to_file(
    calibrator: Calibrator, source: PathLike, output: PathLike, *, normalize: bool = False
) -> Predictions:
    """Write the calibrated predictions of a file, which needs no labels, with its other columns; returns them.

    For example:

        apply_to_file(load_calibrator("calibrator.json"), "new.csv", "calibrated.csv")
    """
    table = read_columns(source)
    with error_context(source):
        rows = Predictions.from_columns(table, calibrator.label_names_, normalize=normalize, labels_required=False)
        done = calibrator.apply(rows)
    probs = {f"prob_{name}": done.probs[:, i] for i, name in enumerate(done.label_names)}
    derived = {"predicted": done.predicted_labels.tolist(), "confidence": done.confidence}
    columns: dict[str, Any] = {}
    for name, column in table.columns.items():  # the probabilities at the place of the first class column
        columns |= probs if name.startswith(_CLASS_PREFIXES) else {name: derived.get(name, column)}
    write_columns(output, FileColumns(columns, done.label_names, done.meta))
    return done
