"""Which score of `ebmcal abstain --ood-score` detects texts from elsewhere, on the models of a run.

    python benchmarks/ood_rule.py runs/films --others books=books.csv --others captions=captions.csv --json out.json

For each model: AUROC, by p-values, of separating other texts from test texts, and the share of other and of test texts
that a rule flags as OOD at a false-positive rate of 5%. Training, calibration and test texts are those of the run.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import ebmcal
from ebmcal.data import as_dataset
from ebmcal.metrics import ood_detection
from ebmcal.predictions import Predictions
from ebmcal.run_dir import RunDir
from ebmcal.selective.ood import COMBINED, DISTANCES, MAX_TEXTS, TrainingFeatures, fit_distance, p_values, rank_texts

OOD_RATE = 0.05


def spread(rows: Predictions, most: int) -> Predictions:
    """At most this many rows, evenly spaced."""
    return rows.rows(np.linspace(0, rows.n_rows - 1, min(most, rows.n_rows)).astype(int))


def texts_of(rows: Predictions) -> list:
    return rows.texts if rows.text_pairs is None else list(zip(rows.texts, rows.text_pairs, strict=True))


def other_texts(path: str, column: str, n_rows: int) -> list:
    texts = list(as_dataset(path, text_column=column)["text"])
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:n_rows]]


def score(model: ebmcal.Model, texts: dict[str, list], labels: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """OOD score → texts → values [k, n], high = OOD."""
    outputs = {name: model.predictor(rows, features=True) for name, rows in texts.items()}
    found = {"energy": {name: output.energies for name, output in outputs.items()}}
    found["max_prob"] = {name: 1 - model.finish(output).confidence for name, output in outputs.items()}
    training = TrainingFeatures.of(outputs["train"].features, labels)
    for name in DISTANCES:
        distance = fit_distance(name, training.features, training.labels)
        found[name] = {texts_name: distance(output.features) for texts_name, output in outputs.items()}
    found = {name: {key: row[None] for key, row in values.items()} for name, values in found.items()}
    parts = [found[part] for part in COMBINED]
    return found | {"combined": {key: np.concatenate([part[key] for part in parts]) for key in texts}}


def summarize(values: dict[str, np.ndarray], others: list[str]) -> dict[str, dict[str, float]]:
    ranking = rank_texts(values["calibration"], OOD_RATE)
    p = {name: p_values(values[name], ranking)[0] for name in ("test", *others)}
    auroc = {name: float(ood_detection(p["test"], p[name])["auroc"]) for name in others}
    return {"auroc": auroc, "flagged": {name: float((of <= OOD_RATE).mean()) for name, of in p.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--others", action="append", default=[], metavar="NAME=FILE", help="texts from elsewhere")
    parser.add_argument("--text-column", default="text", help="text column of these files")
    parser.add_argument("--rows", type=int, default=200, help="texts of each kind")
    parser.add_argument("--trials", help="trials of the run, separated by commas; all by default")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    run, others = RunDir(given.run), dict(one.split("=", 1) for one in given.others)
    wanted = given.trials.split(",") if given.trials else [trial.name for trial in run.trials()]
    document = {}
    for trial in (trial for trial in run.trials() if trial.name in wanted):
        splits = {name: Predictions.read(run.predictions(trial, name)) for name in ("train", "calibration", "test")}
        splits = {name: spread(rows, MAX_TEXTS if name == "train" else given.rows) for name, rows in splits.items()}
        texts = {name: texts_of(rows) for name, rows in splits.items()}
        texts |= {name: other_texts(path, given.text_column, given.rows) for name, path in others.items()}
        scores = score(ebmcal.load(run.model(trial)), texts, splits["train"].labels)
        document[trial.name] = {name: summarize(values, list(others)) for name, values in scores.items()}
        for name, one in document[trial.name].items():
            shown = {key: round(value, 3) for key, value in one["auroc"].items()}
            print(f"{trial.name:20} {name:12} AUROC {shown}  flagged {one['flagged']}")
    if given.json:
        facts = {"rows": given.rows, "ood_rate": OOD_RATE, "models": document}
        given.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
