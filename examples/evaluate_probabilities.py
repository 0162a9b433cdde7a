"""Probabilities of another classifier: evaluate them, calibrate them, abstain. Needs no torch."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import ebmcal
from ebmcal import Predictions, TemperatureScaling

# A classifier that knows something and is far too sure of it.
rng = np.random.default_rng(0)
odds = rng.normal(0, 2, 3000)
is_spam = rng.random(3000) < 1 / (1 + np.exp(-odds))
spam = 1 / (1 + np.exp(-3 * odds))
table = pd.DataFrame({"label": np.where(is_spam, "spam", "ham"), "prob_ham": 1 - spam, "prob_spam": spam})

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "theirs.csv"
    table.to_csv(path, index_label="id")
    theirs = Predictions.read(path)

held_out, test = theirs.rows(np.arange(1500)), theirs.rows(np.arange(1500, 3000))
calibrator = TemperatureScaling().fit_predictions(held_out)
found = ebmcal.evaluate({"as they are": test, "calibrated": calibrator.apply(test)})
print(found.table(verbose=True), *found.verdicts(), sep="\n")
print(f"temperature {calibrator.temperature_:.2f}")

rule = ebmcal.fit_abstention(calibrator.apply(theirs.rows(np.arange(1500, 2250))), max_error=0.1, ood=0)
new = calibrator.apply(theirs.rows(np.arange(2250, 3000)))
answered = rule.apply(new).answered
errors = new.predicted[answered] != new.labels[answered]
print(
    f"answered {answered.mean():.0%} of the texts; {errors.mean():.1%} of the answers are wrong (at most 10% allowed)"
)
