"""Abstention: answer only where the model is sure enough, with a threshold that keeps the risk below 10%.

The threshold is chosen on held-out rows, and judged on others.
"""

import numpy as np

import ebmcal
from ebmcal.metrics import risk_coverage

RISK = 0.10

run = ebmcal.run(
    task="rotten-tomatoes", encoder="minilm", methods=["baseline"], posthoc=["temperature"], max_train_rows=400,
    max_eval_rows=400, max_length=64, epochs=2,
)  # fmt: skip
held_out, test = run.predictions("baseline", "calibration"), run.predictions("baseline", "test")
calibrator = ebmcal.TemperatureScaling().fit_predictions(held_out)  # keeps the order of confidences

curve = risk_coverage(held_out.labels, probs=calibrator.apply(held_out).probs)
allowed = np.flatnonzero(curve.risk <= RISK)
threshold = curve.thresholds[allowed[-1]] if len(allowed) else 1.0
print(f"Held-out rows: answering from a confidence of {threshold:.3f} on keeps the risk below {RISK:.0%}.")

calibrated = calibrator.apply(test)
answered = calibrated.confidences() >= threshold
wrong = calibrated.predicted() != test.labels
print(f"Test rows: all answered, {wrong.mean():.1%} are wrong.")
print(f"Test rows: {answered.mean():.1%} answered, of which {wrong[answered].mean():.1%} are wrong.")
unsure = np.flatnonzero(~answered)
if len(unsure):
    print(f"Left to a person, for example: {test.texts[unsure[0]]!r}")
