"""Your own texts: train a plain classifier and one with an energy, compare them, calibrate one and use it."""

import csv
import random
import tempfile
from pathlib import Path

import ebmcal
from ebmcal.data.builtin import reviews_file

with open(reviews_file(), encoding="utf-8", newline="") as file:
    rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
random.Random(0).shuffle(rows)
texts, labels = [row["text"] for row in rows], ["good" if row["label"] == "1" else "bad" for row in rows]

with tempfile.TemporaryDirectory() as folder:
    run = ebmcal.run(
        train=(texts[:300], labels[:300]),  # or a file, a data frame, a datasets.Dataset
        calibration=(texts[300:420], labels[300:420]),  # without it and `test`, parts of the training texts
        test=(texts[420:540], labels[420:540]),
        methods=["baseline", "hidden"],
        posthoc=["temperature"],
        encoder="minilm",
        max_length=64,
        epochs=2,
        eval_steps=1000,  # no curves
        output=Path(folder) / "films",
    )
    print(run.table(), *run.advice, sep="\n")
    model = run.model("hidden").calibrate(run.predictions("hidden", "calibration"))
    model.save(Path(folder) / "model")
    p = ebmcal.load(Path(folder) / "model").predict(["a joy from start to end", "dull and far too long"])
    print(p.labels_, p.probs.round(2), p.energies.round(2))
