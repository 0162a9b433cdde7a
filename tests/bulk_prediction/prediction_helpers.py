"""Tiny three-class models and readers of outputs for the tests of prediction."""

import csv
import json

import numpy as np

import ebmcal
from tiny_models import SENTENCES, save_encoder

NAMES = ("bad", "fair", "good")
TEXTS = SENTENCES[:50]
N_ROWS = len(TEXTS)


def save_model(folder, **changes):
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    return save_encoder(folder, **{"hidden_dropout_prob": 0.2} | names | changes)


def fitted_temperature(seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(200, 3))
    return ebmcal.TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))


def read(path):
    """The rows of an output as dictionaries."""
    import pyarrow.parquet as pq

    if path.suffix == ".csv":
        with open(path, newline="") as handle:
            return list(csv.DictReader(handle))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return pq.read_table(path).to_pylist()


def working_directories(directory):
    return [path for path in directory.iterdir() if path.name.endswith(".ebmcal")]


def fit_rule(folder):
    """Fit and store an abstention rule: the less confident half of the labels is random."""
    model = ebmcal.load(folder)
    found, rng = model.predict(SENTENCES), np.random.default_rng(0)
    is_random = found.confidence < np.median(found.confidence)
    labels = [NAMES[rng.integers(3) if r else y] for r, y in zip(is_random, found.predicted, strict=True)]
    training = [f"{text} again" for text in SENTENCES[::2]]
    fitted = model.fit_abstention(
        (SENTENCES, labels), max_error=0.2, coverage=0.9, ood=0.1, ood_score="knn", training=training
    )
    fitted.save(folder)
    return folder
