"""A calibrator kept with a model: beside it as `calibrator.json`, or folded into its last layer.

`calibrate_folder` fits one on held-out predictions and keeps it: what `ebmcal calibrate` does. `attach` puts it beside
the model and `attached` is what everything that loads the model asks for. `attach_folded` divides the last layer's
weight and bias by T instead, so that its logits are f(x)/T and nothing is left to apply.

Folding works on the bytes of `model.safetensors` (8 bytes of header length, a JSON header, the tensors), so it needs
neither torch nor room for the model, and every other tensor stays as it was, to the bit. T is written into the header
of the same file: weights and the record that they were divided are replaced in one step.
"""

import json
import shutil
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibrators.base import Calibrator, logits_in
from ebmcal.calibrators.held_out import require_held_out
from ebmcal.calibrators.registry import calibrator_in, make_calibrator
from ebmcal.calibrators.temperature import TemperatureScaling
from ebmcal.calibrators.weights import RECORD, WEIGHTS, folded_temperature, read_header, weight_files
from ebmcal.errors import EbmcalError, errors_of
from ebmcal.metrics import nll
from ebmcal.predictions import Predictions
from ebmcal.storage.atomic import read_json, write_json, writing
from ebmcal.storage.sealing import SEAL, admit, require_whole, reseal

FILE_NAME = "calibrator.json"
FOLDED_NAME = "calibrator_folded.json"
# Where transformers keeps the layer that makes the logits, most specific first; prefixes such as "model." may precede.
LAST_LAYERS = ("classifier.out_proj", "classification_head.out_proj", "logits_proj", "classifier", "score")
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True)
class KeptCalibrator:
    """A fitted calibrator, where it is kept, and what it did to the negative log-likelihood of its fitting rows.

    For example:

        kept = calibrate_folder("model", "calibration.parquet")
        kept.nll_before, kept.nll_after
    """

    calibrator: Calibrator
    path: Path
    n_rows: int
    nll_before: float
    nll_after: float
    folded: tuple[str, ...] = ()  # the tensors that were divided by the temperature


def calibrate_folder(
    model_dir: str | Path,
    on: Predictions | str | Path,
    calibrator: str | Calibrator = "temperature",
    *,
    fold: bool = False,
    allow_mismatch: bool = False,
    normalize: bool = False,
) -> KeptCalibrator:
    """Fit a calibrator on a model's predictions for labelled rows it was not trained on, and keep it in its folder.

    `calibrator` is one, or a name that settings may follow, as in "scaling-binning:n_bins=15"; `fold` divides the last
    layer by the temperature instead. `allow_mismatch` takes predictions that say they are of the training rows or of
    another model; `normalize` is for probabilities that were rounded. Needs no torch.

        calibrate_folder("model", "calibration.parquet", "temperature")
    """
    unfitted = make_calibrator(calibrator) if isinstance(calibrator, str) else calibrator
    if fold and unfitted.name != "temperature":
        raise EbmcalError(f"--fold divides the last layer by one number: it needs temperature, not {unfitted.name}.")
    rows = held_out_rows(on, model_folder(model_dir), allow_mismatch=allow_mismatch, normalize=normalize)
    if not fold:
        require_same_fold(rows, folded_temperature(model_dir), model_dir)
    fitted = unfitted.fit_predictions(rows)
    folded = tuple(attach_folded(model_dir, fitted)) if fold else ()
    path = Path(model_dir) / FOLDED_NAME if fold else attach(model_dir, fitted)
    calibrated = fitted.predict_proba(logits_in(rows), rows.energies)
    before, after = (nll(rows.labels, probs=p) for p in (rows.probs, calibrated))
    return KeptCalibrator(fitted, path, rows.n_rows, before, after, folded)


def require_same_fold(rows: Predictions, folded: float | None, model: object) -> None:
    """Refuse predictions of a model as it was before a temperature was folded into it, or before another one was."""
    if rows.meta.get("folded_temperature") != folded:
        raise EbmcalError(
            f"The predictions are not of {model} as it is, its weights divided by a temperature of {folded or 1:.4g}: "
            "calibrating on them would apply a temperature twice. Predict again with the model as it is."
        )


def held_out_rows(
    on: Predictions | str | PathLike[str], model_dir: Path, *, allow_mismatch: bool = False, normalize: bool = False
) -> Predictions:
    """The labelled rows, with the model's classes in the model's order; not calibrated already, and held out."""
    rows, where = (on, "on") if isinstance(on, Predictions) else (Predictions.read(on, normalize=normalize), on)
    names = label_names(model_dir)
    if rows.meta.get("calibrator"):
        raise EbmcalError(
            f"{where} is calibrated already; the model's own logits are needed. Predict again without one (--raw)."
        )
    if names is not None:
        if len(names) != rows.n_classes:
            raise EbmcalError(
                f"{where} has {rows.n_classes} classes ({', '.join(rows.label_names)}), but the model in {model_dir} "
                f"has {len(names)} ({', '.join(names)}). Give predictions of this model."
            )
        if isinstance(on, Predictions):
            rows = on.in_order(names)
        else:
            rows = Predictions.read(on, label_names=names, normalize=normalize)
    with errors_of(where):
        rows = rows.labelled()
    require_held_out(rows, model_dir, where, allow_mismatch=allow_mismatch)
    return rows


def label_names(model_dir: Path) -> list[str] | None:
    """The model's class names in order, or None where it has only transformers' stand-ins LABEL_0, LABEL_1, …"""
    config = read_json(model_dir / "config.json")
    try:
        names = config.get("id2label") or {}
        names = [str(names[key]) for key in sorted(names, key=int)]
    except (AttributeError, TypeError, ValueError) as error:
        raise EbmcalError(f"{model_dir / 'config.json'} is not the config of a classifier: {error}.") from error
    return None if not names or names == [f"LABEL_{i}" for i in range(len(names))] else names


def attach(model_dir: str | Path, calibrator: Calibrator) -> Path:
    """Store a fitted calibrator in a model folder, in place of one that is there; returns the file.

    For example:

        attach("model", calibrator)
    """
    path = model_folder(model_dir) / FILE_NAME
    write_json(path, {**calibrator.to_json(), "logits_divided_by": folded_temperature(model_dir)}, checked=True)
    return path


def attached(model_dir: str | Path) -> Calibrator | None:
    """The calibrator to apply to the logits of a model folder, or None.

    One that was fitted before a temperature was folded into the weights does not count: it is for other logits.

        attached("model").predict_proba(logits)
    """
    path = Path(model_dir) / FILE_NAME
    if not path.exists():
        return None
    value = read_json(path)
    calibrator, divided_by = calibrator_in(value, path), value.get("logits_divided_by")
    if not (divided_by is None or (type(divided_by) in (int, float) and divided_by > 0)):
        raise EbmcalError(f"{path} is damaged: logits_divided_by is {divided_by!r}. Fit the calibrator again.")
    return calibrator if divided_by == folded_temperature(model_dir) else None


def attach_folded(model_dir: str | Path, calibrator: Calibrator) -> list[str]:
    """Fold a temperature into the model's last layer; returns the names of the tensors that were divided.

    The calibrator is kept as `calibrator_folded.json`, for the record; one that was attached before is removed.
    """
    if not isinstance(calibrator, TemperatureScaling):
        raise EbmcalError(f"Only temperature can be folded into a model, not {calibrator.name}. Leave out --fold.")
    folder = model_folder(model_dir)
    value = calibrator.to_json()
    names = fold_temperature(folder, calibrator.temperature_, calibrator.n_classes_)
    write_json(folder / FOLDED_NAME, value, checked=True)
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


def fold_temperature(model_dir: str | Path, temperature: float, n_classes: int) -> list[str]:
    """Divide the last layer by T; returns the names of the tensors that changed."""
    earlier = folded_temperature(model_dir)
    if earlier is not None:
        raise EbmcalError(
            f"A temperature of {earlier:.4g} is already folded into {model_dir}. Folding again would divide twice: "
            "start from the checkpoint as it was trained."
        )
    require_whole(Path(model_dir))
    path = _file_with_last_layer(model_dir)
    header = read_header(path)
    names = _last_layer(header, n_classes, path)
    with writing(path) as aside:
        _copy_divided(path, aside, header, names, temperature)
        admit(path, aside)
    if (path.parent / SEAL).exists():
        reseal(path)
    return names


def _file_with_last_layer(model_dir: str | Path) -> Path:
    paths = weight_files(model_dir)
    if not paths:
        raise EbmcalError(
            f"{model_dir} has no {WEIGHTS}. Save the model with model.save_pretrained(folder), which writes one; "
            "or leave out --fold: the calibrator is then stored beside the model."
        )
    for path in paths:
        if _layer_in(read_header(path)):
            return path
    raise EbmcalError(
        f"No last layer was found in {model_dir}: no tensor is called {', '.join(f'{n}.weight' for n in LAST_LAYERS)}. "
        "Leave out --fold: the calibrator is then stored beside the model and applied by ebmcal."
    )


def _layer_in(header: dict[str, Any]) -> str | None:
    """The full name of the last layer, without `.weight`."""
    for layer in LAST_LAYERS:
        for name in header:
            if name == f"{layer}.weight" or name.endswith(f".{layer}.weight"):
                return name.removesuffix(".weight")
    return None


def _last_layer(header: dict[str, Any], n_classes: int, path: Path) -> list[str]:
    """The tensors to divide, checked: as many outputs as classes, and a dtype that can be divided."""
    layer = _layer_in(header)
    names = [name for name in (f"{layer}.weight", f"{layer}.bias") if name in header]
    for name in names:
        shape, dtype = header[name]["shape"], header[name]["dtype"]
        if shape[0] != n_classes:
            raise EbmcalError(
                f"{name} in {path} has shape {shape}, but the calibrator was fitted on {n_classes} classes. "
                "Fit it on predictions of this model."
            )
        if dtype not in DTYPES:
            raise EbmcalError(f"{name} in {path} is {dtype}; only {', '.join(DTYPES)} can be folded. Leave out --fold.")
    return names


def _copy_divided(path: Path, aside: Path, header: dict[str, Any], names: list[str], temperature: float) -> None:
    metadata = {"format": "pt", **header.get("__metadata__", {}), RECORD: repr(float(temperature))}
    text = json.dumps({"__metadata__": metadata, **{k: v for k, v in header.items() if k != "__metadata__"}}).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned to 8 bytes
    with path.open("rb") as source, aside.open("wb") as target:
        old_start, new_start = 8 + int.from_bytes(source.read(8), "little"), 8 + len(text)
        source.seek(old_start)
        target.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(source, target, 1 << 22)
        for name in names:
            begin, end = header[name]["data_offsets"]
            source.seek(old_start + begin)
            target.seek(new_start + begin)
            target.write(_divided(source.read(end - begin), header[name]["dtype"], temperature))


def _divided(raw: bytes, dtype: str, temperature: float) -> bytes:
    """The tensor's bytes with every number divided in float64 and rounded to nearest."""
    values = np.frombuffer(raw, dtype=DTYPES[dtype])
    if dtype == "BF16":
        return _to_bfloat16((values.astype(np.uint32) << 16).view(np.float32) / temperature)
    return (values.astype(np.float64) / temperature).astype(DTYPES[dtype]).tobytes()


def _to_bfloat16(values: np.ndarray) -> bytes:
    """Round to nearest even: bfloat16 is the upper half of a float32."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
