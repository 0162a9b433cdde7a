"""Training the noise LM and generating texts with SmolLM2: from 1,000 texts of about 20 words to 4,000 noise texts.

    python benchmarks/noise_stage.py [--mode infill] [--mode plain] [--steps N] [--precision fp32]

In bfloat16 if the hardware is faster with it, as in a run. Prints the time of both stages, an estimate for 100,000
source texts on this machine and, by arithmetic, on a GPU.
"""

import argparse
import os
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from ebmcal.data import DataConfig, dataset_fingerprint, load_task
from ebmcal.data.splits import Texts
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import quiet
from ebmcal.noise import NoiseConfig
from ebmcal.noise.causal_lm import LmSettings, fit_noise_lm
from ebmcal.noise.generation import NoiseStore, fill_store
from ebmcal.progress import Console
from timing import publish

N_TEXTS, N_NOISE, WORDS, GOAL = 1000, 4000, (15, 25), 300

#: Operations per second of a GPU in bfloat16, and the share of it that such a model reaches.
GPU, GPU_FLOPS, GPU_SHARE = "A100", 312e12, 0.2


def texts_of_20_words(cache: Path) -> Dataset:
    """Film reviews of 15 to 25 words, in random order."""
    reviews = load_task(DataConfig(task="rotten-tomatoes"), cache).splits["train"]
    chosen = [i for i, text in enumerate(reviews["text"][:]) if WORDS[0] <= len(text.split()) <= WORDS[1]]
    return reviews.select(np.random.default_rng(0).permutation(chosen)[:N_TEXTS])


def measure(mode: str, dataset: Dataset, steps: int | None, precision: str, directory: Path) -> dict[str, Any]:
    texts, start = Texts(dataset), time.perf_counter()
    settings = LmSettings(
        "smollm2", mode, steps=steps, batch_size=16, learning_rate=2e-4, max_length=64, precision=precision
    )
    lm, card = fit_noise_lm(settings, texts, dataset_fingerprint(dataset), directory, Console())
    trained = time.perf_counter()
    sampling = NoiseConfig(precision=precision)
    store = NoiseStore.open(directory / "noise", {"samples_per_mask": sampling.samples_per_mask})
    fill_store(store, lm, texts, N_NOISE, sampling, Console())
    done = time.perf_counter()
    per_text = (done - trained) / len(store)
    n_tokens = 47 if mode == "infill" else 30  # read and written per text; a prompt is read once for four texts
    on_gpu = 400_000 * n_tokens * 2 * card["n_parameters"] / (GPU_FLOPS * GPU_SHARE)
    facts = {
        "fitting_seconds": round(trained - start, 1), "sampling_seconds": round(done - trained, 1),
        "steps": card["steps_done"], "perplexity": [card["perplexity_before"], card["perplexity"]],
        "texts_per_second": round(1 / per_text, 1), "rejected": store.rejected,
        "load": round(os.getloadavg()[0], 1),
        "hours_for_100_000_texts_here": round((trained - start + 400_000 * per_text) / 3600, 2),
        f"minutes_for_100_000_texts_on_one_{GPU}_by_arithmetic": round(on_gpu / 60, 1),
    }  # fmt: skip
    for name, value in facts.items():
        print(f"  {name}: {value}")
    for row in store.rows(400)[::80]:
        print(f"  {row['masked']}\n    -> {row['text']}")
    name = f"noise stage, {mode}:smollm2, {precision}, {N_TEXTS:,} texts, {N_NOISE:,} noise texts"
    return {"name": name, "ratio": (done - start) / GOAL, "goal": 1, "reference": f"of {GOAL} seconds", **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("infill", "plain"), action="append")
    parser.add_argument("--steps", type=int, help="of the noise LM; by default until its held-out loss is flat")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16" if use_bf16("auto") else "fp32")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    directory = Path(mkdtemp())
    dataset = texts_of_20_words(directory)
    modes = options.mode or ("infill", "plain")
    publish("noise_stage", [measure(m, dataset, options.steps, options.precision, directory / m) for m in modes])


if __name__ == "__main__":
    with quiet():
        main()
