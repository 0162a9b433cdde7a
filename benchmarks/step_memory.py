"""Peak memory of a training step with K = 16, every text 128 tokens long, at RoBERTa-base's size; optimizer included.

    python benchmarks/step_memory.py

A step is cut into micro-batches under a token budget, so its memory does not depend on how many texts it has: the batch
here is 8 (136 texts with their noise, six micro-batches) and one of 32 needs no more. The figure is this process's
peak resident memory, weights, gradients and AdamW's moments included.
"""

import resource

import numpy as np
import torch

from ebmcal.models.loading import quiet
from timing import publish
from training import SIZES, our_trainer

BATCH, NOISE_RATIO, LENGTH, LIMIT = 8, 16, 128, 16e9


def main() -> None:
    torch.set_num_threads(2)
    rng, n = np.random.default_rng(0), BATCH * (1 + NOISE_RATIO)
    step = {
        "ids": list(rng.integers(1000, 20000, size=(n, LENGTH))),
        "types": [np.zeros(LENGTH, dtype=np.int64)] * n,
        "labels": np.concatenate([np.arange(BATCH) % 2, np.full(BATCH * NOISE_RATIO, -1)]),
    }
    trainer = our_trainer(SIZES["roberta-base"]())
    trainer.settings.noise_ratio = NOISE_RATIO
    optimizer = trainer.create_optimizer()
    trainer.training_step(trainer.wrapped, step)
    optimizer.step()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    name = f"memory of a step, K = {NOISE_RATIO}, {LENGTH} tokens, roberta-base size"
    publish(
        "step_memory",
        [{"name": name, "ratio": LIMIT / used, "goal": 1, "reference": f"16 GB over {used / 1e9:.1f} GB"}],
    )


if __name__ == "__main__":
    with quiet():
        main()
