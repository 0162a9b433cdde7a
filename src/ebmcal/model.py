"""A model folder on texts, outside of a run: what `ebmcal predict` does, and a few lines of code can do.

The calibrator that `ebmcal calibrate` stored in the folder is applied, and the predictions say so. A temperature that
was folded into the weights is taken out of the energies again, so that they stay comparable.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from ebmcal.calibrators import attached
from ebmcal.calibrators.folding import folded_temperature
from ebmcal.data import load_texts
from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import CARD_FILE, EnergyClassifier
from ebmcal.models.loading import check_folder
from ebmcal.models.scoring import predict, score
from ebmcal.models.tokens import TokenTable, tokenize
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.storage.atomic import read_json, require_whole
from ebmcal.training.energies import ENERGIES

Row = tuple[str, str | None]


def predict_file(
    model_dir: Path,
    path: Path,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str | None = None,
    *,
    calibrated: bool = True,
    reporter: Reporter | None = None,
) -> Predictions:
    """`Predictions` for a file of texts; labels are optional."""
    model = load(model_dir)
    names = tuple(model.config.id2label[i] for i in range(model.config.num_labels))
    with tempfile.TemporaryDirectory() as scratch:
        rows = load_texts(path, Path(scratch), text_column, text_pair_column, label_column, names)
        texts = rows.texts()
        with (reporter or Reporter()).stage(f"{Path(model_dir).name} on {Path(path).name}", len(texts)) as advance:
            predictions = predict(
                model, _tokens(model_dir, texts, Path(scratch)), labels=rows.labels, label_names=names, ids=rows.ids,
                texts=texts, meta={"model": str(model_dir), "file": str(path)}, progress=advance,
            )  # fmt: skip
    predictions = _unfolded(model_dir, predictions)
    calibrator = attached(model_dir) if calibrated else None
    return calibrator.apply(predictions) if calibrator else predictions


def energies_of(model_dir: Path, texts: Sequence[Row]) -> np.ndarray:
    """Energies of texts, [n]: low = like the data the model was trained on."""
    with tempfile.TemporaryDirectory() as scratch:
        model = load(model_dir)
        logits, energies = score(model, _tokens(model_dir, texts, Path(scratch)))
        return _energies_before_folding(model_dir, model.energy, logits, energies)


def load(model_dir: Path) -> EnergyClassifier:
    """The model of a folder."""
    folder = Path(model_dir)
    if not folder.is_dir():
        raise EbmcalError(
            f"{folder} is not a model folder. A run keeps its models in RUN/checkpoints/METHOD-seedN/model."
        )
    require_whole(folder)
    check_folder(f"The model folder {folder}", folder)
    return EnergyClassifier.from_pretrained(folder)


def _tokens(model_dir: Path, texts: Sequence[Row], scratch: Path) -> TokenTable:
    card = read_json(Path(model_dir) / CARD_FILE) if (Path(model_dir) / CARD_FILE).exists() else {}
    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    return tokenize(texts, tokenizer, card.get("max_length", min(tokenizer.model_max_length, 512)), scratch / "tokens")


def _unfolded(model_dir: Path, predictions: Predictions) -> Predictions:
    """The same rows with the energies of the model as it was trained; says which temperature is in the logits."""
    temperature = folded_temperature(model_dir)
    if temperature is None:
        return predictions
    kind, logits = predictions.meta["energy"], predictions.logits
    energies = _energies_before_folding(model_dir, kind, logits, predictions.energies)
    return replace(predictions, energies=energies, meta=predictions.meta | {"folded_temperature": temperature})


def _energies_before_folding(model_dir: Path, kind: str, logits: np.ndarray, energies: np.ndarray) -> np.ndarray:
    temperature = folded_temperature(model_dir)
    if temperature is None or kind not in ENERGIES:
        return energies
    # hidden and sharp-hidden energies are functions of the logits before the temperature.
    return ENERGIES[kind](torch.from_numpy(logits * temperature)).numpy()
