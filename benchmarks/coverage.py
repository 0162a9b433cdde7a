"""How often the 95% intervals of calibration errors, and of differences between them, hold the truth.

    python benchmarks/coverage.py [--trials 250]

For each number of classes, kind of model and number of rows, rows are drawn many times from a population whose label
probabilities are known. The truth is the error of the same model in the same 20 bins on very many rows with their label
probabilities in place of labels. Cells that are in `docs/results/coverage.json` with as many trials are not drawn
again; at the end `docs/coverage.md` is made of it.
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

from ebmcal.metrics.bins import Kind
from ebmcal.metrics.chance import binned_error
from ebmcal.metrics.comparing import compare_measured, mean_over_seeds
from ebmcal.metrics.intervals import measure, normal_quantile
from ebmcal.metrics.registry import METRICS
from ebmcal.predictions.arrays import softmax

DOCS = Path(__file__).parents[1] / "docs"
RAW, TABLE = DOCS / "results" / "coverage.json", DOCS / "coverage.md"
SIZES, CLASSES, N_BINS = (300, 1000, 5000), (2, 3, 20), 20
KINDS: dict[str, Kind] = {"class-wise": "class", "top-label": "top_label"}
LOOK_CLOSER = 0.96  # a cell with a lower coverage is drawn four times as often
Rows = tuple[np.ndarray, np.ndarray]  # the model's probabilities [n, C], the label probabilities [n, C]


def tempered(spread: float, temperature: float) -> Callable[[np.ndarray], Rows]:
    """Logits of this spread; the labels follow them divided by a temperature, above 1 for an overconfident model."""
    return lambda z: (softmax(z * spread), softmax(z * spread / temperature))


def shifted(z: np.ndarray) -> Rows:
    """The first class is more frequent than the model believes, as after a shift of the label frequencies."""
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

#: Two models on the same rows: what they see of the logits, each with noise of its own where the number is above 0.
PAIRS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {  # (factor, noise) of each
    "alike": ((3.0, 0.5), (3.0, 0.5)),
    "overconfident, a little less so": ((3.0, 0.0), (2.5, 0.0)),
    "overconfident, calibrated": ((2.0, 0.0), (1.0, 0.0)),
    "over-, underconfident": ((1.6, 0.0), (0.6, 0.0)),
}

#: Two methods, trained with several seeds each: the factor of the logits, how much it wavers from seed to seed, and the
#: noise of each seed on each row. The truth is the mean over all seeds and rows.
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


def true_error(probs_and_shares: Callable[[np.random.Generator, int], Rows], kind: str, n_classes: int) -> float:
    """The binned error with label probabilities in place of labels, on very many rows."""
    rng, step, n_steps = np.random.default_rng(99), 100_000, 10
    sums: Any = 0.0
    for _ in range(n_steps):
        probs, shares = probs_and_shares(rng, step)
        top = probs.argmax(axis=1)[:, None]
        said, came = (
            (probs, shares) if kind == "class-wise" else [np.take_along_axis(p, top, axis=1) for p in (probs, shares)]
        )
        codes = np.minimum((said * N_BINS).astype(int), N_BINS - 1) + N_BINS * np.arange(said.shape[1])
        sums += np.bincount(codes.ravel(), (said - came).ravel(), minlength=N_BINS * said.shape[1])
    return float(np.abs(sums).sum()) / (n_steps * step * said.shape[1])


def run_model(name: str, n_classes: int, n_rows: int, trials: int) -> dict[str, Any]:
    """Intervals of one model, drawn again and again."""
    rng = np.random.default_rng([n_classes, n_rows])
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for _ in range(trials):
        probs, shares = MODELS[name](rng.normal(size=(n_rows, n_classes)))
        labels = draw_labels(shares, rng)
        for kind, events in KINDS.items():
            error = binned_error(labels, probs, kind=events, n_bins=N_BINS)  # as `Measured.interval` has it
            ends = error.chance.ends(normal_quantile(0.95) * error.standard_error)
            found[kind].append((error.chance.value, *ends, error.chance.floor))
    return {kind: _coverage(found[kind], truth_of_model(name, kind, n_classes)) for kind in KINDS}


@functools.cache
def truth_of_model(name: str, kind: str, n_classes: int) -> float:
    return true_error(lambda rng, n: MODELS[name](rng.normal(size=(n, n_classes))), kind, n_classes)


def _coverage(found: list[Any], truth: float) -> dict[str, float]:
    value, low, high, floor = np.array(found).T
    truth_in_doubt = 2e-4  # of the truth itself, which is from very many rows and not from all
    held = (low <= truth + truth_in_doubt) & (truth - truth_in_doubt <= high)
    means = {"plain": value, "floor": floor, "low": low, "high": high, "coverage": held}
    return {"truth": round(truth, 5), **{name: round(float(column.mean()), 5) for name, column in means.items()}}


def run_pair(name: str, n_classes: int, n_rows: int, trials: int) -> dict[str, Any]:
    """Intervals of the difference of two models that judge the same rows."""
    metrics = {"class-wise": METRICS["ece_classwise"], "top-label": METRICS["ece_top_label"]}
    wanted: Any = {kind: (metric, {}) for kind, metric in metrics.items()}
    rng = np.random.default_rng([n_classes, n_rows, 7])
    tests: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for _ in range(trials):
        *models, shares = draw_pair(name, n_classes, n_rows, rng)
        labels = draw_labels(shares, rng)
        a, b = (measure(wanted, labels, probs, n_resamples=100, seed=0) for probs in models)
        for kind in KINDS:
            tests[kind].append(compare_measured([a[kind]], [b[kind]]))
    truths = {kind: truth_of_pair(name, kind, n_classes) for kind in KINDS}
    return {kind: _difference(tests[kind], truths[kind]) for kind in KINDS}


def draw_pair(name: str, n_classes: int, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Probabilities of each model and of the labels."""
    z = rng.normal(size=(n, n_classes))
    seen = [z * factor + rng.normal(size=z.shape) * noise for factor, noise in PAIRS[name]]
    return [softmax(logits) for logits in (*seen, z)]


@functools.cache
def truth_of_pair(name: str, kind: str, n_classes: int) -> float:
    def rows(which: int) -> Callable[[np.random.Generator, int], Rows]:
        def draw(rng: np.random.Generator, n: int) -> Rows:
            found = draw_pair(name, n_classes, n, rng)
            return found[which], found[2]

        return draw

    return true_error(rows(0), kind, n_classes) - true_error(rows(1), kind, n_classes)


def _difference(tests: list[Any], truth: float) -> dict[str, float]:
    plain, low, high, p = np.array([(t.difference, t.low, t.high, t.p_value) for t in tests]).T
    held = (low <= truth + 2e-4) & (truth - 2e-4 <= high)
    means = {"plain": plain, "low": low, "high": high, "coverage": held, "significant": p < 0.05}
    return {"truth": round(truth, 5), **{name: round(float(column.mean()), 5) for name, column in means.items()}}


def run_seeds(name: str, n_seeds: int, n_rows: int, trials: int) -> dict[str, Any]:
    """Means over seeds of the first method, and its differences from the second, as runs and benchmarks have them."""
    wanted: Any = {shown: (METRICS[key], {}) for shown, key in SEEDED_METRICS.items()}
    rng = np.random.default_rng([n_seeds, n_rows, 11])
    means: dict[str, list[Any]] = {shown: [] for shown in wanted}
    tests: dict[str, list[Any]] = {shown: [] for shown in wanted}
    for _ in range(trials):
        z = rng.normal(size=(n_rows, 3))
        labels = draw_labels(softmax(z), rng)
        both = [
            [
                measure(wanted, labels, softmax(_of_seed(z, method, rng)), n_resamples=200, seed=0)
                for _ in range(n_seeds)
            ]
            for method in SEEDED[name]
        ]
        for shown in wanted:
            ours, theirs = ([figures[shown] for figures in method] for method in both)
            means[shown].append(mean_over_seeds(ours))
            tests[shown].append(compare_measured(ours, theirs))
    found = {}
    for shown in wanted:
        first, second = (truth_over_seeds(method, shown) for method in SEEDED[name])
        ends = np.array([(mean.value, mean.low, mean.high) for mean in means[shown]])
        held = (ends[:, 1] <= first + 2e-4) & (first - 2e-4 <= ends[:, 2])
        mean = {"truth": round(first, 5), "plain": round(float(ends[:, 0].mean()), 5)}
        mean |= {"low": round(float(ends[:, 1].mean()), 5), "high": round(float(ends[:, 2].mean()), 5)}
        found[shown] = mean | {"coverage": round(float(held.mean()), 5)}
        found[f"{shown}, difference"] = _difference(tests[shown], first - second)
    return found


def _of_seed(z: np.ndarray, method: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """The logits of one more seed."""
    factor, wavering, noise = method
    return z * (factor + wavering * rng.normal()) + rng.normal(size=z.shape) * noise


@functools.cache
def truth_over_seeds(method: tuple[float, float, float], shown: str) -> float:
    """The metric of a seed with label probabilities in place of labels, on very many rows, over all factors."""
    factor, wavering, noise = method
    nodes, weights = np.polynomial.hermite_e.hermegauss(7 if wavering else 1)
    return float(
        sum(w * _true_figure(factor + wavering * x, noise, shown) for x, w in zip(nodes, weights, strict=True))
        / weights.sum()
    )


def _true_figure(factor: float, noise: float, shown: str) -> float:
    def rows(rng: np.random.Generator, n: int) -> Rows:
        z = rng.normal(size=(n, 3))
        return softmax(z * factor + rng.normal(size=z.shape) * noise), softmax(z)

    if shown.startswith("ECE"):
        return true_error(rows, "class-wise", 3)
    probs, shares = rows(np.random.default_rng(99), 500_000)
    if shown == "NLL":
        return float(-(shares * np.log(probs)).sum(axis=1).mean())
    return float(np.take_along_axis(shares, probs.argmax(axis=1)[:, None], axis=1).mean())


def cells() -> list[tuple[str, Callable[..., dict[str, Any]], str, int, int]]:
    """What there is to draw: key, function, name of the model or pair, classes (or seeds), rows."""
    singles = [(run_model, name, c, n) for c in CLASSES for name in MODELS for n in SIZES]
    pairs = [(run_pair, name, c, n) for c in (3,) for name in PAIRS for n in SIZES]
    seeded = [(name, s, n) for name in SEEDED for s in SEEDS for n in SEEDED_SIZES]
    return [
        *((f"{name}, {c} classes, {n} rows", function, name, c, n) for function, name, c, n in singles + pairs),
        *((f"{name}, {s} seeds, {n} rows", run_seeds, name, s, n) for name, s, n in seeded),
    ]


def table(found: dict[str, Any]) -> str:
    """The Markdown page."""
    lines = [
        "# Coverage of the intervals",
        "",
        "Made by `python benchmarks/coverage.py`; every figure is in [coverage.json](results/coverage.json). Rows are "
        "drawn again and again from populations whose label probabilities are known; the table says how often the 95% "
        "interval held the true error of the model in its 20 bins. What the interval is: [intervals](intervals.md).",
        "",
        "| classes | model | rows | truth | plain | floor | mean interval | coverage | truth | plain | floor "
        "| mean interval | coverage |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---|---:|",
        "| | **class-wise →** | | | | | | | **top-label →** | | | | |",
    ]
    for key, function, name, c, n in (cell for cell in cells() if cell[0] in found):
        if function is run_model:
            lines.append(f"| {c} | {name} | {n:,} | " + " | ".join(_single(found[key][kind]) for kind in KINDS) + " |")
    covered = [found[k][kind]["coverage"] for k, f, *_ in cells() if f is run_model and k in found for kind in KINDS]
    trials = min(entry["trials"] for entry in found.values())
    lines += [
        "",
        f"{trials} trials a cell, and {4 * trials} where they gave less than {LOOK_CLOSER}: a coverage of 0.95 is "
        f"known to {np.sqrt(0.95 * 0.05 / trials):.3f} and {np.sqrt(0.95 * 0.05 / 4 / trials):.3f}. "
        f"The lowest is {min(covered):.3f}, the mean "
        f"{np.mean(covered):.3f}, and {sum(c < 0.93 for c in covered)} of {len(covered)} are below 0.93. Far above "
        "0.95 is the price of holding for any shape of miscalibration: the interval is then longer than it had to be.",
        "",
        "Differences between two models on the same rows; significant: p below 0.05, which where the truth is 0 is the "
        "share of false alarms.",
        "",
        "| classes | pair | rows | truth | plain | mean interval | coverage | significant | truth | plain "
        "| mean interval | coverage | significant |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|---:|---|---:|---:|",
        "| | **class-wise →** | | | | | | | **top-label →** | | | | |",
    ]
    for key, function, name, c, n in (cell for cell in cells() if cell[0] in found):
        if function is run_pair:
            lines.append(f"| {c} | {name} | {n:,} | " + " | ".join(_paired(found[key][kind]) for kind in KINDS) + " |")
    lines += _seeded_lines(found)
    return "\n".join(lines) + "\n"


def _seeded_lines(found: dict[str, Any]) -> list[str]:
    """Means over seeds and differences between methods over seeds."""
    there = [cell for cell in cells() if cell[1] is run_seeds and cell[0] in found]
    if not there:
        return []
    titles = [title for shown in SEEDED_METRICS for title in (shown, "difference")]
    lines = [
        "",
        "Several seeds, three classes: coverage of the mean over seeds and of its difference from another method, over "
        "seeds and rows together. Every trial draws new seeds and new rows; the truth is the mean over all of them.",
        "",
        f"| methods | seeds | rows | {' | '.join(titles)} |",
        "|---|---:|---:|" + "---:|" * len(titles),
    ]
    every = []
    for key, _, name, n_seeds, n in there:
        kinds = [kind for shown in SEEDED_METRICS for kind in (shown, f"{shown}, difference")]
        held = [found[key][kind]["coverage"] for kind in kinds]
        every += held
        lines.append(f"| {name} | {n_seeds} | {n:,} | " + " | ".join(f"{share:.3f}" for share in held) + " |")
    trials = min(found[key]["trials"] for key, *_ in there)
    lowest = (
        f"{trials} trials a cell: a coverage of 0.95 is known to {np.sqrt(0.95 * 0.05 / trials):.3f}. The lowest is "
        f"{min(every):.3f}, and {sum(c < 0.93 for c in every)} of {len(every)} are below 0.93."
    )
    return [*lines, "", lowest]


def _single(e: dict[str, float]) -> str:
    span = f"{e['low']:.3f} – {e['high']:.3f}"
    return f"{e['truth']:.3f} | {e['plain']:.3f} | {e['floor']:.3f} | {span} | {e['coverage']:.3f}"


def _paired(e: dict[str, float]) -> str:
    span = f"{e['low']:+.3f} – {e['high']:+.3f}"
    return f"{e['truth']:+.3f} | {e['plain']:+.3f} | {span} | {e['coverage']:.3f} | {e['significant']:.3f}"


def _coverages(entry: dict[str, Any]) -> list[float]:
    return [figures["coverage"] for figures in entry.values() if isinstance(figures, dict)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=250)
    trials = parser.parse_args().trials
    found: dict[str, Any] = json.loads(RAW.read_text()) if RAW.exists() else {}
    for key, function, name, n_classes, n_rows in cells():
        for wanted in (trials,) if function is run_seeds else (trials, 4 * trials):
            lowest = min(_coverages(found[key])) if key in found else 0.0
            if found.get(key, {}).get("trials", 0) < wanted and lowest < LOOK_CLOSER:
                found[key] = function(name, n_classes, n_rows, wanted) | {"trials": wanted}
                RAW.write_text(json.dumps(found, indent=1) + "\n")
                print(key, *_coverages(found[key]), flush=True)
    TABLE.write_text(table(found))


if __name__ == "__main__":
    main()
