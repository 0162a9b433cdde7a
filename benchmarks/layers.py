"""Which layer of a finetuned encoder knows texts from elsewhere: distances to the training texts, layer by layer.

    python benchmarks/layers.py results/study --rows 200

For each model of a study whose run folder is there, and each file of its `shift.yaml`: AUROC of telling those texts
from test texts by the distance of mean hidden states, of the embeddings (0) and behind every layer. Rows are added to
`layers.csv` beside the study; cells that are in it are not measured again.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import AutoModel, AutoTokenizer

from ebmcal.metrics import ood_detection
from ebmcal.metrics.distances import DISTANCES
from ebmcal.models.loading import quiet
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder
from study import sample, write_csv

BATCH = 32


@torch.no_grad()
def states(encoder: Any, tokenizer: Any, texts: list[str], max_length: int) -> np.ndarray:
    """Mean hidden states [layers, n, H]."""
    found = []
    for start in range(0, len(texts), BATCH):
        given = texts[start : start + BATCH]
        inputs = tokenizer(given, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        mask = inputs["attention_mask"][..., None]  # [n, L, 1]
        layers = encoder(**inputs, output_hidden_states=True).hidden_states
        found.append(np.stack([((h * mask).sum(1) / mask.sum(1)).numpy() for h in layers]))
    return np.concatenate(found, axis=1)


def measure(
    run: RunFolder, cell: Cell, files: dict[str, str], n_rows: int, max_length: int
) -> Iterator[dict[str, Any]]:
    """Rows of one model: layer, texts, score, AUROC."""
    with quiet():
        encoder = AutoModel.from_pretrained(run.model(cell)).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.model(cell))
    train, test = (Predictions.read(run.predictions(cell, split)) for split in ("train", "test"))
    texts = {"train": list(train.texts), "test": list(test.texts)}
    texts |= {name: sample(Path(path), n_rows)[0] for name, path in files.items()}
    found = {name: states(encoder, tokenizer, given, max_length) for name, given in texts.items()}
    for layer in range(len(found["train"])):
        for score, fit in DISTANCES.items():
            distance = fit(found["train"][layer], train.labels)
            own = distance(found["test"][layer])
            for name in files:
                auroc = ood_detection(-own, -distance(found[name][layer]))["auroc"]
                facts = {"method": cell.method, "seed": cell.seed, "layer": layer, "texts": name, "score": score}
                yield facts | {"auroc": round(auroc, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, help="texts of each file; those of shift.yaml by default")
    parser.add_argument("--methods", default="baseline,hidden-smoothing,hidden-entropy", help="names with commas")
    given = parser.parse_args()
    study, shift = (
        yaml.safe_load((given.folder / f"{n}.yaml").read_text(encoding="utf-8")) for n in ("study", "shift")
    )
    path, rows = given.folder / "layers.csv", []
    if path.exists():
        with open(path, newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
    for name, files in shift["files"].items():
        run = RunFolder(Path(study["output"]) / name)
        for cell in run.cells() if files and run.metrics.exists() else []:
            if cell.method not in given.methods.split(",") or any(
                (row["run"], row["method"], row["seed"]) == (name, cell.method, str(cell.seed)) for row in rows
            ):
                continue
            found = measure(run, cell, files, given.rows or shift["rows"], study["max_length"])
            rows += [{"run": name} | row for row in found]
            write_csv(path, rows)
            print(name, cell.name, flush=True)


if __name__ == "__main__":
    main()
