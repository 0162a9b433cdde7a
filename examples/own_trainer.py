"""Your own Trainer script, trained jointly with an energy: docs/trainer.md shows the lines that were added."""

import csv
import tempfile

from datasets import Dataset
from sklearn.metrics import accuracy_score, log_loss
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments, set_seed

import ebmcal
from ebmcal.data.builtin import reviews_file
from ebmcal.models.loading import ENCODERS

with open(reviews_file(), encoding="utf-8", newline="") as file:
    rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"][::25]  # 342 sentences
data = Dataset.from_dict({"text": [row["text"] for row in rows], "label": [int(row["label"]) for row in rows]})
checkpoint = ENCODERS["minilm"].path()  # or a name on the hub: what AutoModel takes

set_seed(1)
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)


def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=48)


def compute_metrics(predictions):
    logits, labels = predictions
    exp = 2.718281828 ** (logits - logits.max(axis=1, keepdims=True))
    probs = exp / exp.sum(axis=1, keepdims=True)
    return {"accuracy": accuracy_score(labels, logits.argmax(axis=1)), "log_loss": log_loss(labels, probs)}


splits = data.map(tokenize, batched=True).train_test_split(test_size=0.25, seed=1)
noise = ebmcal.write_noise(splits["train"]["text"], source="splice", count=512).map(tokenize, batched=True)

with tempfile.TemporaryDirectory() as folder:
    trainer = ebmcal.EnergyTrainer(
        model=model,
        args=TrainingArguments(
            folder, num_train_epochs=2, per_device_train_batch_size=16, learning_rate=2e-4, save_strategy="no",
            logging_steps=5, report_to="none", dataloader_pin_memory=False,
        ),
        train_dataset=splits["train"],
        noise_dataset=noise,
        noise_ratio=1,
        eval_dataset=splits["test"],
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )  # fmt: skip
    trainer.train()
    print(trainer.evaluate())
