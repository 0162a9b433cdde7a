"""A study: the cells of a benchmark file, run, gathered and tabulated; what is finished is not done again.

    python benchmarks/study.py results/noise             # runs what is missing, then gathers
    python benchmarks/study.py results/noise --gather    # only gathers what the run folders have

`results/NAME/study.yaml` is an ordinary benchmark file (docs/benchmark.md); `shift.yaml`, where there is one, names
texts from elsewhere that the finished models are run on. Beside them go `cells.csv`, a row for each cell, test set and
post-hoc calibrator with every metric; `table.md`, means over seeds; `examples.json`, some noise texts; `predictions/`,
the logits, labels and energies of calibration, test, held-out noise and shifted rows, without texts; and `history/`,
the test figures during training. Everything but the run folders is committed; figures of cells whose run folder is
gone stay.
"""

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import ebmcal
from ebmcal.metrics import ood_detection
from ebmcal.metrics.distances import DISTANCES
from ebmcal.models.loading import load_encoder, load_tokenizer
from ebmcal.models.packing import use_packing
from ebmcal.models.scoring import features
from ebmcal.models.tokens import tokenize_in_memory
from ebmcal.predictions import Predictions
from ebmcal.runfolder import RunFolder
from ebmcal.storage.atomic import read_json, write_text

#: Splits whose predictions are kept beside the figures.
KEPT = ("calibration", "test", "noise")

#: Noise texts of a run that are kept to be looked at, and words that they have at least.
EXAMPLES, EXAMPLE_WORDS = 4, 8

#: Columns of the table: key in `cells.csv`, heading, digits.
SHOWN = {
    "accuracy": ("accuracy", 3), "ece_classwise": ("ECE class-wise", 3), "ece_top_label": ("ECE top-label", 3),
    "nll": ("NLL", 3), "brier": ("Brier", 3), "told_apart": ("told apart, training", 2),
    "told_apart_held_out": ("held-out", 2), "probe": ("untouched encoder", 2), "seconds": ("seconds", 0),
}  # fmt: skip


def run(folder: Path, options: list[str]) -> int:
    """`ebmcal benchmark` on the study's file; cells that failed do not stop the others."""
    command = [sys.executable, "-m", "ebmcal", "benchmark", str(folder / "study.yaml"), *options]
    return subprocess.run(command, check=False).returncode


def predict_shifted(folder: Path) -> None:
    """Run the finished models of a study on the texts that `shift.yaml` names, where that is not done."""
    if not (folder / "shift.yaml").exists():
        return
    spec, shift = (yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")) for name in ("study", "shift"))
    for name, files in shift["files"].items():
        run = RunFolder(Path(spec["output"]) / name)
        for cell in run.cells() if run.metrics.exists() else []:
            place = folder / "predictions" / name / cell.name
            missing = {key: path for key, path in files.items() if not (place / f"shift_{key}.parquet").exists()}
            model = ebmcal.load(run.model(cell)) if missing else None
            for key, path in missing.items():
                texts, labels = sample(Path(path), shift["rows"])
                found = replace(model.predict(texts), labels=labels, texts=None)
                place.mkdir(parents=True, exist_ok=True)
                found.write(place / f"shift_{key}.parquet")


def measure_untouched(folder: Path) -> None:
    """AUROC of telling shifted texts from test texts by their distance from the training texts, before any training."""
    if not (folder / "shift.yaml").exists():
        return
    spec, shift = (yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")) for name in ("study", "shift"))
    encoder, tokenizer = load_encoder(spec["encoder"], ("0", "1")), load_tokenizer(spec["encoder"])
    use_packing(encoder)

    def features_of(texts: list[Any]) -> np.ndarray:
        rows = [text if isinstance(text, tuple) else (text, None) for text in texts]
        return features(encoder, tokenize_in_memory(rows, tokenizer, spec["max_length"]))

    lines = []
    for name, files in shift["files"].items():
        run = RunFolder(Path(spec["output"]) / name)
        if not files or not run.metrics.exists():
            continue
        train, test = (Predictions.read(run.predictions(run.cells()[0], split)) for split in ("train", "test"))
        known, own = features_of(list(train.texts)), features_of(list(test.texts))
        others = {key: features_of(sample(Path(path), shift["rows"])[0]) for key, path in files.items()}
        for score, fit in DISTANCES.items():
            distance = fit(known, train.labels)
            for key, found in others.items():
                auroc = ood_detection(-distance(own), -distance(found))["auroc"]
                lines.append({"run": name, "texts": key, "score": score, "auroc": auroc})
    write_csv(folder / "untouched.csv", lines)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns)
        writer.writeheader()
        writer.writerows(rows)


def sample(path: Path, n_rows: int) -> tuple[list[str], np.ndarray]:
    """Texts of a CSV file and their labels, the numbers of the classes; -1 where there are none."""
    with open(path, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    chosen = [rows[i] for i in sorted(np.random.default_rng(0).permutation(len(rows))[:n_rows])]
    return [row["sentence"] for row in chosen], np.array([int(row.get("label", -1)) for row in chosen])


def gather(folder: Path) -> None:
    """Write `cells.csv`, `table.md` and `predictions/` from the run folders."""
    spec = yaml.safe_load((folder / "study.yaml").read_text(encoding="utf-8"))
    names = [task if isinstance(task, str) else task.get("name", task.get("task")) for task in spec["tasks"]]
    runs = {name: RunFolder(Path(spec["output"]) / name) for name in names}
    found = {name: run for name, run in runs.items() if run.metrics.exists()}
    rows = [row for name, run in found.items() for row in _rows(name, run)]
    if not rows:
        sys.exit(f"No finished run below {spec['output']}.")
    rows += _gone(folder / "cells.csv", rows)
    write_csv(folder / "cells.csv", rows)
    write_text(folder / "table.md", table(rows))
    for name, run in found.items():
        _keep_predictions(run, folder / "predictions" / name)
    _keep_examples(found, folder / "examples.json")
    print(f"{len(rows)} rows of {len(found)} of {len(names)} runs in {folder / 'cells.csv'}")


def _keep_examples(runs: dict[str, RunFolder], path: Path) -> None:
    """The first noise texts of each run that are long enough to show something, as their source wrote them."""
    kept: dict[str, list[dict[str, Any]]] = read_json(path) if path.exists() else {}
    for name, run in runs.items():
        if run.noise_examples.exists():
            long = [e for e in read_json(run.noise_examples) if len(e["noise"].split()) >= EXAMPLE_WORDS]
            some = long[:: max(1, len(long) // EXAMPLES)][:EXAMPLES]  # of every source of a mixture
            kept[name] = [{key: e[key] for key in ("masked", "noise")} for e in some]
    write_text(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def _gone(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a CSV file that belong to none of these cells."""
    there = {(row["run"], row["method"], str(row["seed"])) for row in rows}
    with open(path, newline="", encoding="utf-8") if path.exists() else io.StringIO() as handle:
        return [
            row
            for row in csv.DictReader(handle)
            if row["seed"] and (row["run"], row["method"], row["seed"]) not in there
        ]


def _rows(name: str, run: RunFolder) -> Iterator[dict[str, Any]]:
    document = read_json(run.metrics)
    config = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    for row in document["rows"]:
        if row.get("error") or row["seed"] is None:  # an ensemble of seeds is not a cell
            continue
        cell = f"{row['method']}-seed{row['seed']}"
        training = document["training"].get(cell, {})
        facts = {
            "run": name, "task": document["task"], "test_set": row["test_set"], "method": row["method"],
            "posthoc": row["posthoc"] or "", "seed": row["seed"], "n_rows": row["n_rows"], "encoder": config["encoder"],
            "noise": config["noise"] if training.get("noise_texts_used") else "", "noise_ratio": config["noise_ratio"],
            "energy_weight": config["energy_weight"], "max_train_rows": config["max_train_rows"],
            "steps": training.get("steps"), "learning_rate": config["learning_rate"],
            "batch_size": config["batch_size"], "seconds": training.get("seconds"),
            "told_apart": training.get("told_apart_at_the_end"),
            "told_apart_held_out": _mean((training.get("told_apart_held_out") or {}).values()),
        }  # fmt: skip
        if training.get("noise_texts_used"):
            facts["probe"] = _mean(source["probe"] for source in document["noise"].values())
        ood = {f"ood {k}": v["auroc"] for k, v in document["detection"].get(cell, {}).items() if not row["posthoc"]}
        yield facts | {metric: figure["value"] for metric, figure in row["metrics"].items()} | ood


def _mean(values: Any) -> float | None:
    known = list(values)
    return round(statistics.fmean(known), 4) if known else None


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds ± their standard deviation, a line for each run, method and calibrator."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["run"], row["method"], row["posthoc"]), []).append(row)
    lines = [["run", "method", "seeds", *(title for title, _ in SHOWN.values())]]
    for (run_name, method, posthoc), members in groups.items():
        figures = [_figure([m.get(key) for m in members], digits) for key, (_, digits) in SHOWN.items()]
        lines.append([run_name, f"{method} + {posthoc}" if posthoc else method, str(len(members)), *figures])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _figure(values: list[Any], digits: int) -> str:
    known = [float(v) for v in values if v not in (None, "")]
    if not known:
        return ""
    spread = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{spread}"


def _keep_predictions(run: RunFolder, place: Path) -> None:
    for cell in run.cells():
        history = place.parent.parent / "history" / place.name / f"{cell.name}.jsonl"
        history.parent.mkdir(parents=True, exist_ok=True)
        write_text(history, _evaluations(run.history(cell)))
        for split in (s for s in run.splits(cell) if s in KEPT):
            rows = Predictions.read(run.predictions(cell, split))
            target = place / cell.name / f"{split}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            replace(rows, texts=None, text_pairs=None).write(target)


def _evaluations(path: Path) -> str:
    """The lines of a training history that measure the test split."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if '"eval_accuracy"' in line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gather", action="store_true", help="run nothing")
    parser.add_argument("--only", help="runs to make, with commas")
    arguments = parser.parse_args()
    code = 0 if arguments.gather else run(arguments.folder, ["--only", arguments.only] if arguments.only else [])
    if not arguments.gather:
        predict_shifted(arguments.folder)
        measure_untouched(arguments.folder)
    gather(arguments.folder)
    sys.exit(code)
