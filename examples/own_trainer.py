"""Your own Trainer script with an energy: see docs/trainer.md for the lines that differ from a stock script."""

import tempfile
from pathlib import Path

from datasets import Dataset
from tiny_model import make_encoder, make_rows
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import ebmcal
from ebmcal import EnergyConfig, EnergyTrainer

with tempfile.TemporaryDirectory() as folder:
    checkpoint = make_encoder(Path(folder) / "encoder")  # or a name on the hub
    texts, labels = make_rows(200)
    data = Dataset.from_dict({"text": texts, "label": [int(label == "good") for label in labels]})
    splits = data.train_test_split(test_size=0.25, seed=1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    trainer = EnergyTrainer(
        AutoModelForSequenceClassification.from_pretrained(checkpoint),
        EnergyConfig(
            str(Path(folder) / "out"), num_train_epochs=15, per_device_train_batch_size=16, learning_rate=2e-3,
            save_strategy="no", logging_steps=50, report_to="none", use_cpu=True, disable_tqdm=True, max_length=32,
        ),
        train_dataset=splits["train"],
        eval_dataset=splits["test"],
        processing_class=tokenizer,
        compute_metrics=ebmcal.metrics.compute_metrics,
    )  # fmt: skip
    trainer.train()
    print({name: round(value, 3) for name, value in trainer.evaluate().items()})
    trainer.save_model(str(Path(folder) / "model"))
    print(ebmcal.load(Path(folder) / "model").predict(["the film is great"]).probs)
