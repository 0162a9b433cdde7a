"""Abstention: a model that answers only if at most 20% of its answers are wrong, and says which texts are OOD."""

import tempfile
from pathlib import Path

from tiny_model import make_encoder, make_rows

import ebmcal

with tempfile.TemporaryDirectory() as folder:
    texts, labels = make_rows(600)
    run = ebmcal.run(
        (texts[:300], labels[:300]),
        calibration=(texts[300:450], labels[300:450]),
        test=(texts[450:], labels[450:]),
        encoder=str(make_encoder(Path(folder) / "encoder")),
        methods="hidden",
        learning_rate=1e-3,
        epochs=4,
        max_length=32,
        output=Path(folder) / "run",
        settings={"posthoc": ["temperature"], "precision": "fp32"},
    )
    model = run.model("hidden").fit_abstention(run.predictions("hidden", "calibration"), max_error=0.2)
    print(*model.abstention_rule.describe(), sep="\n")
    p = model.predict([*texts[451:453], "a dog jumps over a fence"])
    decisions = model.abstention_rule.apply(p)
    for text, label, answered, reason in zip(
        p.texts, p.predicted_labels, decisions.answered, decisions.reason, strict=True
    ):
        print(f"{text!r}: {label if answered else 'abstain'} {reason}")
    model.save(Path(folder) / "model")  # with calibrator and rule
