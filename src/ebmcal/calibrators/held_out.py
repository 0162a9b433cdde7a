"""Whether predictions are fit to calibrate a model on: of this model, of rows it was not trained on, of several labels.

Files of predictions say in their metadata where they come from, and model folders in `ebmcal.json` what they are; what
neither says is not asked for.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibrators.weights import folded_temperature, model_fingerprint
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.runfolder import CARD_FILE
from ebmcal.storage.atomic import read_json

#: What tells models apart, in the card of a folder and in the metadata of predictions.
IDENTITY = ("task", "method", "seed")


def require_held_out(rows: Predictions, model_dir: Path, where: object, *, allow_mismatch: bool = False) -> None:
    """Refuse rows that all have one label and, unless a mismatch is allowed, training rows and another model's.

    >>> rows = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]], meta={"split": "train"})
    >>> require_held_out(rows, Path("model"), "train.parquet", allow_mismatch=True)  # else an error
    """
    require_two_classes(rows, where)
    if allow_mismatch:
        return
    way_out = "give the calibration split's (calibrate takes others with --allow-mismatch, allow_mismatch=True)."
    if rows.meta.get("split") == "train":
        raise EbmcalError(
            f"{where} holds predictions for the training rows, on which a model is right too often: {way_out}"
        )
    if differing := other_model(rows.meta, model_dir):
        raise EbmcalError(f"{where} holds predictions of another model: {differing}. Predict with this one: {way_out}")


def require_two_classes(rows: Predictions, where: object) -> None:
    """Refuse rows that all have one label: a calibrator has nothing to learn from them.

    >>> require_two_classes(Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]]), "dev.parquet")
    """
    seen = np.unique(rows.labels[rows.labels >= 0])
    if len(seen) < 2:
        names = ", ".join(rows.label_names[label] for label in seen) or "none"
        raise EbmcalError(
            f"{where}: the labels are all of one class ({names}), and what is learned from them would send every text "
            "there. Give rows of at least two classes."
        )


def other_model(meta: dict[str, Any], model_dir: Path) -> str | None:
    """What predictions say of their model that is not so of this one; "" where all agrees, None where nothing is said.

    Weights that differ because a temperature was folded in since do not count here: whoever minds says it better.
    """
    if meta.get("ensemble"):
        return "they are an average, of several models or of passes with dropout"
    card, other = _card(model_dir), Path(str(meta["model"])) if meta.get("model") else None
    said = meta if other is None else _card(other) | meta
    both = [name for name in IDENTITY if name in said and name in card]
    found = [f"{name} {said[name]}, not {card[name]}" for name in both if said[name] != card[name]]
    if meta.get("weights") and meta.get("folded_temperature") == folded_temperature(model_dir):
        both.append("weights")
        found += ["its weights are others"] if meta["weights"] != model_fingerprint(model_dir) else []
    return ", ".join(found) if both else None


def _card(folder: Path) -> dict[str, Any]:
    card = read_json(folder / CARD_FILE) if (folder / CARD_FILE).is_file() else {}
    return card if isinstance(card, dict) else {}
