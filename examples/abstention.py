"""Abstention: answer only where the model is sure enough, with a threshold that keeps the risk below 10%.

The threshold is chosen on held-out rows, and judged on others.
"""

import csv
import random

import numpy as np

import ebmcal
from ebmcal.data.builtin import reviews_file
from ebmcal.metrics import risk_coverage

RISK = 0.10

with open(reviews_file(), encoding="utf-8", newline="") as file:
    rows = [(row["text"], row["label"]) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
random.Random(0).shuffle(rows)
texts, labels = map(list, zip(*rows[:1000], strict=True))
train, held_out, test = ((texts[part], labels[part]) for part in (slice(400), slice(400, 700), slice(700, 1000)))

model = ebmcal.train(
    train=train, calibration=held_out, test=test, methods=["baseline"], encoder="minilm", max_length=64, epochs=3,
    learning_rate=2e-4, eval_steps=1000,
).model()  # fmt: skip
known = model.predict(held_out)
curve = risk_coverage(known.labels, probs=known.probs)
threshold = curve.thresholds[np.flatnonzero(curve.risk <= RISK).max(initial=0)]
print(f"Held-out texts: answering from a confidence of {threshold:.3f} on keeps the risk below {RISK:.0%}.")

p = model.predict(test)
answered, wrong = p.confidences() >= threshold, p.predicted() != p.labels
print(f"Test texts, all answered: {wrong.mean():.1%} are wrong.")
print(f"Test texts, {answered.mean():.1%} answered: {wrong[answered].mean():.1%} of those are wrong.")
print(f"Left to a person, for example: {p.texts[p.confidences().argmin()]!r}")
