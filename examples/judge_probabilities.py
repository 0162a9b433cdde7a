"""Somebody else's probabilities: how well calibrated they are, with intervals, and whether a temperature mends them.

Needs no torch: any classifier will do that writes a label and a probability for each class.
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

from ebmcal import Predictions, TemperatureScaling, summarize

rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 2000)
probs = 1 / (1 + np.exp(-6 * (labels - 0.5 + rng.normal(size=2000))))  # sees something, and is far too sure of it

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "theirs.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", "prob_ham", "prob_spam"])
        writer.writerows((i, ("ham", "spam")[y], 1 - p, p) for i, (y, p) in enumerate(zip(labels, probs, strict=True)))
    theirs = Predictions.read(path)

held_out, test = theirs.rows(np.arange(1000)), theirs.rows(np.arange(1000, 2000))
calibrator = TemperatureScaling().fit_predictions(held_out)
for name, predictions in {"as they came": test, "with a temperature": calibrator.apply(test)}.items():
    figures = summarize(predictions)
    for key in ("accuracy", "ece_top_label", "nll"):
        print(f"{name}: {key} {figures[key].value:.3f}, between {figures[key].low:.3f} and {figures[key].high:.3f}")
print(f"T = {calibrator.temperature_:.2f}")
