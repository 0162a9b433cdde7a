"""Metrics compared with the installed peers: CPU time on one thread, exactness, and memory with very many rows.

    python benchmarks/metrics.py [--no-memory]

Writes `metrics.json`: a list of {"name", "ratio", "goal", "reference", …}. `ratio` is the peer's time divided by ours
(for memory and exactness: the goal divided by the measurement); higher is better. A peer that is not installed is
listed with the import error.
"""

# ruff: noqa: E402
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.metrics import bootstrap, ece_classwise, ece_top_label
from ebmcal.predictions import softmax

N_ROUNDS = 5
CLASSWISE = "class-wise ECE, 1e6 × 3"
TOP_LABEL = "top-label ECE, 1e6 × 3"
BOOTSTRAP = "1,000 bootstrap resamples of class-wise ECE, 1e4 × 3"


def make_rows(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and overconfident probabilities of three classes."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n_rows, 3)) * 2
    return (logits + rng.gumbel(size=logits.shape) * 1.5).argmax(axis=1), softmax(logits)


def cpu_seconds(*works: Callable[[], Any]) -> list[float]:
    """The best CPU seconds of each after a warm-up; taking turns, so that a slow phase of the machine affects all."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(N_ROUNDS + 1):
        for work, seconds in zip(works, times, strict=True):
            start = time.process_time()
            work()
            if turn:
                seconds.append(time.process_time() - start)
    return [min(seconds) for seconds in times]


def classwise_torchmetrics(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    import torch
    from torchmetrics.functional.classification import binary_calibration_error

    torch.set_num_threads(1)
    y = torch.from_numpy(labels)
    columns = [torch.from_numpy(np.ascontiguousarray(c)) for c in probs.T]  # contiguous: it is slower otherwise
    return lambda: [binary_calibration_error(p, (y == i).long(), n_bins=20) for i, p in enumerate(columns)]


def classwise_uncertainty_calibration(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    import calibration

    return lambda: calibration.get_ece(probs, labels, num_bins=20, mode="marginal")


def top_torchmetrics(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    torch.set_num_threads(1)
    y, p = torch.from_numpy(labels), torch.from_numpy(probs)
    return lambda: multiclass_calibration_error(p, y, 3, n_bins=20)


def top_uncertainty_calibration(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    import calibration

    return lambda: calibration.get_ece(probs, labels, num_bins=20)


def top_netcal(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    from netcal.metrics import ECE

    return lambda: ECE(20).measure(probs, labels)


def top_mapie(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    from mapie.metrics.calibration import top_label_ece

    return lambda: top_label_ece(labels, probs, num_bins=20, split_strategy="uniform")


def top_torch_uncertainty(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    import torch
    from torch_uncertainty.metrics import CalibrationError

    torch.set_num_threads(1)
    y, p = torch.from_numpy(labels), torch.from_numpy(probs)
    return lambda: CalibrationError(task="multiclass", num_classes=3, num_bins=20)(p, y)


def bootstrap_uncertainty_calibration(labels: np.ndarray, probs: np.ndarray) -> Callable[[], Any]:
    import calibration

    return lambda: calibration.get_calibration_error_uncertainties(probs, labels, p=1, mode="marginal")


def bootstrap_ece(labels: np.ndarray, probs: np.ndarray) -> Any:
    return bootstrap("ece_classwise", labels, probs=probs)


# name, rows, our work, peer, its work, goal, factor of its time (it draws 100 resamples, not 1,000)
RACES: list[tuple[str, int, Callable[..., Any], str, Callable[..., Any], float, int]] = [
    (CLASSWISE, 10**6, ece_classwise, "torchmetrics", classwise_torchmetrics, 1, 1),
    (CLASSWISE, 10**6, ece_classwise, "uncertainty-calibration", classwise_uncertainty_calibration, 1, 1),
    (TOP_LABEL, 10**6, ece_top_label, "torchmetrics", top_torchmetrics, 1, 1),
    (TOP_LABEL, 10**6, ece_top_label, "netcal", top_netcal, 1, 1),
    (TOP_LABEL, 10**6, ece_top_label, "uncertainty-calibration", top_uncertainty_calibration, 1, 1),
    (TOP_LABEL, 10**6, ece_top_label, "MAPIE", top_mapie, 1, 1),
    (TOP_LABEL, 10**6, ece_top_label, "torch-uncertainty", top_torch_uncertainty, 1, 1),
    (BOOTSTRAP, 10**4, bootstrap_ece, "uncertainty-calibration", bootstrap_uncertainty_calibration, 500, 10),
]


def race(name: str, n_rows: int, ours: Callable[..., Any], peer: str, theirs: Any, goal: float, times: int) -> dict:
    labels, probs = make_rows(n_rows)
    entry: dict[str, Any] = {"name": name, "ratio": None, "goal": goal, "reference": peer}
    try:
        work = theirs(labels, probs)
    except ImportError as error:
        return entry | {"missing": str(error)}
    mine, other = cpu_seconds(lambda: ours(labels, probs=probs), work)
    other *= times
    return entry | {"ratio": round(other / mine, 2), "ms": round(1e3 * mine, 2), "peer_ms": round(1e3 * other, 2)}


def exactness() -> dict[str, Any]:
    """The class-wise error compared with exact sums (`math.fsum`)."""
    labels, probs = make_rows(10**6)
    total, edges = 0.0, np.arange(1, 20) / 20
    for y in range(3):
        codes = np.digitize(probs[:, y], edges)
        gaps = probs[:, y] - (labels == y)
        total += sum(abs(math.fsum(gaps[codes == b])) for b in range(20))
    difference = abs(ece_classwise(labels, probs=probs) - total / (3 * len(labels)))
    return {
        "name": f"{CLASSWISE}: difference",
        "ratio": round(1e-12 / max(difference, 1e-18), 1),
        "goal": 1,
        "reference": "float64, exact sums, 1e-12",
        "difference": difference,
    }


MEMORY = """
import re, sys
import numpy as np
from ebmcal.metrics import METRICS, summarize
from ebmcal.predictions import Predictions
status = lambda field: int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
kind, dtype = sys.argv[1:]
rng, n = np.random.default_rng(0), 10**7
rows, labels = np.empty((n, 3), dtype), np.empty(n, np.int64)
for start in range(0, n, 10**5):
    part = slice(start, start + 10**5)
    logits = rng.normal(size=(10**5, 3)) * 2
    labels[part] = (logits + rng.gumbel(size=logits.shape) * 1.5).argmax(axis=1)
    exp = np.exp(logits)
    rows[part] = logits if kind == "logits" else exp / exp.sum(axis=1, keepdims=True)
open("/proc/self/clear_refs", "w").write("5")  # reset the peak
before = status("VmRSS")
summarize(Predictions(labels, ("a", "b", "c"), **{kind: rows}), sorted(METRICS))
print(status("VmHWM") - before)
"""


def memory(kind: str, dtype: str) -> dict[str, Any]:
    """Peak memory above the input of every metric with intervals, in a fresh process (Linux only)."""
    out = subprocess.run([sys.executable, "-c", MEMORY, kind, dtype], check=True, capture_output=True, text=True)
    return {
        "name": f"memory: every metric with intervals, 1e7 × 3 {kind} in {dtype}",
        "ratio": round(1024 / float(out.stdout), 2),
        "goal": 1,
        "reference": "1 GB above the input",
        "mb": round(float(out.stdout)),
    }


def main() -> None:
    warnings.simplefilter("ignore")  # of the peers
    results = [race(*entry) for entry in RACES] + [exactness()]
    if "--no-memory" not in sys.argv:
        results += [memory("logits", "float32"), memory("probs", "float64")]
    for entry in results:
        print(f"{entry['name']:60} {entry['reference']:28} {entry['ratio']} (goal {entry['goal']})")
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
