"""A run folder as `ebmcal run` would leave it, from seeded logits: different calibration, nasty names and texts.

Used by the tests of tables, plots and report. Its rows of metrics are computed from its predictions.
"""

import json
from pathlib import Path

import numpy as np

from ebmcal import metrics
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import write_json, write_text

LABELS = ("<script>alert(1)</script>", "costs $5 or $6", 'quo"te & 😀')
NASTY_TEXTS = (
    '<script>document.title = "broken"</script>',
    "five $ and six $ and \\alpha_1^2",
    "quotes \" ' ` and & ampersand",
    "emoji 😀, accents é, right to left שלום",
    "long " * 2000,
    "line one\nline two\ttab | pipe",
    "x" * 3000,
)
#: method → (how sharp its logits are made, offset of its energies)
METHODS = {
    "baseline": (4.0, None),
    "hidden": (1.4, 0.0),
    "sharp-hidden": (1.6, 0.5),
    "scalar": (2.0, 0.2),
    "poscal": (3.0, None),
}
METRICS = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")


def make_predictions(
    n: int = 400, sharpness: float = 1.0, seed: int = 0, energies: bool = True, labels: bool = True
) -> Predictions:
    """Logits that are calibrated at sharpness 1 and over-confident above it; the texts begin with the nasty ones."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(LABELS))) * 1.5
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    drawn = (rng.random((n, 1)) > probs.cumsum(axis=1)).sum(axis=1).clip(0, len(LABELS) - 1)
    energy = -np.log(np.exp(logits * sharpness).sum(axis=1)) + rng.normal(size=n) * 0.3
    texts = [NASTY_TEXTS[i] if i < len(NASTY_TEXTS) else f"an ordinary text, number {i}" for i in range(n)]
    if energies:  # the nasty texts stand at both ends, so that the example tables show them
        side = np.where(np.arange(n) % 2, 1, -1)[: len(NASTY_TEXTS)]
        ends = np.where(side > 0, energy.max(), energy.min())
        energy[: len(side)] = ends + side * np.linspace(0.5, 0.1, len(side))
    return Predictions(
        labels=drawn if labels else np.full(n, -1),
        label_names=LABELS,
        logits=logits * sharpness,
        energies=energy if energies else None,
        texts=texts,
    )


def make_history(method: str, seed: int, steps: int = 300) -> list[dict]:
    """A training line each step, an evaluation each 50; over-confidence grows for the baseline."""
    rng, has_energy = np.random.default_rng([seed, len(method)]), METHODS[method][1] is not None
    lines = []
    for step in range(1, steps + 1):
        line = {"step": step, "loss": 1 / step + 0.3, "cross_entropy": 1 / step + 0.2 + 0.02 * rng.random()}
        if has_energy:
            line |= {"data_term": 0.5 + 1 / step, "noise_term": 0.7 + 2 / step, "energy_data": -step / 100}
            line |= {"energy_noise": step / 80, "noise_accuracy": 0.5 + 0.2 * METHODS[method][0] * step / steps}
        lines.append(line)
        if step % 50 == 0:
            growth = 0.0001 * METHODS[method][0]
            ece = 0.03 + growth * step + 0.005 * rng.random()
            scores = {
                "eval_accuracy": 0.7 + 0.0003 * step + 0.01 * rng.random(),
                "eval_ece_classwise": ece,
                "eval_ece_top_label": 1.3 * ece,
            }
            lines.append({"step": step, **scores, "eval_nll": 0.6})
    return lines


def make_run(root: Path, methods=("baseline", "hidden"), seeds=(1, 2), n: int = 400) -> Path:
    """Write a finished run and return its folder."""
    folder = RunFolder(Path(root))
    rows, training = [], {}
    for method in methods:
        for seed in seeds:
            cell = Cell(method, seed)
            rows += _write_cell(folder, cell, n)
            training[cell.name] = {"seconds": 61.5 + seed, "steps": 300, "noise_rounds": 1}
    write_json(folder.metrics, _document(methods, seeds, rows, training))
    write_text(folder.config, "task: rte\nnote: '<b>not bold</b>'\n")
    write_json(folder.noise_examples, _noise_examples())
    return folder.root


def _write_cell(folder: RunFolder, cell: Cell, n: int) -> list[dict]:
    sharpness, offset = METHODS[cell.method]
    has_energy = offset is not None
    test = make_predictions(n, sharpness, cell.seed, has_energy)
    splits = {"test": test}
    if has_energy:
        splits["noise"] = make_predictions(n, 0.5, cell.seed + 10, labels=False)
        splits["ood_reviews"] = make_predictions(n, 0.3, cell.seed + 20, labels=False)
    for split, predictions in splits.items():
        predictions.write(folder.predictions(cell, split))
    lines = make_history(cell.method, cell.seed)
    write_text(folder.history(cell), "".join(json.dumps(line) + "\n" for line in lines))
    cooled = test.with_probs(make_predictions(n, 1.0, cell.seed, has_energy).probabilities())
    return [_row(cell, None, test), _row(cell, "temperature (train)", cooled), _row(cell, "temperature (dev)", cooled)]


def _row(cell: Cell, posthoc: str | None, predictions: Predictions) -> dict:
    figures = {}
    for name in METRICS:
        value = float(getattr(metrics, name)(predictions.labels, probs=predictions.probabilities()))
        figures[name] = {"value": value, "low": value - 0.02, "high": value + 0.02}
    place = {"method": cell.method, "posthoc": posthoc, "seed": cell.seed, "test_set": "test"}
    return {**place, "n_rows": predictions.n_rows, "metrics": figures}


def _document(methods, seeds, rows: list[dict], training: dict) -> dict:
    counts = {"rows": 400, "label_counts": dict.fromkeys(LABELS, 130), "duplicates": {"count": 2, "first_rows": [1, 5]}}
    paired = [
        {"method": m, "against": "baseline", "seed": s, "metric": "ece_classwise", "difference": -0.04}
        | {"low": -0.06, "high": -0.02, "p_value": 0.002}
        for m in methods
        for s in seeds
        if m != "baseline"
    ]
    return {
        "format": 1,
        "task": "rte",
        "task_metric": "accuracy",
        "label_names": list(LABELS),
        "encoder": "minilm",
        "encoder_about": "trained on sentence pairs",
        "noise_lm": "smollm2",
        "versions": {"python": "3.11.2", "numpy": "2.4.6"},
        "seeds": list(seeds),
        "data": {"files": {"train": {"empty_texts": {"count": 0}}}, "splits": {"train": counts, "test": counts}},
        "noise": {"n_samples": 4000, "identical_share": 0.031, "perplexity": 21.7, "settings": {"mask_ratio": 0.4}},
        "rows": rows,
        "paired": paired,
        "detection": {f"{m}-seed{seeds[0]}": {"noise by energy": {"auroc": 0.876}} for m in methods},
        "fingerprints": {"train": "542d06403ad62186"},
        "training": training,
    }


def _noise_examples() -> list[dict]:
    pair = {"source": "a b", "source_pair": "c", "masked": "<M> b <SEP> <M>", "hidden": ["a", "c"]}
    return [
        {"source": "so <i>fun</i>", "source_pair": None, "masked": "so <M>", "hidden": ["<i>fun</i>"]}
        | {"noise": "so <b>odd</b> and $3", "noise_pair": None},
        pair | {"noise": "the b", "noise_pair": "sea"},
    ]
