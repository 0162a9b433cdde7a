"""A temperature folded into the last layer of a model: weight and bias divided by T, so that its logits are f(x)/T.

T is also written into the header of the same safetensors file: weights and the record that they were divided are
replaced in one step. Reading the record needs neither torch nor safetensors, folding needs both.
"""

import json
import math
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError, require_extra
from ebmcal.storage import PathLike, atomic_write

#: In the header of a weights file: the temperature that the last layer was divided by.
RECORD = "ebmcal_folded_temperature"
# Names of the layer that computes the logits in transformers, most specific first; "model." or similar may precede.
LAST_LAYERS = ("classifier.out_proj", "classification_head.out_proj", "logits_proj", "classifier", "score")
DTYPES = ("F64", "F32", "F16", "BF16")
_WITHOUT_FOLD = "Without --fold the calibrator is stored next to the model and applied by ebmcal."


def folded_temperature(model_dir: PathLike) -> float | None:
    """The temperature that `fold_temperature` divided the last layer by, or None."""
    for path in _weight_files(model_dir):
        record = read_header(path).get("__metadata__", {}).get(RECORD)
        if record is not None:
            return _as_temperature(record, path)
    return None


def fold_temperature(model_dir: PathLike, temperature: float, n_classes: int) -> list[str]:
    """Divide the last layer by T; returns the names of the tensors that changed."""
    earlier = folded_temperature(model_dir)
    if earlier is not None:
        raise EbmcalError(
            f"A temperature of {earlier:.4g} is already folded into {model_dir}. Folding again would divide twice: "
            "start from the original checkpoint."
        )
    path = _file_with_last_layer(model_dir)
    header = read_header(path)
    names = _last_layer_tensors(header, n_classes, path)
    require_extra("train", "torch", "safetensors")
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    for name in names:  # in float64, rounded to nearest
        tensors[name] = (tensors[name].double() / temperature).to(tensors[name].dtype)
    metadata = {"format": "pt", **header.get("__metadata__", {}), RECORD: repr(float(temperature))}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
    return names


def read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file, which must be complete."""
    try:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(min(length, path.stat().st_size)))
        n_bytes = max((e["data_offsets"][1] for name, e in header.items() if name != "__metadata__"), default=0)
        if path.stat().st_size != 8 + length + n_bytes:
            raise ValueError(f"expected {8 + length + n_bytes} bytes")
        return header
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise EbmcalError(
            f"{path} is not a complete safetensors file ({error}). Copy or save the model again."
        ) from error


def _weight_files(model_dir: PathLike) -> list[Path]:
    return sorted(path for path in Path(model_dir).glob("*.safetensors") if path.name != "energy_head.safetensors")


def _as_temperature(record: Any, path: Path) -> float:
    try:
        if 0 < float(record) < math.inf:
            return float(record)
    except (TypeError, ValueError):
        pass
    raise EbmcalError(f"{path} is damaged: {RECORD} is {record!r}, not a temperature. Save the model again.")


def _file_with_last_layer(model_dir: PathLike) -> Path:
    paths = _weight_files(model_dir)
    if not paths:
        raise EbmcalError(
            f"{model_dir} has no model.safetensors. Save the model with save_pretrained(directory). {_WITHOUT_FOLD}"
        )
    for path in paths:
        if _find_last_layer(read_header(path)):
            return path
    names = ", ".join(f"{name}.weight" for name in LAST_LAYERS)
    raise EbmcalError(f"No last layer found in {model_dir}: no tensor is called {names}. {_WITHOUT_FOLD}")


def _find_last_layer(header: dict[str, Any]) -> str | None:
    """The full name of the last layer, without `.weight`."""
    for layer in LAST_LAYERS:
        for name in header:
            if name == f"{layer}.weight" or name.endswith(f".{layer}.weight"):
                return name.removesuffix(".weight")
    return None


def _last_layer_tensors(header: dict[str, Any], n_classes: int, path: Path) -> list[str]:
    """The tensors to divide; an error unless they have one output per class and a supported dtype."""
    layer = _find_last_layer(header)
    names = [name for name in (f"{layer}.weight", f"{layer}.bias") if name in header]
    for name in names:
        shape, dtype = header[name]["shape"], header[name]["dtype"]
        if shape[0] != n_classes:
            raise EbmcalError(
                f"{name} in {path} has shape {shape}, but the calibrator was fitted on {n_classes} classes. "
                "Fit it on predictions of this model."
            )
        if dtype not in DTYPES:
            raise EbmcalError(f"{name} in {path} is {dtype}; only {', '.join(DTYPES)} can be folded. {_WITHOUT_FOLD}")
    return names
