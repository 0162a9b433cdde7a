"""What a person should do with the models of a run, in three sentences, from the calibration split alone.

Is the baseline over- or underconfident, which row of the table to use, and did energy training help. The choice is by
cross-validated negative log-likelihood on the calibration rows: test rows are for judging, not for choosing.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax

from ebmcal.calibrators import TemperatureScaling
from ebmcal.calibrators.base import logits_in
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder

#: Rows that temperature is fitted on and judged on in turns.
FOLDS = 5

#: A temperature between these is neither over- nor underconfident.
CALM = (0.9, 1.1)

#: A temperature beyond these has run to its bound: the rows do not say what it should be.
BOUNDS = (0.02, 50.0)

#: Fewer calibration rows than this say little.
FEW_ROWS = 100


@dataclass(frozen=True)
class Candidate:
    """A method, plain or with temperature: the losses [n] of the calibration rows, averaged over its seeds."""

    method: str
    with_temperature: bool
    losses: np.ndarray
    accuracy: float
    temperature: float

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


def advise(folder: RunFolder, cells: Sequence[Cell]) -> dict[str, Any] | None:
    """Candidates, best first, the one to use, and sentences; None where no cell has enough calibration rows."""
    by_method: dict[str, list[Predictions]] = {}
    for cell in cells:
        rows = Predictions.read(folder.predictions(cell, "calibration")).labelled()
        if rows.n_rows >= 2 * FOLDS:
            by_method.setdefault(cell.method, []).append(rows)
    if not by_method:
        return None
    found = [candidate for method, runs in by_method.items() for candidate in candidates(method, runs)]
    chosen = choose(found)
    labels = next(iter(by_method.values()))[0].labels
    largest = float(np.bincount(labels).max() / len(labels))
    return {
        "n_rows": len(labels),
        "chosen": chosen.title,
        "candidates": [candidate.to_json() for candidate in sorted(found, key=lambda candidate: candidate.nll)],
        "sentences": sentences(found, chosen, largest),
    }


def choose(found: Sequence[Candidate]) -> Candidate:
    """The first, in the order given, that these rows cannot tell from the best: the simpler of two equals."""
    best = min(found, key=lambda candidate: candidate.nll)
    return next(candidate for candidate in found if gap(candidate, best)[0] <= gap(candidate, best)[1])


def gap(one: Candidate, other: Candidate) -> tuple[float, float]:
    """Mean difference in NLL on the same rows, and how large it must be to be more than chance."""
    difference = one.losses - other.losses
    return float(difference.mean()), float(1.96 * difference.std(ddof=1) / np.sqrt(len(difference)))


def candidates(method: str, runs: Sequence[Predictions]) -> list[Candidate]:
    """A method plain and with temperature, each seed by itself, averaged."""
    plain = np.mean([_losses(logits_in(run), run.labels) for run in runs], axis=0)
    fits = [_cross_validated(logits_in(run), run.labels) for run in runs]
    scaled, temperature = np.mean([losses for losses, _ in fits], axis=0), float(np.mean([t for _, t in fits]))
    accuracy = float(np.mean([(run.predicted() == run.labels).mean() for run in runs]))
    found = [Candidate(method, False, plain, accuracy, temperature)]
    if all(BOUNDS[0] < t < BOUNDS[1] for _, t in fits):
        found.append(Candidate(method, True, scaled, accuracy, temperature))
    return found


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
        beside = f" ({base.title}: {base.nll:.3f} and {base.accuracy:.3f})" if base and base is not chosen else ""
        said.append(
            f"Use {chosen.title}: cross-validated NLL {chosen.nll:.3f}, accuracy {chosen.accuracy:.3f}{beside} on "
            f"{len(chosen.losses):,} calibration rows; nothing simpler does as well."
        )
        others = [c for c in found if not c.with_temperature and c.method != "baseline"]
        said += [_effect(min(others, key=lambda c: c.nll), base)] if base and others else []
    if len(chosen.losses) < FEW_ROWS:
        said.append(f"{len(chosen.losses)} calibration rows are few: another draw of them may advise otherwise.")
    return said


def _confidence(base: Candidate) -> str:
    t = base.temperature
    if not BOUNDS[0] < t < BOUNDS[1]:
        return f"These rows do not say which temperature {base.method} needs: the fit ran to its bound."
    if t > CALM[1]:
        return f"{base.method} is overconfident: the temperature that mends it is {t:.2f}."
    if t < CALM[0]:
        return (
            f"{base.method} is underconfident: the temperature that mends it is {t:.2f}. Training it longer (--epochs) "
            "may mend it too; energy training by itself lowers confidence further."
        )
    return f"{base.method} is neither over- nor underconfident: the temperature that mends it is {t:.2f}."


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
