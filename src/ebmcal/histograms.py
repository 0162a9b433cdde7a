"""Where a model's texts lie by energy: compact histograms of training, test, noise and out-of-domain texts.

A run keeps them in the model folder as `energy_histograms.json`, so that whoever has the folder can place a new text
among them. They are for looking: nothing is decided by them, and the folder is whole without them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.plots.energy import EnergyHistogram, prepare_energy_histogram
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json, write_json

FILE_NAME = "energy_histograms.json"
FORMAT = 1


def keep_histograms(model_dir: str | Path, named: Mapping[str, Predictions]) -> EnergyHistogram | None:
    """Write the histograms of named predictions of a model into its folder; None where none has energies."""
    found = prepare_energy_histogram(named)
    if found is not None:
        shares = {name: values.round(6).tolist() for name, values in found.shares.items()}
        content = {"format": FORMAT, "edges": found.edges.tolist(), "shares": shares}
        if not _holds(Path(model_dir) / FILE_NAME, content):  # what is there already is left alone
            write_json(Path(model_dir) / FILE_NAME, content)
    return found


def _holds(path: Path, content: dict[str, Any]) -> bool:
    try:
        return bool(read_json(path) == content)
    except (EbmcalError, OSError):
        return False


def kept_histograms(model_dir: str | Path) -> EnergyHistogram | None:
    """The histograms of a model folder; of a folder in a run without them, those of the run's predictions."""
    path = Path(model_dir) / FILE_NAME
    return _read(path) if path.exists() else prepare_energy_histogram(_predictions_beside(Path(model_dir)))


def _read(path: Path) -> EnergyHistogram:
    value = read_json(path)
    try:
        edges, shares = (
            np.array(value["edges"], float),
            {str(k): np.array(v, float) for k, v in value["shares"].items()},
        )
        whole = value["format"] == FORMAT and all(len(v) == len(edges) - 1 for v in shares.values())
        if not (whole and all(np.isfinite(v).all() for v in (edges, *shares.values()))):
            raise ValueError("format, lengths or values")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EbmcalError(f"{path} is damaged ({error}). Delete it: the same `ebmcal run` writes it again.") from error
    return EnergyHistogram(edges, shares)


def _predictions_beside(model_dir: Path) -> dict[str, Predictions]:
    """The predictions of the cell that a model folder belongs to; none where it lies elsewhere."""
    cell, run = model_dir.resolve().parent, RunFolder(model_dir.resolve().parent.parent.parent)
    if cell.parent.name != "checkpoints" or "-seed" not in cell.name:
        return {}
    found = Cell.parse(cell.name)
    return {split: Predictions.read(run.predictions(found, split)) for split in run.splits(found)}
