"""Coverage of the 95% intervals of calibration errors, of differences between models, and of means over seeds.

    python benchmarks/coverage.py [--trials 250]

Rows are drawn many times from populations with known label probabilities; the truth is the error of the same model in
the same 20 bins on very many rows, with label probabilities instead of labels. Results are kept in `coverage.json`;
settings that are in it with enough trials are not drawn again. Prints a Markdown table.
"""

# ruff: noqa: E402
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.metrics import METRICS
from ebmcal.metrics.calibration import Z_95, Kind, binned_error
from ebmcal.metrics.comparison import compare_estimates, mean_over_seeds
from ebmcal.metrics.intervals import estimate
from ebmcal.predictions import softmax

RESULTS = Path(__file__).with_suffix(".json")
SIZES, CLASSES, N_BINS = (300, 1000, 5000), (2, 3, 20), 20
KINDS: dict[str, Kind] = {"class-wise": "class", "top-label": "top_label"}
LOOK_CLOSER = 0.96  # a setting with a lower coverage gets four times as many trials
TRUTH_ERROR = 2e-4  # of the truth, which comes from very many rows and not from infinitely many
Rows = tuple[np.ndarray, np.ndarray]  # the model's probabilities [n, C], the label probabilities [n, C]


def tempered(spread: float, temperature: float) -> Callable[[np.ndarray], Rows]:
    """Logits of this spread; labels follow them divided by a temperature, above 1 for an overconfident model."""
    return lambda z: (softmax(z * spread), softmax(z * spread / temperature))


def shifted(z: np.ndarray) -> Rows:
    """The first class is more frequent than the model expects, as after a label shift."""
    return softmax(z * 3), softmax(z * 3 + np.eye(z.shape[1])[0])


def alternating(z: np.ndarray) -> Rows:
    """Up to 5 points too high in every other bin of the confidence and too low in the rest: hidden best by noise."""
    probs, rows = softmax(z), np.arange(len(z))
    first, second = np.argsort(probs, axis=1)[:, :-3:-1].T
    room = np.minimum(np.minimum(probs[rows, second], 1 - probs[rows, first]), 0.05)
    move = np.where((probs[rows, first] * N_BINS).astype(int) % 2, room, -room)
    labels = probs.copy()
    labels[rows, first] += move
    labels[rows, second] -= move
    return probs, labels


MODELS: dict[str, Callable[[np.ndarray], Rows]] = {
    "calibrated, sure": tempered(3.0, 1.0),
    "calibrated, unsure": tempered(1.0, 1.0),
    "a little overconfident": tempered(3.0, 1.3),
    "overconfident": tempered(3.0, 2.0),
    "badly overconfident": tempered(3.0, 4.0),
    "underconfident": tempered(1.0, 0.6),
    "shifted labels": shifted,
    "alternating": alternating,
}
#: Two models on the same rows: factor and noise of the logits of each.
PAIRS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "alike": ((3.0, 0.5), (3.0, 0.5)),
    "overconfident, a little less so": ((3.0, 0.0), (2.5, 0.0)),
    "overconfident, calibrated": ((2.0, 0.0), (1.0, 0.0)),
    "over-, underconfident": ((1.6, 0.0), (0.6, 0.0)),
}
#: Accuracy and rows of two models with opposite errors of equal size, some with few wrong answers.
OPPOSITE = (("0.97", 100), ("0.985", 200), ("0.97", 200), ("0.97", 300), ("0.97", 1000), ("0.9", 1000))
#: Two methods with several seeds each: factor of the logits, its deviation between seeds, noise of a seed on each row.
SEEDED: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "seeds alike": ((2.0, 0.0, 0.5), (1.3, 0.0, 0.5)),
    "seeds waver": ((2.0, 0.3, 0.5), (1.3, 0.2, 0.5)),
    "seeds waver much": ((2.0, 0.8, 0.5), (1.5, 0.5, 0.5)),
    "methods alike": ((1.6, 0.3, 0.5), (1.6, 0.3, 0.5)),
}
SEEDS, SEEDED_SIZES = (3, 5), (300, 1000)
SEEDED_METRICS = {"accuracy": "accuracy", "NLL": "nll", "ECE class-wise": "ece_classwise"}


def draw_labels(shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (shares.cumsum(axis=1) > rng.random((len(shares), 1)) * (1 - 1e-12)).argmax(axis=1)


def true_error(draw: Callable[[np.random.Generator, int], Rows], kind: str) -> float:
    """The binned error with label probabilities instead of labels, on very many rows."""
    rng, step, n_steps = np.random.default_rng(99), 100_000, 10
    sums: Any = 0.0
    for _ in range(n_steps):
        forecast, share = draw(rng, step)
        if kind == "top-label":
            top = forecast.argmax(axis=1)[:, None]
            forecast, share = (np.take_along_axis(p, top, axis=1) for p in (forecast, share))
        n_events = forecast.shape[1]
        codes = np.minimum((forecast * N_BINS).astype(int), N_BINS - 1) + N_BINS * np.arange(n_events)
        sums += np.bincount(codes.ravel(), (forecast - share).ravel(), minlength=N_BINS * n_events)
    return float(np.abs(sums).sum()) / (n_steps * step * n_events)


def summary(truth: float, **columns: Any) -> dict[str, float]:
    """Means over trials, and how often the interval from `low` to `high` contains the truth."""
    low, high = np.array(columns["low"]), np.array(columns["high"])
    covered = (low <= truth + TRUTH_ERROR) & (truth - TRUTH_ERROR <= high)
    means = {name: round(float(np.mean(column)), 5) for name, column in columns.items()}
    return {"truth": round(truth, 5), **means, "coverage": round(float(covered.mean()), 5)}


def summarize_tests(tests: list[Any], truth: float) -> dict[str, float]:
    plain, low, high, p = np.array([(t.difference, t.low, t.high, t.p_value) for t in tests]).T
    return summary(truth, plain=plain, low=low, high=high, significant=p < 0.05)


def run_model(name: str, n_classes: int, n_rows: int, trials: int) -> dict[str, Any]:
    """Intervals of the errors of one model."""
    rng = np.random.default_rng([n_classes, n_rows])
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for _ in range(trials):
        probs, shares = MODELS[name](rng.normal(size=(n_rows, n_classes)))
        labels = draw_labels(shares, rng)
        for kind, events in KINDS.items():
            error = binned_error(labels, probs, kind=events, n_bins=N_BINS)  # as in `Estimate.interval`
            ends = error.bias.interval(Z_95 * error.standard_error)
            found[kind].append((error.bias.value, error.bias.floor, *ends))
    columns = {
        kind: dict(zip(("plain", "floor", "low", "high"), np.array(found[kind]).T, strict=True)) for kind in KINDS
    }
    return {kind: summary(truth_of_model(name, kind, n_classes), **columns[kind]) for kind in KINDS}


@functools.cache
def truth_of_model(name: str, kind: str, n_classes: int) -> float:
    return true_error(lambda rng, n: MODELS[name](rng.normal(size=(n, n_classes))), kind)


def run_pair(name: str, n_classes: int, n_rows: int, trials: int) -> dict[str, Any]:
    """Intervals of the difference between two models on the same rows."""
    metrics = {"class-wise": METRICS["ece_classwise"], "top-label": METRICS["ece_top_label"]}
    requested: Any = {kind: (metric, {}) for kind, metric in metrics.items()}
    rng = np.random.default_rng([n_classes, n_rows, 7])
    tests: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for _ in range(trials):
        *models, shares = draw_pair(name, n_classes, n_rows, rng)
        labels = draw_labels(shares, rng)
        a, b = (estimate(requested, labels, probs, n_resamples=100, seed=0) for probs in models)
        for kind in KINDS:
            tests[kind].append(compare_estimates([a[kind]], [b[kind]]))
    return {kind: summarize_tests(tests[kind], truth_of_pair(name, kind, n_classes)) for kind in KINDS}


def run_opposite(accuracy: str, n_classes: int, n_rows: int, trials: int) -> dict[str, Any]:
    """The difference between two models that have one confidence each: one too high, the other too low by as much, by
    .4 to 2.5 standard errors of the accuracy. Their errors are equal."""
    share, rng, tests = float(accuracy), np.random.default_rng([n_classes, n_rows, 13]), []
    for i in range(trials):
        gap = min((0.4, 0.7, 1.0, 1.5, 2.5)[i % 5] * (share * (1 - share) / n_rows) ** 0.5, 0.999 - share)
        labels = (rng.random(n_rows) > share).astype(int)
        models = (np.tile([p, 1 - p], (n_rows, 1)) for p in (share + gap, share - gap))
        a, b = (
            estimate({"it": (METRICS["ece_top_label"], {})}, labels, p, n_resamples=200, seed=0)["it"] for p in models
        )
        tests.append(compare_estimates([a], [b]))
    return {"top-label": summarize_tests(tests, 0.0)}


def draw_pair(name: str, n_classes: int, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Probabilities of each model and of the labels."""
    z = rng.normal(size=(n, n_classes))
    seen = [z * factor + rng.normal(size=z.shape) * noise for factor, noise in PAIRS[name]]
    return [softmax(logits) for logits in (*seen, z)]


@functools.cache
def truth_of_pair(name: str, kind: str, n_classes: int) -> float:
    def error(which: int) -> float:
        def draw(rng: np.random.Generator, n: int) -> Rows:
            drawn = draw_pair(name, n_classes, n, rng)
            return drawn[which], drawn[2]

        return true_error(draw, kind)

    return error(0) - error(1)


def run_seeds(name: str, n_seeds: int, n_rows: int, trials: int) -> dict[str, Any]:
    """Means over seeds of the first method, and its differences from the second."""
    requested: Any = {title: (METRICS[key], {}) for title, key in SEEDED_METRICS.items()}
    rng = np.random.default_rng([n_seeds, n_rows, 11])
    means: dict[str, list[Any]] = {title: [] for title in requested}
    tests: dict[str, list[Any]] = {title: [] for title in requested}
    for _ in range(trials):
        z = rng.normal(size=(n_rows, 3))
        labels = draw_labels(softmax(z), rng)
        both = [
            [
                estimate(requested, labels, softmax(seed_logits(z, method, rng)), n_resamples=200, seed=0)
                for _ in range(n_seeds)
            ]
            for method in SEEDED[name]
        ]
        for title in requested:
            ours, theirs = ([found[title] for found in method] for method in both)
            means[title].append(mean_over_seeds(ours))
            tests[title].append(compare_estimates(ours, theirs))
    found = {}
    for title in requested:
        first, second = (truth_over_seeds(method, title) for method in SEEDED[name])
        plain, low, high = np.array([(mean.value, mean.low, mean.high) for mean in means[title]]).T
        found[title] = summary(first, plain=plain, low=low, high=high)
        found[f"{title}, difference"] = summarize_tests(tests[title], first - second)
    return found


def seed_logits(z: np.ndarray, method: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """The logits of one more seed."""
    factor, deviation, noise = method
    return z * (factor + deviation * rng.normal()) + rng.normal(size=z.shape) * noise


@functools.cache
def truth_over_seeds(method: tuple[float, float, float], title: str) -> float:
    """The metric with label probabilities instead of labels, on very many rows, averaged over the factors of seeds."""
    factor, deviation, noise = method
    nodes, weights = np.polynomial.hermite_e.hermegauss(7 if deviation else 1)
    values = [true_value(factor + deviation * x, noise, title) for x in nodes]
    return float(np.dot(weights, values) / weights.sum())


def true_value(factor: float, noise: float, title: str) -> float:
    def draw(rng: np.random.Generator, n: int) -> Rows:
        z = rng.normal(size=(n, 3))
        return softmax(z * factor + rng.normal(size=z.shape) * noise), softmax(z)

    if title.startswith("ECE"):
        return true_error(draw, "class-wise")
    probs, shares = draw(np.random.default_rng(99), 500_000)
    if title == "NLL":
        return float(-(shares * np.log(probs)).sum(axis=1).mean())
    return float(np.take_along_axis(shares, probs.argmax(axis=1)[:, None], axis=1).mean())


def list_settings() -> list[tuple[str, Callable[..., dict[str, Any]], str, int, int]]:
    """Key, function, name of the model or pair, classes (or seeds), rows."""
    singles = [(run_model, name, c, n) for c in CLASSES for name in MODELS for n in SIZES]
    pairs = [(run_pair, name, 3, n) for name in PAIRS for n in SIZES]
    seeded = [(name, s, n) for name in SEEDED for s in SEEDS for n in SEEDED_SIZES]
    opposite = [(f"opposite errors, accuracy {a}, {n} rows", run_opposite, a, 2, n) for a, n in OPPOSITE]
    return [
        *opposite,
        *((f"{name}, {c} classes, {n} rows", function, name, c, n) for function, name, c, n in singles + pairs),
        *((f"{name}, {s} seeds, {n} rows", run_seeds, name, s, n) for name, s, n in seeded),
    ]


def coverages(entry: dict[str, Any]) -> dict[str, float]:
    return {kind: numbers["coverage"] for kind, numbers in entry.items() if isinstance(numbers, dict)}


def print_table(found: dict[str, Any]) -> None:
    """One line per setting and error, and the lowest coverage."""
    import pandas as pd

    records = [
        {"setting": key, "error": kind, "trials": found[key]["trials"], **numbers}
        for key, *_ in list_settings()
        if key in found
        for kind, numbers in found[key].items()
        if isinstance(numbers, dict)
    ]
    frame = pd.DataFrame(records)
    print(frame.to_markdown(index=False, floatfmt=".3f"))
    low = int((frame["coverage"] < 0.93).sum())
    print(f"\nLowest coverage {frame['coverage'].min():.3f}, mean {frame['coverage'].mean():.3f}; "
          f"{low} of {len(frame)} below 0.93.")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=250)
    trials = parser.parse_args().trials
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for key, function, name, size, n_rows in list_settings():
        for wanted in (trials,) if function is run_seeds else (trials, 4 * trials):
            lowest = min(coverages(found[key]).values()) if key in found else 0.0
            if found.get(key, {}).get("trials", 0) < wanted and lowest < LOOK_CLOSER:
                found[key] = function(name, size, n_rows, wanted) | {"trials": wanted}
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
                print(key, coverages(found[key]), flush=True)
    print_table(found)


if __name__ == "__main__":
    main()
