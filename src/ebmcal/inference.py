"""A model folder on texts, outside of a run: what `ebmcal predict` does, and a few lines of code can do.

The calibrator that `ebmcal calibrate` stored in the folder is applied, and the predictions say so. A temperature that
was folded into the weights is taken out of the energies again, so that they stay comparable.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from ebmcal.calibrators import attached
from ebmcal.calibrators.folding import folded_temperature
from ebmcal.classifier import CARD_FILE, EnergyClassifier
from ebmcal.data import load_texts
from ebmcal.energies import ENERGIES
from ebmcal.errors import EbmcalError
from ebmcal.files import read_json
from ebmcal.predict import predict, score
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.tokens import TokenTable, tokenize

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
    return _calibrated(model_dir, _unfolded(model_dir, predictions)) if calibrated else predictions


def energies_of(model_dir: Path, texts: Sequence[Row]) -> np.ndarray:
    """Energies of texts, [n]: low = like the data the model was trained on."""
    with tempfile.TemporaryDirectory() as scratch:
        return score(load(model_dir), _tokens(model_dir, texts, Path(scratch)))[1]


def load(model_dir: Path) -> EnergyClassifier:
    """The model of a folder; a folder of a run's cell is taken as its model."""
    folder = Path(model_dir)
    if not folder.is_dir():
        raise EbmcalError(
            f"{folder} is not a model folder. A run keeps its models in RUN/checkpoints/METHOD-seedN/model."
        )
    return EnergyClassifier.from_pretrained(folder)


def _tokens(model_dir: Path, texts: Sequence[Row], scratch: Path) -> TokenTable:
    card = read_json(Path(model_dir) / CARD_FILE) if (Path(model_dir) / CARD_FILE).exists() else {}
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    return tokenize(texts, tokenizer, card.get("max_length", min(tokenizer.model_max_length, 512)), scratch / "tokens")


def _unfolded(model_dir: Path, predictions: Predictions) -> Predictions:
    temperature = folded_temperature(model_dir)
    if temperature is None or predictions.meta["energy"] == "scalar":
        return predictions
    # hidden and sharp-hidden energies are functions of the logits before the temperature.
    energies = ENERGIES[predictions.meta["energy"]](torch.from_numpy(predictions.logits * temperature)).numpy()
    fields = {name: getattr(predictions, name) for name in predictions.__dataclass_fields__}
    return Predictions(
        **fields | {"energies": energies, "meta": predictions.meta | {"folded_temperature": temperature}}
    )


def _calibrated(model_dir: Path, predictions: Predictions) -> Predictions:
    calibrator = None if "folded_temperature" in predictions.meta else attached(model_dir)
    return calibrator.apply(predictions) if calibrator else predictions
