"""The study: run the trials of a YAML file that are missing, one after the other, and gather what they measured.

    python benchmarks/study.py results/study/study.yaml --data DIR       # resumes; one trial at a time
    python benchmarks/study.py results/study/study.yaml --gather         # only collect finished trials

Run directories (with weights) are in `runs/`. Committed, beside the YAML file, are `results.csv` (one row per task,
trial, calibrator, test set and metric), `detection.csv`, `calibration.csv` (results on the calibration rows, which
settings are chosen by), `curves.csv` (results on test rows during training), and the test predictions of every trial,
with rounded logits. A trial in `results.csv` is not trained again, on this machine or another.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from sklearn.metrics import log_loss, roc_auc_score

import ebmcal
from ebmcal.calibration import TemperatureScaling
from ebmcal.evaluation import evaluate
from ebmcal.metrics import ece_classwise, ece_top_label
from ebmcal.predictions import Predictions
from ebmcal.run_dir import Trial
from ebmcal.storage import atomic_write, locked

#: The committed tables.
TABLES = ("results", "detection", "calibration", "temperatures", "curves")

#: What is kept of the evaluations during training (on at most 1,000 test rows).
CURVES = ("accuracy", "ece_classwise", "ece_top_label", "nll")

#: Kept logits are rounded, coarser the further they are below the largest of their row: files of a tenth of the size.
LOGIT_STEPS = {0: 1 / 64, 3: 1 / 16, 6: 1 / 4, 9: 1}

#: Positive sentiment is class 1 in all sentiment files; entailment labels are names.
SHIFT_LABELS = {"sst2": {"0": "negative", "1": "positive"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="YAML file with tasks and stages.")
    parser.add_argument("--data", type=Path, help="Directory with glue/, intents/ and shift/.")
    parser.add_argument("--runs", type=Path, help="Default: runs/NAME.")
    parser.add_argument("--tasks", nargs="*", help="Only these tasks; another process may run others.")
    parser.add_argument("--methods", nargs="*", help="Only these methods.")
    parser.add_argument("--gather", action="store_true", help="Run nothing, only collect what is finished.")
    options = parser.parse_args()
    options.runs = options.runs or Path("runs") / options.study.parent.name
    spec = yaml.safe_load(options.study.read_text())
    for stage in [] if options.gather else spec["stages"]:
        for method in [m for m in stage["methods"] if not options.methods or m in options.methods]:
            for task in [t for t in stage["tasks"] if not options.tasks or t in options.tasks]:
                if run_trial(spec, stage, task, method, options):
                    gather(options)
    gather(options)


def run_trial(spec: dict[str, Any], stage: dict[str, Any], task: str, method: str, options: Any) -> bool:
    """One method on one task, the seeds of the stage that are not finished; False if all are."""
    entry = dict(spec["tasks"][task])
    data, shift, ood = options.data / entry.pop("data"), entry.pop("shift", {}), entry.pop("ood", {})
    name = f"{task}-{stage['variant']}" if "variant" in stage else task
    source = data_source(entry, data)
    settings = spec["settings"] | stage.get("settings", {}) | entry
    seeds = stage.get("seeds", settings.pop("seeds"))
    wanted = [*(f"ood_{key}.parquet" for key in ood), *(f"shift_{key}.predictions" for key in shift)]
    wanted += ["out_of_fold.parquet"] if settings.get("calibration") == "cross-fit" else []
    seeds = [seed for seed in seeds if not is_finished(options, name, Trial(method, seed), wanted)]
    if not seeds:
        return False
    print(f"== {name} {method}", flush=True)
    encoder = stage.get("encoder", spec["encoder"])
    settings["frozen_probe"] = not has_probe(options, [task, name], encoder)
    run = ebmcal.run(
        **source, encoder=encoder, methods=[method], seeds=seeds,
        output=options.runs / name, ood={key: read_ood(options.data, of) for key, of in ood.items()},
        settings={k: v for k, v in settings.items() if k != "seeds"}, progress=False,
    )  # fmt: skip
    for key, path in shift.items():
        for trial in run.trials:
            labels = SHIFT_LABELS.get(spec["tasks"][task]["task"])
            predict_shift(run, trial, key, options.data / path, labels, spec.get("max_shift_rows"))
    return True


def has_probe(options: Any, names: list[str], encoder: str) -> bool:
    """Whether the frozen probe of a task or of its variant is recorded: it depends on the data and the encoder only."""
    recorded = read_table(options.study.parent / "results.csv")
    rows = recorded[recorded["model"] == "frozen-probe-seed0"]
    return bool((rows["task"].isin(names) & (rows["encoder"] == encoder)).any())


def data_source(entry: dict[str, Any], data: Path) -> dict[str, Any]:
    """Arguments of `ebmcal.run` for a task, or for some classes of CLINC150, drawn at random."""
    task, n_classes = entry.pop("task"), entry.pop("n_classes", None)
    if n_classes is None:
        return {"task": task, "data_dir": data}
    parts = {"train": "train", "calibration": "val", "test": "test"}
    frames = {key: pd.read_csv(data / f"intents/clinc150_{part}.csv") for key, part in parts.items()}
    drawn = np.random.default_rng(0).permutation(sorted(frames["train"]["intent"].unique()))[:n_classes]
    kept = {key: frame[frame["intent"].isin(drawn)] for key, frame in frames.items()}
    return kept | {"text_column": "text", "label_column": "intent"}


def is_finished(options: Any, task: str, trial: Trial, wanted: list[str]) -> bool:
    """Whether the results of a trial are recorded; its run directory, if there is one, must have the wanted files."""
    recorded = read_table(options.study.parent / "results.csv")
    directory = options.runs / task / "trials" / trial.name
    return bool(((recorded["task"] == task) & (recorded["model"] == trial.name)).any()) and (
        not directory.exists() or all((directory / name).exists() for name in wanted)
    )


def read_table(path: Path) -> pd.DataFrame:
    """A recorded table; empty if there is none yet."""
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["task", "model", "encoder"])


def read_ood(data: Path, source: dict[str, Any] | str) -> Any:
    """A file of texts, or the rows of some of its parts."""
    if isinstance(source, str):
        return data / source
    table = pd.read_csv(data / source["file"])
    return {"text": table.loc[table["part"].isin(source["part"]), "text"].tolist()}


def predict_shift(
    run: ebmcal.Run, trial: Trial, name: str, path: Path, labels: dict[str, str] | None, max_rows: int | None
) -> None:
    """Predictions on labelled texts of another domain, without refitting anything; on a sample of them if too many."""
    target = run.directory.trial(trial) / f"shift_{name}.predictions"
    if target.exists():
        return
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table = table.sample(max_rows, random_state=0) if max_rows and max_rows < len(table) else table
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
    """Predictions without texts, with rounded logits."""
    meta = {"method": trial.method, "seed": trial.seed, "split": split}
    logits = None if p.logits is None else rounded(p.logits)
    return Predictions(
        p.labels, p.label_names, logits=logits, probs=None if logits is not None else p.probs, energies=p.energies,
        ids=p.ids, meta=meta,
    )  # fmt: skip


def rounded(logits: np.ndarray) -> np.ndarray:
    """Logits [n, C] in steps of `LOGIT_STEPS`."""
    below = logits.max(axis=1, keepdims=True) - logits
    steps = np.array(list(LOGIT_STEPS.values()))[np.searchsorted(list(LOGIT_STEPS), below, side="right") - 1]
    return (np.round(logits / steps) * steps).astype(np.float32)


def gather(options: Any) -> None:
    """Collect the results of all finished runs into the study's tables; rows of other runs stay."""
    warnings.simplefilter("ignore")  # few rows, and temperatures at their bound, show in the tables
    frames: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    target = options.study.parent
    keep = yaml.safe_load(options.study.read_text()).get("keep_predictions", True)
    for path in sorted(options.runs.glob("*/results.json")):
        run = ebmcal.open_run(path.parent)
        about = {"task": path.parent.name, "encoder": run.document["encoder"], "n_train": n_train(run)}
        about["noise"] = (run.document.get("noise") or {}).get("noise")
        evaluation, trials = run.evaluation, finished_trials(run)
        shifted = [shift_results(run, trial) for trial in trials]
        answered = pd.DataFrame([row for trial in trials for row in answered_results(run, trial)])
        seconds = {t: (facts or {}).get("seconds") for t, facts in run.document["training"].items()}
        timing = [{"model": t, "metric": "seconds", "value": s, **trial_columns(t)} for t, s in seconds.items()]
        found = {
            # Without means over seeds: other seeds may have been trained elsewhere.
            "results": pd.concat([evaluation.results.dropna(subset="seed"), *shifted, answered, pd.DataFrame(timing)]),
            "detection": evaluation.detection,
            "calibration": pd.DataFrame([calibration_results(run, trial) for trial in trials]),
            "curves": pd.DataFrame([row for trial in trials for row in training_curve(run, trial)]),
            "temperatures": pd.DataFrame([row for trial in trials for row in temperature_results(run, trial)]),
        }
        for name, frame in found.items():
            frames[name].append(frame.assign(**about))
        for trial in trials if keep else []:
            keep_predictions(run.directory, trial, target / "predictions" / path.parent.name)
    with locked(target, on_wait=lambda owner: print(f"waiting for {owner}", flush=True)):
        for name, parts in frames.items():
            filled = [part for part in parts if len(part)]
            if filled:
                update_table(target / f"{name}.csv", pd.concat(filled, ignore_index=True))


def finished_trials(run: ebmcal.Run) -> list[Trial]:
    """The trials that are predicted and evaluated."""
    evaluated = set(run.evaluation.results["model"])
    return [trial for trial in run.trials if trial.name in evaluated]


def update_table(path: Path, found: pd.DataFrame) -> None:
    """Replace the rows of these tasks and models, keep the others, ordered by task."""
    key = ["task", "model"]
    known = read_table(path)
    known = known[~known.set_index(key).index.isin(found.set_index(key).index)]
    parts = [part for part in (known, found) if len(part)]
    table = pd.concat(parts, ignore_index=True).sort_values("task", kind="stable")
    with atomic_write(path) as temporary:
        table.to_csv(temporary, index=False, float_format="%.6g")


def calibration_results(run: ebmcal.Run, trial: Trial) -> dict[str, Any]:
    """What settings are chosen by: results on the calibration rows, with a temperature from the other half of them."""
    row: dict[str, Any] = {"model": trial.name, **trial_columns(trial.name)}
    splits = run.directory.splits(trial)
    if "calibration" not in splits:
        return row
    p = run.predictions(trial.method, "calibration", trial.seed)
    classes = np.arange(len(p.label_names))
    folded = np.empty_like(p.probs)
    half = np.arange(len(p)) % 2
    for part in (0, 1):
        fitted = TemperatureScaling().fit(p.logits[half != part], p.labels[half != part])
        folded[half == part] = fitted.predict_proba(p.logits[half == part])
    row |= {
        "n_rows": len(p),
        "accuracy": float((p.predicted == p.labels).mean()),
        "nll": log_loss(p.labels, p.probs, labels=classes),
        "temperature": TemperatureScaling().fit(p.logits, p.labels).temperature_,
        "nll_temperature": log_loss(p.labels, folded, labels=classes),
    }
    for split in splits:
        if split.startswith("ood_"):
            other = run.predictions(trial.method, split, trial.seed)
            is_other = np.r_[np.zeros(len(p)), np.ones(len(other))]
            row[f"auroc_{split}_by_probability"] = roc_auc_score(is_other, -np.r_[p.confidence, other.confidence])
            if p.energies is not None and other.energies is not None:
                row[f"auroc_{split}_by_energy"] = roc_auc_score(is_other, np.r_[p.energies, other.energies])
    return row


def training_curve(run: ebmcal.Run, trial: Trial) -> list[dict[str, Any]]:
    """Results on test rows during training, a row per evaluation."""
    path = run.directory.trial(trial) / "history.jsonl"
    history = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [
        {
            "model": trial.name,
            **trial_columns(trial.name),
            "step": line["step"],
            **{m: line[f"eval_{m}"] for m in CURVES},
        }
        for line in history
        if "eval_accuracy" in line
    ]


def answered_results(run: ebmcal.Run, trial: Trial) -> list[dict[str, Any]]:
    """Error rate among the 90% of test and OOD texts that are answered; answering an OOD text is an error."""
    rows = []
    test = run.predictions(trial.method, "test", trial.seed)
    for split in [s for s in run.directory.splits(trial) if s.startswith("ood_")]:
        other = run.predictions(trial.method, split, trial.seed)
        is_error = np.r_[test.predicted != test.labels, np.ones(len(other), bool)]
        scores = {"probability": np.r_[test.confidence, other.confidence]}
        if test.energies is not None and other.energies is not None:
            scores["energy"] = -np.r_[test.energies, other.energies]
        for name, score in scores.items():
            answered = np.argsort(-score, kind="stable")[: round(0.9 * len(score))]
            row = {"model": trial.name, **trial_columns(trial.name), "test_set": f"test+{split}", "n_rows": len(score)}
            rows.append(row | {"metric": f"error_at_90_coverage_by_{name}", "value": float(is_error[answered].mean())})
    return rows


def temperature_results(run: ebmcal.Run, trial: Trial) -> list[dict[str, Any]]:
    """Of cross-fitted trials: test results with temperatures from all folds, from one fold, and from extra rows."""
    if "out_of_fold" not in run.directory.splits(trial):
        return []
    test, folds = (run.predictions(trial.method, split, trial.seed) for split in ("test", "out_of_fold"))
    sources = {
        "calibration split": run.predictions(trial.method, "calibration", trial.seed),
        "test rows (the best possible)": test,
    }
    if len(folds) == n_train(run):
        sources["all folds"] = folds
        sources["a fifth of the rows of all folds"] = folds.rows(np.arange(len(folds) // 5))
    else:
        sources["one fold"] = folds
    rows = []
    for name, source in {"none": None, **sources}.items():
        fitted = None if source is None else TemperatureScaling().fit(source.logits, source.labels)
        probs = test.probs if fitted is None else fitted.predict_proba(test.logits)
        rows.append(
            {
                "model": trial.name,
                **trial_columns(trial.name),
                "fitted_on": name,
                "n_rows": 0 if source is None else len(source),
                "temperature": 1.0 if fitted is None else fitted.temperature_,
                "accuracy": float((probs.argmax(axis=1) == test.labels).mean()),
                "ece_classwise": ece_classwise(test.labels, probs=probs),
                "ece_top_label": ece_top_label(test.labels, probs=probs),
                "nll": log_loss(test.labels, probs, labels=np.arange(probs.shape[1])),
            }
        )
    return rows


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
    """Copies of the test, OOD and out-of-fold predictions, small enough to commit."""
    for split in directory.splits(trial):
        path = target / trial.name / f"{split}.parquet"
        source = directory.predictions(trial, split)
        is_kept = path.exists() and path.stat().st_mtime >= source.stat().st_mtime
        if split.startswith(("test", "ood_", "out_of_fold")) and not is_kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            compact(Predictions.read(source), trial, split).write(path)


if __name__ == "__main__":
    sys.exit(main())
