"""What the speed benchmarks share: work timed in turns, the machine's peak, texts with real lengths, tables."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turns(work: dict[str, Callable[[], Any]], rounds: int, warm_up: bool = True) -> dict[str, float]:
    """Median seconds of each; in turns, so that a slow spell of the machine hits all. The first turn is a warm-up.

    Work of minutes may do without one: what it spends on starting is lost in it.
    """
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + warm_up):
        for name, function in work.items():
            taken = seconds(function)
            if turn >= warm_up:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def peak(dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product, best of ten."""
    a, b = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
    return 2 * 2048**3 / min(seconds(lambda: a @ b) for _ in range(10))


def draw_texts(n: int, mean: float = 13, seed: int = 0) -> list[np.ndarray]:
    """Random tokens; lengths spread like SST-2's training phrases, whose mean of 13 (with two marks) is the default.

    Compared with the 67,349 real phrases in MiniLM's tokens: quartiles 7, 10, 16 here and 6, 10, 18 there; the longest
    of 32 has 41 here on average and 40 there.
    """
    rng = np.random.default_rng(seed)
    lengths = np.round(np.exp(rng.normal(np.log(mean) - 0.215, 0.65, size=n)))
    return [rng.integers(1000, 20000, size=length) for length in np.clip(lengths, 3, 60).astype(int)]


def publish(script: str, rows: list[dict[str, Any]]) -> None:
    """Print the figures of a script and keep them in its JSON file; those that were not measured this time stay."""
    for row in rows:
        print(f"{row['name']:58} {row['ratio']:7.2f}  goal {row['goal'] or 'none':<5} {row['reference']}")
    path, measured = HERE / f"{script}.json", {row["name"] for row in rows}
    others = [row for row in (json.loads(path.read_text()) if path.exists() else []) if row["name"] not in measured]
    path.write_text(json.dumps(others + rows, indent=2) + "\n")
