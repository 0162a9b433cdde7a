"""Own data: train a baseline and an energy-based model, compare them, use the recommended one."""

import tempfile
from pathlib import Path

from tiny_model import make_encoder, make_rows

import ebmcal

with tempfile.TemporaryDirectory() as folder:
    run = ebmcal.run(
        make_rows(200),  # or a file, a data frame, a datasets.Dataset
        encoder=str(make_encoder(Path(folder) / "encoder")),  # leave it out to use MiniLM
        learning_rate=1e-3,
        epochs=3,
        folds=3,
        max_length=32,
        output=Path(folder) / "run",
        settings={"posthoc": ["temperature"], "precision": "fp32"},
    )
    print(run.table(), *run.advice, sep="\n")
    print(run.label_issues.head())
    model = run.recommended
    model.save(Path(folder) / "model")
    p = ebmcal.load(Path(folder) / "model").predict(["the film is great", "the meal is awful"])
    print(p.predicted_labels, p.probs.round(2), p.energies.round(2))
