"""What a person should do with the models of a run, in three sentences, from the calibration split alone.

Is the baseline over- or underconfident, which row of the table to use, and did energy training help. The choice is by
cross-validated negative log-likelihood on the calibration rows: test rows are for judging, not for choosing.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import log_softmax

from ebmcal.calibrators import TemperatureScaling
from ebmcal.calibrators.base import logits_in
from ebmcal.metrics.comparing import Spread
from ebmcal.metrics.registry import N_BINS
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder

#: Rows that temperature is fitted on and judged on in turns.
FOLDS = 5

#: A temperature between these is neither over- nor underconfident.
CALM = (0.9, 1.1)

#: A temperature beyond these has run to its bound: the rows do not say what it should be.
BOUNDS = (0.02, 50.0)

#: The energy method that lowers confidence most: first in the study with a small encoder, too much for a larger one.
FURTHER = "hidden-entropy"

#: Fewer calibration rows than this say little.
FEW_ROWS = 100

ONE_CLASS = (
    "All calibration rows are of one class ({name}): nothing can be fitted on them, temperature included, and they do "
    "not say which model to use. Give calibration rows of every class (--calibration)."
)


@dataclass(frozen=True)
class Candidate:
    """A method, plain or with temperature: the losses [n] of the calibration rows, averaged over its seeds."""

    method: str
    with_temperature: bool
    losses: np.ndarray
    accuracy: float
    temperature: float
    confidence: float = 0.0  # the mean of the largest probability, plain
    by_seed: tuple[float, ...] = ()  # NLL of each seed

    @property
    def title(self) -> str:
        return f"{self.method} + temperature (dev)" if self.with_temperature else self.method

    @property
    def nll(self) -> float:
        return float(self.losses.mean())

    def to_json(self) -> dict[str, Any]:
        return {
            "row": self.title,
            "nll": round(self.nll, 4),
            "accuracy": round(self.accuracy, 4),
            "temperature": round(self.temperature, 4),
        }


def advise(
    folder: RunFolder,
    cells: Sequence[Cell],
    n_test: int | None = None,
    not_fitted: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any] | None:
    """Candidates, best first, the one to use, and sentences; None where no cell has enough calibration rows.

    `n_test` is how many test rows there are, for the caution that they are few; `not_fitted` says of calibrators why
    they have no row.
    """
    by_method: dict[str, list[Predictions]] = {}
    for cell in cells:
        rows = Predictions.read(folder.predictions(cell, "calibration")).labelled()
        if rows.n_rows >= 2 * FOLDS:
            by_method.setdefault(cell.method, []).append(rows)
    if not by_method:
        return None
    first = next(iter(by_method.values()))[0]
    lacking = [f"{', '.join(steps)} left out: {why}" for why, steps in _by_reason(not_fitted).items()]
    if len(seen := np.unique(first.labels)) < 2:
        said = [ONE_CLASS.format(name=first.label_names[seen[0]])]
        return {"n_rows": first.n_rows, "chosen": None, "candidates": [], "sentences": said + lacking}
    found = [candidate for method, runs in by_method.items() for candidate in candidates(method, runs)]
    chosen = choose(found)
    labels = first.labels
    largest = float(np.bincount(labels).max() / len(labels))
    return {
        "n_rows": len(labels),
        "chosen": chosen.title,
        "candidates": [candidate.to_json() for candidate in sorted(found, key=lambda candidate: candidate.nll)],
        "sentences": sentences(found, chosen, largest) + cautions(found, labels, first.label_names, n_test) + lacking,
    }


def _by_reason(not_fitted: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for step, why in not_fitted.items():
        found.setdefault(why, []).append(step)
    return found


def choose(found: Sequence[Candidate]) -> Candidate:
    """The first, in the order given, that these rows cannot tell from the best: the simpler of two equals."""
    best = min(found, key=lambda candidate: candidate.nll)
    return next(candidate for candidate in found if gap(candidate, best)[0] <= gap(candidate, best)[1])


def gap(one: Candidate, other: Candidate) -> tuple[float, float]:
    """Mean difference in NLL on the same rows, and how large it must be to be more than chance of rows and seeds."""
    difference = one.losses - other.losses
    paired = len(one.by_seed) == len(other.by_seed)
    seeds = [a - b for a, b in zip(one.by_seed, other.by_seed, strict=True)] if paired else []
    spread = Spread.of_variances(float(difference.var(ddof=1)) / len(difference), seeds, len(difference))
    return float(difference.mean()), spread.reach(0.95)


def candidates(method: str, runs: Sequence[Predictions]) -> list[Candidate]:
    """A method plain and with temperature, each seed by itself, averaged."""
    plain = [_losses(logits_in(run), run.labels) for run in runs]
    fits = [_cross_validated(logits_in(run), run.labels) for run in runs]
    temperature = float(np.mean([t for _, t in fits]))
    accuracy = float(np.mean([(run.predicted() == run.labels).mean() for run in runs]))
    confidence = float(np.mean([run.probabilities().max(axis=1).mean() for run in runs]))

    def candidate(with_temperature: bool, losses: Sequence[np.ndarray]) -> Candidate:
        by_seed = tuple(float(each.mean()) for each in losses)
        mean = np.mean(losses, axis=0)
        return Candidate(method, with_temperature, mean, accuracy, temperature, confidence, by_seed)

    found = [candidate(False, plain)]
    if all(is_inside(t) for _, t in fits):
        found.append(candidate(True, [losses for losses, _ in fits]))
    return found


def is_inside(temperature: float) -> bool:
    """Whether a temperature has stayed off its bounds."""
    return BOUNDS[0] < temperature < BOUNDS[1]


def sentences(found: Sequence[Candidate], chosen: Candidate, largest_class: float) -> list[str]:
    """What the candidates mean for a person."""
    base = next((c for c in found if c.title == "baseline"), None)
    if max(c.accuracy for c in found) <= largest_class:
        said = [
            f"No model is right more often than the largest class ({largest_class:.3f} of the calibration rows): "
            "nothing was learned yet. Train longer (--epochs) or on more rows before you look at calibration."
        ]
    else:
        said = [_confidence(base or chosen)]
        beside = f" against {base.nll:.3f} of {base.title}" if base and base is not chosen else ""
        said.append(
            f"Use {chosen.title}: cross-validated NLL {chosen.nll:.3f}{beside} on {len(chosen.losses):,} calibration "
            f"rows, {_cost(chosen, base)}; nothing simpler does as well."
        )
        others = [c for c in found if not c.with_temperature and c.method != "baseline"]
        said += [_effect(min(others, key=lambda c: c.nll), base)] if base and others else []
        said += _further(others)
    return said


def _further(others: Sequence[Candidate]) -> list[str]:
    """What calibrates more than the energy methods that were trained, where they are overconfident still."""
    energies = [c for c in others if c.method in ("hidden", "hidden-smoothing") and is_inside(c.temperature)]
    if any(c.method == FURTHER for c in others) or not energies or min(c.temperature for c in energies) <= CALM[1]:
        return []
    least = min(energies, key=lambda c: c.temperature)
    return [
        f"{least.method} is overconfident still (temperature {least.temperature:.2f}): try --methods {FURTHER}, which "
        "also asks for no label on noise."
    ]


def cautions(found: Sequence[Candidate], labels: np.ndarray, names: Sequence[str], n_test: int | None) -> list[str]:
    """What makes figures weak: few calibration rows, classes that lack, temperatures at their bound, few test rows."""
    said = []
    if len(labels) < FEW_ROWS:
        said.append(
            f"{len(labels)} calibration rows are few: another draw of them may advise otherwise, and calibrators "
            "fitted on them may do harm."
        )
    absent = [str(name) for index, name in enumerate(names) if index not in set(labels.tolist())]
    if absent:
        said.append(f"No calibration row has the label {', '.join(absent[:5])}: calibrators know nothing of it.")
    bound = [
        c.method for c in found if not c.with_temperature and not is_inside(c.temperature) and c.method != "baseline"
    ]
    if bound:
        said.append(f"The temperature of {', '.join(bound)} ran to its bound and is not advised.")
    if n_test is not None and n_test < 10 * N_BINS:
        said.append(
            f"{n_test} test rows are few for {N_BINS} bins: the ECEs of the table are mostly noise. Look at NLL and "
            "Brier, or test on more rows."
        )
    return said


def _cost(chosen: Candidate, base: Candidate | None) -> str:
    """What the choice costs in accuracy."""
    if base is None or chosen.method == base.method:
        return f"accuracy {chosen.accuracy:.3f}" + (", as without it" if chosen.with_temperature else "")
    return f"accuracy {chosen.accuracy:.3f} ({chosen.accuracy - base.accuracy:+.3f} against {base.title})"


def _confidence(base: Candidate) -> str:
    t = base.temperature
    by = f"it is {base.confidence:.0%} sure on average and right in {base.accuracy:.0%}"
    if not is_inside(t):
        return f"These rows do not say which temperature {base.method} needs: the fit ran to its bound ({by})."
    if t > CALM[1]:
        return f"{base.method} is overconfident: {by}, and the temperature that mends it is {t:.2f}."
    if t < CALM[0]:
        return (
            f"{base.method} is underconfident: {by}, and the temperature that mends it is {t:.2f}. Training it longer "
            "(--epochs) may mend it too; energy training by itself lowers confidence further."
        )
    return f"{base.method} is neither over- nor underconfident: {by}, and the temperature that mends it is {t:.2f}."


def _effect(other: Candidate, base: Candidate) -> str:
    mean, least = gap(other, base)
    accuracy = f"accuracy {other.accuracy - base.accuracy:+.3f}"
    size = f"NLL {mean:+.3f} ± {least:.3f} against the baseline's, {accuracy}, both without temperature"
    if abs(mean) <= least:
        return f"{other.method} made no difference that these rows can show ({size})."
    return f"{other.method} {'helped' if mean < 0 else 'hurt'} ({size})."


def _losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(labels)), labels]


def _cross_validated(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Losses [n] after a temperature that was fitted on the other folds, and the temperature of all rows."""
    fold = np.random.default_rng(0).permutation(len(labels)) % FOLDS
    losses = np.empty(len(labels))
    for f in range(FOLDS):
        temperature = _temperature(logits[fold != f], labels[fold != f])
        losses[fold == f] = _losses(logits[fold == f] / temperature, labels[fold == f])
    return losses, _temperature(logits, labels)


def _temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows are said once, at the end
        return TemperatureScaling().fit(logits, labels).temperature_
