"""The study: run the trials of a YAML file that are missing, one after the other, and gather what they measured.

    python benchmarks/study.py results/study --data DIR       # resumes; one trial at a time
    python benchmarks/study.py results/study --gather         # only collect finished trials

Run directories (with weights) are in `runs/study`; committed are `results.csv` (one row per task, trial, calibrator,
test set and metric), `detection.csv`, `comparisons.csv`, and the test predictions of every trial in half precision.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

import ebmcal
from ebmcal.evaluation import evaluate
from ebmcal.predictions import Predictions
from ebmcal.run_dir import Trial

#: Positive sentiment is class 1 in all sentiment files; entailment labels are names.
SHIFT_LABELS = {"sst2": {"0": "negative", "1": "positive"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--data", type=Path, help="Directory with glue/, intents/ and shift/.")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"))
    parser.add_argument("--only", nargs="*", help="Names of tasks.")
    parser.add_argument("--gather", action="store_true")
    options = parser.parse_args()
    spec = yaml.safe_load((options.study / "study.yaml").read_text())
    if not options.gather:
        for stage in spec["stages"]:
            for method in stage["methods"]:
                for task in stage["tasks"]:
                    if not options.only or task in options.only:
                        run_trial(spec, stage, task, method, options)
                        gather(spec, options)
    gather(spec, options)


def run_trial(spec: dict[str, Any], stage: dict[str, Any], task: str, method: str, options: Any) -> None:
    """One method on one task (all seeds of the stage)."""
    entry = dict(spec["tasks"][task])
    data, shift, ood = options.data / entry.pop("data"), entry.pop("shift", {}), entry.pop("ood", {})
    name = f"{task}-{stage['variant']}" if "variant" in stage else task
    known = {"task", "epochs"}
    settings = spec["settings"] | stage.get("settings", {}) | {k: v for k, v in entry.items() if k not in known}
    seeds = settings.pop("seeds")
    print(f"== {name} {method}", flush=True)
    run = ebmcal.run(
        task=entry["task"], data_dir=data, epochs=entry["epochs"], encoder=stage.get("encoder", spec["encoder"]),
        methods=[method], seeds=stage.get("seeds", seeds), output=options.runs / name,
        ood={key: options.data / path for key, path in ood.items()}, settings=settings, progress=False,
    )  # fmt: skip
    for key, path in shift.items():
        for trial in run.trials:
            predict_shift(run, trial, key, options.data / path, SHIFT_LABELS.get(entry["task"]))


def predict_shift(run: ebmcal.Run, trial: Trial, name: str, path: Path, labels: dict[str, str] | None) -> None:
    """Predictions on labelled texts of another domain, without refitting anything."""
    target = run.directory.trial(trial) / f"shift_{name}.predictions"
    if target.exists():
        return
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    if labels:
        table["label"] = table["label"].map(labels)
    pair = "sentence2" if "sentence2" in table else None
    model = ebmcal.load(run.directory.model(trial))
    p = model.predict(
        table, text_column="sentence1" if pair else "sentence", text_pair_column=pair, label_column="label",
        calibrated=False,
    )  # fmt: skip
    compact(p, trial, f"shift_{name}").write(target.with_suffix(".parquet.tmp.parquet"))
    target.with_suffix(".parquet.tmp.parquet").rename(target)


def compact(p: Predictions, trial: Trial, split: str) -> Predictions:
    """Predictions without texts, with logits in half precision."""
    meta = {"method": trial.method, "seed": trial.seed, "split": split}
    logits = None if p.logits is None else p.logits.astype(np.float16).astype(np.float32)
    return Predictions(
        p.labels, p.label_names, logits=logits, probs=None if logits is not None else p.probs, energies=p.energies,
        ids=p.ids, meta=meta,
    )  # fmt: skip


def gather(spec: dict[str, Any], options: Any) -> None:
    """Collect the results of all finished runs into the study's tables."""
    frames: dict[str, list[pd.DataFrame]] = {"results": [], "detection": [], "comparisons": []}
    for path in sorted(options.runs.glob("*/results.json")):
        run = ebmcal.open_run(path.parent)
        evaluation, config = run.evaluation, run.directory
        about = {"task": path.parent.name, "encoder": run.document["encoder"], "n_train": n_train(run)}
        noise = (run.document.get("noise") or {}).get("noise")
        shifted = [shift_results(run, trial) for trial in run.trials]
        for name, frame in (
            ("results", pd.concat([evaluation.results, *[f for f in shifted if f is not None]])),
            ("detection", evaluation.detection),
            ("comparisons", evaluation.comparisons),
        ):
            frames[name].append(frame.assign(**about, noise=noise))
        seconds = {t: (facts or {}).get("seconds") for t, facts in run.document["training"].items()}
        timing = pd.DataFrame(
            [{"model": t, "metric": "seconds", "value": s, **trial_columns(t)} for t, s in seconds.items()]
        )
        frames["results"].append(timing.assign(**about, noise=noise))
        for trial in run.trials:
            keep_predictions(config, trial, options.study / "predictions" / path.parent.name)
    for name, parts in frames.items():
        if parts:
            table = pd.concat(parts, ignore_index=True)
            table.to_csv(options.study / f"{name}.csv", index=False, float_format="%.6g")


def trial_columns(name: str) -> dict[str, Any]:
    trial = Trial.parse(name)
    return {"method": trial.method, "seed": trial.seed}


def n_train(run: ebmcal.Run) -> int:
    return int(run.document["audit"]["splits"]["train"].get("rows", 0))


def shift_results(run: ebmcal.Run, trial: Trial) -> pd.DataFrame | None:
    paths = sorted(run.directory.trial(trial).glob("shift_*.predictions"))
    if not paths:
        return None
    named = {}
    for path in paths:
        copy = path.with_suffix(".parquet")
        copy.write_bytes(path.read_bytes())
        named[path.stem] = Predictions.read(copy)
        copy.unlink()
    parts = []
    for name, p in named.items():
        frame = evaluate({trial.name: p}, n_resamples=200).results
        parts.append(frame.assign(test_set=name, model=trial.name, **trial_columns(trial.name)))
    return pd.concat(parts)


def keep_predictions(directory: Any, trial: Trial, target: Path) -> None:
    """Copies of the test and OOD predictions, small enough to commit."""
    for split in directory.splits(trial):
        path = target / trial.name / f"{split}.parquet"
        if split.startswith(("test", "ood_")) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            compact(Predictions.read(directory.predictions(trial, split)), trial, split).write(path)


if __name__ == "__main__":
    sys.exit(main())
