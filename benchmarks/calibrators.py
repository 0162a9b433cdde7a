"""Calibrator fits against the installed peers: 1e5 × 3 logits, CPU time of one thread, peers and ebmcal taking turns.

    python benchmarks/calibrators.py

Writes `calibrators.json` beside itself: a list of {"name", "ratio", "goal", "reference", …}, ratio being the peer's
time over ours (more is better). A peer that is not installed is listed with what is missing.
"""

# ruff: noqa: E402
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibration import ScalingBinning, TemperatureScaling
from ebmcal.predictions import softmax

N_ROWS, N_CLASSES, N_ROUNDS = 100_000, 3, 7


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Overconfident logits (true T about 2.5) and labels drawn from their calibrated softmax."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(N_ROWS, N_CLASSES)) * 2
    return 2.5 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def time_in_turns(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Median CPU seconds of each; taking turns, so that a slow phase of the machine affects both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(N_ROUNDS):
        for work, seconds in zip((ours, theirs), times, strict=True):
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def temperature_against_sklearn(logits: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    from sklearn.calibration import _TemperatureScaling

    ours = TemperatureScaling().fit(logits, y).temperature_
    theirs = 1 / float(_TemperatureScaling().fit(logits, y).beta_)
    seconds = time_in_turns(lambda: TemperatureScaling().fit(logits, y), lambda: _TemperatureScaling().fit(logits, y))
    return _result(seconds, difference_in_t=abs(ours - theirs), same_optimum=abs(ours - theirs) <= 1e-6)


def temperature_against_netcal(logits: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    from netcal.scaling import TemperatureScaling as Peer

    probs = softmax(logits)
    return _result(time_in_turns(lambda: TemperatureScaling().fit(logits, y), lambda: Peer().fit(probs, y)))


def scaling_binning_against_uncertainty_calibration(logits: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    from calibration import PlattBinnerMarginalCalibrator as Peer

    probs = softmax(logits)
    return _result(
        time_in_turns(
            lambda: ScalingBinning(n_bins=10).fit(logits, y), lambda: Peer(len(y), 10).train_calibration(probs, y)
        )
    )


def _result(seconds: tuple[float, float], **more: Any) -> dict[str, Any]:
    ours, theirs = seconds
    return {"ratio": round(theirs / ours, 2), "ms": round(1e3 * ours, 1), "peer_ms": round(1e3 * theirs, 1), **more}


# name, what is compared with, how many times faster it has to be, how
COMPARISONS = (
    ("temperature fit, 1e5 × 3", "scikit-learn", 1.0, temperature_against_sklearn),
    ("temperature fit, 1e5 × 3", "netcal", 1.0, temperature_against_netcal),
    ("scaling-binning fit, 1e5 × 3", "uncertainty-calibration", 10.0, scaling_binning_against_uncertainty_calibration),
)


def main() -> None:
    rows, results = make_rows(), []
    for name, peer, goal, compare in COMPARISONS:
        try:
            result = compare(*rows)
        except ImportError as error:
            result = {"ratio": None, "missing": str(error)}
        results.append({"name": name, "reference": peer, "goal": goal, **result})
        print(json.dumps(results[-1], ensure_ascii=False))
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
