"""A run directory as `ebmcal run` leaves it, from seeded logits: different calibration, hostile names and texts."""

import json
from pathlib import Path

import numpy as np

from ebmcal.evaluation import Evaluation, evaluate_trials
from ebmcal.predictions import Predictions
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_json, write_text

LABELS = ("<script>alert(1)</script>", "costs $5 or $6", 'quo"te & 😀')
HOSTILE_TEXTS = (
    '<script>document.title = "broken"</script>',
    "five $ and six $ and \\alpha_1^2",
    "quotes \" ' ` and & ampersand",
    "emoji 😀, accents é, right to left שלום",
    "long " * 2000,
    "line one\nline two\ttab | pipe",
    "x" * 3000,
)
#: Sharpness of the logits: 1 is calibrated, more is overconfident.
METHODS = {"baseline": 4.0, "hidden": 1.6, "sharp-hidden": 1.8, "scalar": 2.0, "poscal": 3.0}
RECOMMENDED = {"trial": "hidden-seed1", "calibrator": "temperature (dev)"}


def make_predictions(n=400, sharpness=1.0, seed=0, energies=True, labels=True, label_names=LABELS):
    """Logits that are calibrated at sharpness 1; the hostile texts have extreme energies, and wrong labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(label_names))) * 1.5
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    drawn = (rng.random((n, 1)) > probs.cumsum(axis=1)).sum(axis=1).clip(0, len(label_names) - 1)
    energy = -np.log(np.exp(logits * sharpness).sum(axis=1)) + rng.normal(size=n) * 0.3
    hostile = np.arange(min(n, len(HOSTILE_TEXTS)))
    side = np.where(hostile % 2, 1, -1)
    energy[hostile] = np.where(side > 0, energy.max(), energy.min()) + side * np.linspace(0.5, 0.1, len(hostile))
    texts = [
        HOSTILE_TEXTS[i] if i < len(HOSTILE_TEXTS) else f"an ordinary text, number {i} of {seed}" for i in range(n)
    ]
    return Predictions(
        drawn if labels else np.full(n, -1),
        label_names,
        logits=logits * sharpness,
        energies=energy if energies else None,
        texts=texts,
    )


def write_model(folder, names, weights=True):
    """A model directory without a network: label names and, if asked for, a file with one weight."""
    write_json(folder / "config.json", {"id2label": dict(enumerate(names))})
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    if weights:
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return folder


def make_history(method, seed, steps=300):
    """A line per training step and an evaluation every 50; the baseline becomes more and more overconfident."""
    rng, uses_noise = np.random.default_rng([seed, len(method)]), method not in ("baseline", "poscal")
    lines = []
    for step in range(1, steps + 1):
        line = {"step": step, "loss": 1 / step + 0.3, "cross_entropy": 1 / step + 0.2 + 0.02 * rng.random()}
        if uses_noise:
            line |= {"nce_data": 0.5 + 1 / step, "nce_noise": 0.7 + 2 / step, "energy_data": -step / 100}
            line |= {"energy_noise": step / 80, "noise_auroc": 0.5 + 0.2 * step / steps}
        lines.append(line)
        if step % 50 == 0:
            ece = 0.03 + 0.0001 * METHODS[method] * step + 0.005 * rng.random()
            scores = {"eval_accuracy": 0.7 + 0.0003 * step, "eval_ece_classwise": ece, "eval_ece_top_label": 1.3 * ece}
            lines.append({"step": step, **scores})
    return lines


def make_run(root, methods=("baseline", "hidden"), seeds=(1, 2), n=400):
    """Write a finished run; returns its directory."""
    run, found = RunDir(Path(root)), {}
    for trial in (Trial(method, seed) for method in methods for seed in seeds):
        sharpness = METHODS[trial.method]
        found[trial] = {
            "train": make_predictions(n, 2 * sharpness, trial.seed + 30),
            "calibration": make_predictions(n, sharpness, trial.seed + 40),
            "test": make_predictions(n, sharpness, trial.seed),
            "noise": make_predictions(n, 0.5, trial.seed + 10, labels=False),
            "ood_reviews": make_predictions(n, 0.3, trial.seed + 20, labels=False),
        }
        for split, predictions in found[trial].items():
            predictions.write(run.predictions(trial, split))
        lines = make_history(trial.method, trial.seed)
        write_text(run.history(trial), "".join(json.dumps(line) + "\n" for line in lines))
    evaluation = evaluate_trials(found, posthoc=["temperature"], n_resamples=20)
    write_json(run.results, {**evaluation.to_json(), **document(methods, seeds)})
    write_text(run.config, f"task: rte\nmethods: {list(methods)}\nseeds: {list(seeds)}\n# <b>not bold</b>\n")
    write_json(run.noise_examples, noise_examples())
    return run.root


def document(methods, seeds):
    """The parts of results.json next to the evaluation."""
    split = {
        "rows": 1000,
        "unit": "line",
        "file": "mine.csv",
        "label_counts": dict.fromkeys(LABELS, 130),
        "duplicates": {"count": 2, "first": [1, 5]},
    }
    issue = {"text": "a <i>fine</i> text", "given": LABELS[0], "suggested": LABELS[1], "score": 0.97}
    return {
        "task": "rte",
        "task_metric": "accuracy",
        "recommended": RECOMMENDED,
        "advice": {"sentences": ["Use hidden + temperature (dev) <now>."], "n_rows": 400, "rows": "calibration"},
        "label_issues": [issue | {"id": str(i), "score": 0.97 - i / 100} for i in range(14)],
        "audit": {"files": {}, "splits": {"train": split, "test": split}},
        "noise": {"noise": "splice", "reuse": 3.0, "sources": {"splice": {"copies": 0.634, "words": 12.25}}},
        "versions": {"python": "3.11.2"},
        "fingerprints": {"train": "542d06403ad62186"},
        "training": {f"{method}-seed{seed}": {"seconds": 61.5 + seed} for method in methods for seed in seeds},
    }


def noise_examples():
    return [
        {"source": "infill:gpt2", "masked": "so <M>", "hidden": ["<i>fun</i>"], "text": "so <b>odd</b> and $3"},
        {
            "source": "infill:gpt2",
            "masked": "<M> b <SEP> <M>",
            "hidden": ["a", "c"],
            "text": "the b",
            "text_pair": "sea",
        },
    ]


def make_results(values, **columns):
    """Tidy results from {(method, seed, calibrator): {metric: value}}."""
    rows = []
    for (method, seed, calibrator), metrics in values.items():
        for metric, value in metrics.items():
            place = {"model": method if seed is None else f"{method}-seed{seed}", "method": method, "seed": seed}
            known = value is not None
            interval = {"low": value - 0.01 if known else None, "high": value + 0.01 if known else None}
            row = {
                "calibrator": calibrator,
                "test_set": "test",
                "metric": metric,
                "value": value,
                "n_rows": 400,
                "note": "",
            }
            rows.append({**place, **row, **interval, "noise_floor": None, "n_seeds": None, **columns})
    return rows


def make_evaluation(rows, comparisons=(), detection=(), **meta):
    """An `Evaluation` of hand-made rows."""
    frames = {"results": rows, "comparisons": comparisons, "detection": detection}
    return Evaluation.from_records(frames, meta={"task": "rte", "task_metric": "accuracy", **meta})


HIDDEN = {"accuracy": 0.82, "ece_classwise": 0.05, "ece_top_label": 0.06, "nll": 0.4, "brier": 0.2}
BASELINE = {"accuracy": 0.85, "ece_classwise": 0.10, "ece_top_label": 0.12, "nll": 0.5, "brier": 0.2}


def two_methods(comparisons=(), **meta):
    """Two methods with two seeds; calibrators fitted on training rows and on calibration rows; an ensemble."""
    values = {("hidden", 1, None): HIDDEN, ("baseline ensemble", None, None): HIDDEN | {"ece_classwise": 0.02}}
    values["hidden", 2, None] = HIDDEN | {"accuracy": 0.84, "ece_classwise": 0.03}
    for seed in (1, 2):
        values["baseline", seed, "temperature (dev)"] = BASELINE | {"ece_classwise": 0.01}
        values["baseline", seed, "temperature (train)"] = BASELINE
    values["baseline", 1, None] = BASELINE
    values["baseline", 2, None] = BASELINE | {"accuracy": 0.83, "ece_classwise": 0.12}
    return make_evaluation(make_results(values), comparisons, **meta)


def column(table, name):
    """The texts of a column of a table."""
    return [row[table.columns.index(name)].text for row in table.cells()]


def best(table, name):
    """The rows of a table that are marked as best in a column."""
    return [row[0].text for row in table.cells() if row[table.columns.index(name)].is_best]
