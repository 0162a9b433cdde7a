"""Which score of `ebmcal decide --unusual-by` finds texts from elsewhere, on a trained run.

    python benchmarks/unusual.py runs/films --others books=books.csv --others captions=captions.csv --json out.json

For each model of the run: AUROC of telling other texts from test texts, and the share of other and of test texts that a
rule calls unusual at a false-alarm rate of 5%. With `--encoder`, also of the encoder before its training, which a rule
does not offer: it would cost a second forward pass of every text.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from ebmcal.data import load_texts
from ebmcal.decisions.conformal import kept_scores, p_values
from ebmcal.decisions.unusual import TrainingFeatures
from ebmcal.metrics import ood_detection
from ebmcal.model import load
from ebmcal.models.loading import load_encoder
from ebmcal.models.packing import packs, use_packing
from ebmcal.models.scoring import features, predict
from ebmcal.models.tokens import tokenize_in_memory
from ebmcal.runfolder import RunFolder

FALSE_ALARMS, MOST = 0.05, 2000


def texts_of(predictions, n_rows):
    pairs = predictions.text_pairs or [None] * predictions.n_rows
    rows = list(zip(predictions.texts, pairs, strict=True))
    return [rows[i] for i in np.linspace(0, len(rows) - 1, min(n_rows, len(rows))).astype(int)]


def read_splits(run, cell, others, column, n_rows, label_names, scratch):
    from ebmcal.predictions import Predictions

    kept = {split: Predictions.read(run.predictions(cell, split)) for split in ("train", "calibration", "test")}
    splits = {name: texts_of(rows, MOST if name == "train" else n_rows) for name, rows in kept.items()}
    for name, path in others.items():
        texts = load_texts(Path(path), scratch, column, None, None, label_names).texts()
        splits[name] = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:n_rows]]
    return splits, kept["train"]


def measure(model, splits, labels, untouched):
    """Score → split → values, high = unusual."""
    found, states = {"energy": {}}, {"": {}}
    for name, rows in splits.items():
        table, kept = tokenize_in_memory(rows, model.tokenizer, model.max_length), []
        found["energy"][name] = predict(
            model.classifier, table, labels=np.full(len(rows), -1), label_names=model.label_names, texts=rows, meta={},
            ids=np.arange(len(rows)), distances=lambda features, kept=kept: kept.append(features) or {},
        ).energies  # fmt: skip
        states[""][name] = kept[0]
        if untouched is not None:
            states.setdefault(", untouched encoder", {})[name] = features(untouched, table)
    for which, of_split in states.items():
        training = TrainingFeatures.of(of_split["train"], labels)
        for by in ("knn", "mahalanobis"):
            distance = training.distance(by)
            found[by + which] = {name: distance(values) for name, values in of_split.items()}
    return found


def judged(found, others):
    """Score → texts → AUROC, and the shares called unusual."""
    document = {}
    for score, values in found.items():
        kept = kept_scores(values["calibration"], FALSE_ALARMS)
        shares = {name: float((p_values(values[name], kept) <= FALSE_ALARMS).mean()) for name in ("test", *others)}
        auroc = {name: float(ood_detection(-values["test"], -values[name])["auroc"]) for name in others}
        document[score] = {"auroc": auroc, "unusual": shares}
    return document


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--others", action="append", default=[], metavar="NAME=FILE", help="texts from elsewhere")
    parser.add_argument("--text-column", default="text", help="of these files")
    parser.add_argument("--rows", type=int, default=200, help="texts of each kind")
    parser.add_argument("--cells", help="models of the run, with commas: baseline-seed1; all by default")
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--encoder", help="as it was before the training: minilm")
    parser.add_argument("--scratch", type=Path, default=Path("runs/cache"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    others, run, document = dict(one.split("=", 1) for one in given.others), RunFolder(given.run), {}
    wanted = given.cells.split(",") if given.cells else [cell.name for cell in run.cells()]
    for cell in (cell for cell in run.cells() if cell.name in wanted):
        model = replace(load(run.model(cell)), max_length=given.max_length)
        untouched = load_encoder(given.encoder, model.label_names, False) if given.encoder else None
        if untouched is not None and packs(untouched):
            use_packing(untouched)
        splits, train = read_splits(run, cell, others, given.text_column, given.rows, model.label_names, given.scratch)
        labels = train.labels[np.linspace(0, train.n_rows - 1, min(MOST, train.n_rows)).astype(int)]
        document[cell.name] = judged(measure(model, splits, labels, untouched), others)
        for score, one in document[cell.name].items():
            shown = {name: round(value, 3) for name, value in one["auroc"].items()}
            print(f"{cell.name:20} {score:32} AUROC {shown}  unusual {one['unusual']}")
    if given.json:
        facts = {
            "n_train": train.n_rows,
            "rows": given.rows,
            "max_length": given.max_length,
            "false_alarms": FALSE_ALARMS,
        }
        given.json.write_text(json.dumps(facts | {"models": document}, indent=1) + "\n")


if __name__ == "__main__":
    main()
