"""The whole noise stage with SmolLM2: 1,000 texts of about 20 words, fitting included, to 4,000 noise texts.

    python benchmarks/noise_stage.py [--source infill] [--source continue] [--steps N] [--precision fp32]

By default in bfloat16 where the hardware has it, as a run does. Prints what fitting and sampling take, what 100,000
texts would take here, and, from arithmetic, on a GPU.
"""

import argparse
import csv
import json
import os
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from ebmcal.data import Texts, load_texts
from ebmcal.data.builtin import reviews_file
from ebmcal.models.loading import quiet
from ebmcal.noise.filling import fill
from ebmcal.noise.fitting import NoiseLmSettings, fit
from ebmcal.noise.store import NoiseSettings, NoiseStore
from ebmcal.progress import Console
from ebmcal.training.running import has_fast_bf16
from timing import publish

N_TEXTS, N_NOISE, WORDS, GOAL = 1000, 4000, (15, 25), 300

#: A GPU that does so many operations a second in bfloat16, and the share of it that such a model reaches.
GPU, GPU_FLOPS, GPU_SHARE = "A100", 312e12, 0.2


def texts_of_20_words(folder: Path) -> Texts:
    """Film reviews of 15 to 25 words, mixed."""
    with open(reviews_file(), encoding="utf-8", newline="") as handle:
        texts = [row["text"] for row in csv.DictReader(handle) if row["source"] == "rotten_tomatoes"]
    fitting = [text for text in texts if WORDS[0] <= len(text.split()) <= WORDS[1]]
    chosen = np.random.default_rng(0).permutation(len(fitting))[: N_TEXTS + 64]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": fitting[i]}) for i in chosen))
    return load_texts(folder / "texts.jsonl", folder / "cache")


def measure(source: str, texts: Texts, steps: int | None, precision: str, folder: Path) -> list[dict[str, Any]]:
    train, held_out = texts.take(range(N_TEXTS)), texts.take(range(N_TEXTS, len(texts)))
    settings = NoiseLmSettings(
        "smollm2", source, steps=steps, batch_size=16, learning_rate=2e-4, max_length=64, precision=precision
    )
    start = time.perf_counter()
    card = fit(settings, train, held_out, folder / "lm", Console())
    fitted = time.perf_counter()
    store = NoiseStore.open(
        folder / "noise", NoiseSettings(precision=precision).identity(train.fingerprint, card, "key")
    )
    fill(store, folder / "lm", train, N_NOISE, Console())
    done = time.perf_counter()
    a_text = (done - fitted) / len(store)
    n_tokens = 47 if source == "infill" else 30  # read and written for one text; a prompt is read once for four
    on_gpu = 400_000 * n_tokens * 2 * card["n_parameters"] / (GPU_FLOPS * GPU_SHARE)
    facts = {
        "fitting_seconds": round(fitted - start, 1), "sampling_seconds": round(done - fitted, 1),
        "steps": card["steps_done"], "perplexity": [card["perplexity_before"], card["perplexity"]],
        "texts_per_second": round(1 / a_text, 1), "thrown_away": store.thrown_away(),
        "identical": round(store.identical_share, 4), "load": round(os.getloadavg()[0], 1),
        "hours_for_100_000_texts_here": round((fitted - start + 400_000 * a_text) / 3600, 2),
        f"minutes_for_100_000_texts_on_one_{GPU}_by_arithmetic": round(on_gpu / 60, 1),
    }  # fmt: skip
    for name, value in facts.items():
        print(f"  {name}: {value}")
    for row in list(store.rows(400))[::80]:
        print(f"  {row['masked']}\n    -> {row['text']}")
    name = f"noise stage, {source}:smollm2, {precision}, {N_TEXTS:,} texts, {N_NOISE:,} noise texts"
    return [{"name": name, "ratio": (done - start) / GOAL, "goal": 1, "reference": f"of {GOAL} seconds", **facts}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", choices=("infill", "continue"), action="append")
    parser.add_argument("--steps", type=int, help="of the noise LM; by default until the held-out loss no longer falls")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16" if has_fast_bf16() else "fp32")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder, results = Path(mkdtemp()), []
    texts = texts_of_20_words(folder)
    for source in options.source or ("infill", "continue"):
        results += measure(source, texts, options.steps, options.precision, folder / source)
    publish("noise_stage", results)


if __name__ == "__main__":
    with quiet():
        main()
