"""Does the accuracy that `ebmcal watch` expects follow the true one, from film sentences to books to kitchens?

    python benchmarks/watch_shift.py RUN --data-dir SHIFT --output results/watch

RUN is an `ebmcal run --task rotten-tomatoes` with the methods baseline and hidden; SHIFT holds imdb.csv,
amazon_books.csv and amazon_kitchen.csv (sentence, label). Each model gets a temperature in a copy; a log of windows is
made of its test rows and of rows of each file; `watch` sees no label, the table has what is true.
"""

import argparse
import csv
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import ebmcal
from ebmcal.predictions import Predictions

#: The run that the kept figures are of.
RUN = (
    "ebmcal run --task rotten-tomatoes --max-train-rows 400 --max-eval-rows 500 --encoder minilm "
    "--methods baseline,hidden --max-length 128 --steps 200"
)

FILES = {"IMDB": "imdb.csv", "books": "amazon_books.csv", "kitchen": "amazon_kitchen.csv"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200, help="rows of a window")
    options = parser.parse_args()
    run = ebmcal.open_run(options.run)
    found = {cell.name: follow(run, cell, options) for cell in run.cells}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "shift.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (options.output / "README.md").write_text(page(found, options), encoding="utf-8")


def follow(run: ebmcal.Run, cell: object, options: argparse.Namespace) -> dict:
    """What `watch` expects of each window, and what is true."""
    held_out = run.predictions(cell.method, "calibration", cell.seed)
    model = run.model(cell.method, cell.seed).calibrate(held_out)
    test = model.calibrator.apply(run.predictions(cell.method, "test", cell.seed))
    drawn = np.random.default_rng(0).permutation(test.n_rows)[: options.rows]  # the split has its labels in order
    windows = {"film sentences": test.rows(drawn)}
    for name, file in FILES.items():
        windows[name] = predicted(model, options.data_dir / file, options.rows)
    with tempfile.TemporaryDirectory() as scratch:
        folder = model.save(Path(scratch) / "model")
        held_out.write(Path(scratch) / "reference.parquet")
        write_log(Path(scratch) / "log.jsonl", windows)
        seen = ebmcal.watch(
            folder, Path(scratch) / "log.jsonl", reference=Path(scratch) / "reference.parquet", n_rows=options.rows
        )
    document = seen.document | {"model": cell.name}
    for window, (name, rows) in zip(document["windows"], windows.items(), strict=True):
        window |= {"name": name, "true_accuracy": float((rows.predicted() == rows.labels).mean())}
    return document


def predicted(model: ebmcal.Model, path: Path, n_rows: int) -> Predictions:
    """Rows of a file of texts, as many of either label."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = [(row["sentence"], int(row["label"])) for row in csv.DictReader(file)]
    random.Random(0).shuffle(rows)
    chosen = [row for label in (0, 1) for row in [row for row in rows if row[1] == label][: n_rows // 2]]
    found = model.predict([text for text, _ in chosen])
    return replace(found, labels=np.array([label for _, label in chosen]))


def write_log(path: Path, windows: dict[str, Predictions]) -> None:
    """The windows one after the other, without labels."""
    with open(path, "w", encoding="utf-8") as file:
        for name, rows in windows.items():
            for i in range(rows.n_rows):
                probs = {f"prob_{label}": float(p) for label, p in zip(rows.label_names, rows.probs[i], strict=True)}
                file.write(json.dumps({"id": f"{name} {i}", "energy": float(rows.energies[i]), **probs}) + "\n")


def page(found: dict, options: argparse.Namespace) -> str:
    head = "| model | window | true | expected | by threshold | by energy | energy | unusual | drift |"
    lines = [
        "# Does the accuracy that is expected follow the true one?", "",
        f"`python benchmarks/watch_shift.py RUN --data-dir SHIFT --output results/watch --rows {options.rows}`, on a",
        f"run `{RUN}`.", "",
        head, "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for name, document in found.items():
        known = document["reference"]
        lines.append(f"| {name} | calibration texts | {known['accuracy']:.3f} | | | | {known['energy']:.2f} | | |")
        for w in document["windows"]:
            expected, *others = w["expected"].values()
            interval = f"{expected['value']:.3f} [{expected['low']:.3f}, {expected['high']:.3f}]"
            others = " | ".join(f"{other['value']:.3f}" for other in others)
            lines.append(
                f"| {name} | {w['name']} | {w['true_accuracy']:.3f} | {interval} | {others} | {w['energy']:.2f} | "
                f"{w['unusual']:.3f} | {', '.join(w['drift']) or 'none'} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
