"""The calibration of K = 8 for less than nine times the cost of a plain finetune: which savings keep it?

    python benchmarks/cheaper.py --data-dir GLUE [--output runs/cheaper]

Trains MiniLM on 800 rows of SST-2 and of CoLA, seeds 1, 2, 3, by each of `VARIANTS`, with the same noise texts for all,
and tests on the development sets. What is done is not done again; `docs/results/cheaper.json` is rewritten after each
model. Cost is texts through the encoder over data texts: what the work is proportional to, on any machine.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.config import RunConfig
from ebmcal.pipeline.stages import run
from ebmcal.progress import Console
from ebmcal.runfolder import Cell
from ebmcal.storage.atomic import read_json, write_json

TASKS = ("sst2", "cola")
SEEDS = (1, 2, 3)
COMMON: dict[str, Any] = {
    "max_train_rows": 800, "max_eval_rows": 1000, "epochs": 4, "batch_size": 16, "max_length": 64, "encoder": "minilm",
    "noise": "splice", "train_prediction_rows": 100, "posthoc": [],
    "precision": "fp32", "eval_steps": 1000, "learning_rate": 5e-5,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "baseline": {"methods": ["baseline"]},
    # The energy terms weigh 0.8 / K; four times that makes up for the steps without.
    "K = 8": {"noise_ratio": 8, "energy_weight": 0.1},
    "K = 2": {"noise_ratio": 2, "energy_weight": 0.4},
    "K = 8, every 4th step": {"noise_ratio": 8, "noise_every": 4, "energy_weight": 0.4},
    "K = 8, last quarter": {"noise_ratio": 8, "noise_start": 0.75, "energy_weight": 0.1},
}
FIGURES = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")
RESULTS = Path(__file__).parent.parent / "docs" / "results" / "cheaper.json"


def train(task: str, variant: str, seeds: list[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each seed of a variant, trained unless it is there."""
    folder = options.output / task / variant.replace(" ", "").replace("=", "").replace(",", "-")
    settings = COMMON | {"methods": ["hidden"]} | VARIANTS[variant]
    config = RunConfig(task=task, data_dir=options.data_dir, output=folder, seeds=seeds, **settings)
    document = read_json(run(config, Console()).metrics)
    rows = [r for r in document["rows"] if r["test_set"] == "test" and not r["posthoc"]]
    n_texts = COMMON["max_train_rows"] * COMMON["epochs"]
    return [
        {
            "task": task, "variant": variant, "seed": row["seed"],
            "cost": 1 + document["training"][Cell(row["method"], row["seed"]).name]["noise_texts_used"] / n_texts,
            **{name: row["metrics"][name]["value"] for name in FIGURES},
        }
        for row in rows
    ]  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of means and standard deviations over seeds."""
    lines = [f"| task | variant | cost | seeds | {' | '.join(FIGURES)} |", "|---" * (4 + len(FIGURES)) + "|"]
    for task in TASKS:
        for variant in VARIANTS:
            found = [r for r in rows if (r["task"], r["variant"]) == (task, variant)]
            if found:
                cells = [f"{np.mean(v):.3f} ± {np.std(v):.3f}" for v in ([r[f] for r in found] for f in FIGURES)]
                lines.append(f"| {task} | {variant} | {found[0]['cost']:.1f} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/cheaper"))
    options = parser.parse_args()
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for n_seeds in range(1, len(SEEDS) + 1):
        for task in TASKS:
            for variant in VARIANTS:
                rows[task, variant] = train(task, variant, list(SEEDS[:n_seeds]), options)
                found = [row for part in rows.values() for row in part]
                write_json(RESULTS, {"common": COMMON, "variants": VARIANTS, "rows": found})
    print(summary(found))


if __name__ == "__main__":
    main()
