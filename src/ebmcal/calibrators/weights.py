"""The weights of a model folder: which files hold them, what stands for them, what they were divided by. No torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import inside, read_json
from ebmcal.storage.checksums import checksum, fingerprint
from ebmcal.storage.sealing import SEAL

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

#: In the header of a file of weights: the temperature that the last layer was divided by.
RECORD = "ebmcal_folded_temperature"


def weight_files(model_dir: str | Path) -> list[Path]:
    """The files of a model folder that hold its weights."""
    folder = Path(model_dir)
    if (folder / INDEX).exists():
        try:
            names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
        except (KeyError, TypeError, AttributeError) as error:
            raise EbmcalError(f"{folder / INDEX} lists no weights. Save the model again.") from error
        return [inside(folder, str(name)) for name in names]
    return [folder / WEIGHTS] if (folder / WEIGHTS).exists() else []


def model_fingerprint(model_dir: Path) -> str:
    """What stands for the weights of a model folder: their checksums, as sealed where the folder is."""
    sums = read_json(model_dir / SEAL) if (model_dir / SEAL).exists() else {}
    files = [*weight_files(model_dir), *model_dir.glob("energy_head.safetensors"), *model_dir.glob("*.bin")]
    return fingerprint({path.name: sums.get(path.name) or checksum(path) for path in sorted(set(files))})


def folded_temperature(model_dir: str | Path) -> float | None:
    """The temperature that `fold_temperature` divided the last layer by, or None."""
    for path in weight_files(model_dir):
        record = read_header(path).get("__metadata__", {}).get(RECORD)
        if record is not None:
            return _positive(record, path)
    return None


def _positive(record: str, path: Path) -> float:
    try:
        if 0 < float(record) < np.inf:
            return float(record)
    except ValueError:
        pass
    raise EbmcalError(f"{path} is damaged: its {RECORD} is {record!r}, which no temperature is. Save the model again.")


def read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file, which must be whole."""
    try:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(min(length, path.stat().st_size)))
        n_bytes = max((e["data_offsets"][1] for name, e in header.items() if name != "__metadata__"), default=0)
        if path.stat().st_size != 8 + length + n_bytes:
            raise ValueError(f"it should be {8 + length + n_bytes} bytes long")
        return header
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise EbmcalError(f"{path} is not a whole safetensors file ({error}). Copy or save the model again.") from error
