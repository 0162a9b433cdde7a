"""What noise and training cost at MNLI's size with GPT-2 small and RoBERTa-base: the table of docs/scale.md.

    python benchmarks/cost.py --measure     # one thread, CPU seconds; writes cost.json
    python benchmarks/cost.py               # prints the table from cost.json
    python benchmarks/cost.py --sampling 900 --training 700 --cores 2

CPU rows come from measured tokens per second of a core; GPU rows are arithmetic on stated assumptions. Lengths are
MNLI's in WordPiece tokens; weights are random, of the right size: speed does not depend on their values.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

PLACE = Path(__file__).with_suffix(".json")

N_TEXTS, K, SAMPLES_PER_MASK, LM_EPOCHS, EPOCHS = 400_000, 8, 4, 4, 2.5  # the published MNLI run has 2.5 epochs
LENGTH = 38  # mean WordPiece tokens of a pair of MNLI with its marks: 37.9 over 2,000 training pairs
PROMPT = 32  # of its masked version: 60% of the tokens and a mark for each gap
ENCODER, LM, LM_HEAD = 85e6, 85e6, 38.6e6  # parameters that a token passes; embeddings are looked up

#: Not measured here. 312 TFLOP/s is NVIDIA's bf16 figure for an A100; the shares are assumptions.
GPU_FLOPS, TRAINING_SHARE, SAMPLING_SHARE, EIGHT_GPUS = 312e12, 0.35, 0.10, 0.90


def tokens() -> dict[str, float]:
    """Tokens that pass a model in each stage."""
    noise = N_TEXTS * K
    return {
        "noise LM": N_TEXTS * LM_EPOCHS * (PROMPT + LENGTH),
        "noise, written": noise * LENGTH,
        "noise, read": noise / SAMPLES_PER_MASK * PROMPT,
        "training": N_TEXTS * EPOCHS * (1 + K) * LENGTH,
    }


def flops() -> dict[str, float]:
    """What the mathematics needs: 2 for each parameter and token forward, 4 more backward; attention left out."""
    t = tokens()
    return {
        "noise LM": 6 * (LM * t["noise LM"] + LM_HEAD * N_TEXTS * LM_EPOCHS * LENGTH),
        "noise": 2 * (LM * (t["noise, written"] + t["noise, read"]) + LM_HEAD * t["noise, written"]),
        "training": 6 * ENCODER * t["training"],
    }


def cpu_hours(sampling: float, training: float, cores: float) -> dict[str, float]:
    """Hours by tokens per second of one core: written tokens (reading included), and tokens of a training step."""
    t = tokens()
    lm_training = training * 6 * ENCODER / (flops()["noise LM"] / t["noise LM"])  # the same FLOP/s as the encoder
    seconds = {
        "noise LM": t["noise LM"] / lm_training, "noise": t["noise, written"] / sampling,
        "training": t["training"] / training,
    }  # fmt: skip
    return {name: value / cores / 3600 for name, value in seconds.items()}


def gpu_hours(n: int) -> dict[str, float]:
    """Hours on n GPUs by the assumptions above."""
    shares = {"noise LM": TRAINING_SHARE, "noise": SAMPLING_SHARE, "training": TRAINING_SHARE}
    scale = n if n == 1 else n * EIGHT_GPUS
    return {name: value / (GPU_FLOPS * shares[name] * scale) / 3600 for name, value in flops().items()}


def measure() -> dict[str, float]:
    """Tokens per second of CPU time of one thread, float32."""
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaForSequenceClassification

    from ebmcal.models.classifier import EnergyClassifier
    from ebmcal.models.packing import pack
    from ebmcal.noise.lm import NoiseLm
    from ebmcal.noise.masking import Markers, Piece
    from ebmcal.noise.sampler import sample

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    lengths = np.sort(np.clip(np.round(rng.gamma(4, LENGTH / 4, size=48)), 10, 128).astype(int))
    shape = RobertaConfig(vocab_size=50265, max_position_embeddings=514, pad_token_id=1)
    model = EnergyClassifier(RobertaForSequenceClassification(shape)).train()

    def step() -> int:
        logits, energies = model(pack([rng.integers(10, 50000, size=n) for n in lengths]))
        (logits.sum() + energies.sum()).backward()
        return int(lengths.sum())

    lm = NoiseLm(GPT2LMHeadModel(GPT2Config()).eval(), None, Markers(50256, 50255, 50254, 50253), "infill", 0.4)
    prompts = [rng.integers(100, 50000, size=max(4, round(0.8 * n))).tolist() for n in lengths[::3]]
    layouts = [[Piece([], prompt, [])] for prompt in prompts]
    uniforms = [[rng.random(n) for _ in range(SAMPLES_PER_MASK)] for n in lengths[::3]]

    def write() -> int:
        return sum(row.n_drawn for rows in sample(lm, layouts, uniforms) for row in rows)

    return {"training": _rate(step), "sampling": _rate(write)}


def _rate(function: Any) -> float:
    start = time.process_time()
    return function() / (time.process_time() - start)


def show(rates: dict[str, float], cores: float, nodes: int) -> str:
    """The table, in hours."""
    rows = {
        f"{cores:g} of the measured cores": cpu_hours(rates["sampling"], rates["training"], cores),
        f"{nodes} machines of {cores:g} such cores": cpu_hours(rates["sampling"], rates["training"], cores * nodes),
        "one GPU (assumed)": gpu_hours(1),
        "eight GPUs (assumed)": gpu_hours(8),
    }
    lines = ["| hours | noise LM | noise | training |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(f'{h:,.3g}' for h in hours.values())} |" for name, hours in rows.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--sampling", type=float, help="tokens written in a second by one core")
    parser.add_argument("--training", type=float, help="tokens of a training step in a second on one core")
    parser.add_argument("--cores", type=float, default=2)
    parser.add_argument("--nodes", type=int, default=64)
    options = parser.parse_args()
    if options.measure:
        PLACE.write_text(
            json.dumps({"tokens_per_cpu_second": measure(), "threads": 1, "precision": "fp32"}, indent=2) + "\n"
        )
    rates = json.loads(PLACE.read_text())["tokens_per_cpu_second"] if PLACE.exists() else {}
    rates |= {k: v for k, v in (("sampling", options.sampling), ("training", options.training)) if v}
    print({name: f"{value:.3g} tokens" for name, value in tokens().items()})
    print({name: f"{value:.3g} FLOP" for name, value in flops().items()})
    print({name: f"{value:.0f} tokens a second and core" for name, value in rates.items()})
    print(show(rates, options.cores, options.nodes))


if __name__ == "__main__":
    main()
