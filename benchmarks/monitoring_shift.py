"""Does the accuracy estimate of `ebmcal monitor` follow the true accuracy, from film sentences to books to kitchens?

    python benchmarks/monitoring_shift.py RUN --data-dir SHIFT --output results/monitoring

RUN is an `ebmcal run --task rotten-tomatoes` with the methods baseline and hidden; SHIFT contains imdb.csv,
amazon_books.csv and amazon_kitchen.csv (sentence, label). Each model gets a temperature in a copy; the log consists of
windows of its test rows and of rows of each file. `monitor` sees no labels; the table adds the true accuracy, and the
estimates that are withheld under drift.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import ebmcal
from ebmcal.run_dir import Trial

FILES = {"IMDB": "imdb.csv", "books": "amazon_books.csv", "kitchen": "amazon_kitchen.csv"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200, help="rows per window")
    options = parser.parse_args()
    run = ebmcal.open_run(options.run)
    found = {trial.name: monitor_shift(run, trial, options.data_dir, options.rows) for trial in run.trials}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "shift.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    table = pd.DataFrame([row for name, document in found.items() for row in table_rows(name, document)])
    title = "# Does the estimated accuracy follow the true accuracy?\n\n"
    (options.output / "README.md").write_text(title + table.to_markdown(index=False, floatfmt=".3f") + "\n")


def monitor_shift(run: ebmcal.Run, trial: Trial, data_dir: Path, n_rows: int) -> dict:
    """The document of `monitor`, with the name and the true accuracy of each window."""
    held_out = run.predictions(trial.method, "calibration", trial.seed)
    model = run.model(trial.method, trial.seed).calibrate(held_out)
    test = model.calibrator.apply(run.predictions(trial.method, "test", trial.seed))
    windows = {"film sentences": test.rows(np.random.default_rng(0).permutation(test.n_rows)[:n_rows])}
    for name, file in FILES.items():
        rows = pd.read_csv(data_dir / file).groupby("label").sample(n_rows // 2, random_state=0)
        windows[name] = model.predict(rows["sentence"].tolist()).replace(labels=rows["label"].to_numpy())
    with tempfile.TemporaryDirectory() as scratch:
        folder, log, reference = (Path(scratch) / name for name in ("model", "log.jsonl", "reference.parquet"))
        model.save(folder)
        held_out.write(reference)
        write_log(log, windows)
        document = ebmcal.monitor(folder, log, reference=reference, window_rows=n_rows).document
    for window, (name, rows) in zip(document["windows"], windows.items(), strict=True):
        window |= {"name": name, "true_accuracy": float((rows.predicted == rows.labels).mean())}
    return document


def write_log(path: Path, windows: dict[str, ebmcal.Predictions]) -> None:
    """The windows one after the other, without labels."""
    parts = []
    for name, rows in windows.items():
        part = pd.DataFrame(rows.probs, columns=[f"prob_{label}" for label in rows.label_names])
        parts.append(part.assign(energy=rows.energies, id=[f"{name} {i}" for i in range(rows.n_rows)]))
    pd.concat(parts).to_json(path, orient="records", lines=True, double_precision=15)


def table_rows(name: str, document: dict) -> list[dict]:
    return [
        {
            "model": name,
            "window": window["name"],
            "true": window["true_accuracy"],
            "estimate": "withheld" if window["accuracy"] is None else f"{window['accuracy']['value']:.3f}",
            "estimate, also if withheld": window["estimate"]["value"],
            "energy": window["energy"],
            "OOD": window["ood"],
            "drift": ", ".join(window["drift"]) or "none",
        }
        for window in document["windows"]
    ]


if __name__ == "__main__":
    main()
