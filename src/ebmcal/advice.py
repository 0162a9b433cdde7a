"""What a person should do with the models of a run, in three sentences, from the calibration split alone.

Is the baseline over- or underconfident, which row of the table to use, and did energy training help. The choice is by
cross-validated negative log-likelihood on the calibration rows: test rows are for judging, not for choosing.
"""

import warnings
from collections.abc import Mapping, Sequence
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
    """Candidates, best first, and sentences for a person; None where no cell has labelled calibration rows."""
    by_method: dict[str, list[Predictions]] = {}
    for cell in cells:
        rows = Predictions.read(folder.predictions(cell, "calibration")).labelled()
        if rows.n_rows >= 2 * FOLDS:
            by_method.setdefault(cell.method, []).append(rows)
    if not by_method:
        return None
    found = [candidate for method, runs in by_method.items() for candidate in candidates(method, runs)]
    found.sort(key=lambda candidate: candidate.nll)
    return {
        "n_rows": len(found[0].losses),
        "candidates": [candidate.to_json() for candidate in found],
        "sentences": sentences({candidate.title: candidate for candidate in found}),
    }


def candidates(method: str, runs: Sequence[Predictions]) -> list[Candidate]:
    """A method plain and with temperature, each seed by itself, averaged."""
    plain = np.mean([_losses(logits_in(run), run.labels) for run in runs], axis=0)
    fits = [_cross_validated(logits_in(run), run.labels) for run in runs]
    scaled, temperature = np.mean([losses for losses, _ in fits], axis=0), float(np.mean([t for _, t in fits]))
    accuracy = float(np.mean([(run.predicted() == run.labels).mean() for run in runs]))
    return [
        Candidate(method, False, plain, accuracy, temperature),
        Candidate(method, True, scaled, accuracy, temperature),
    ]


def sentences(found: Mapping[str, Candidate]) -> list[str]:
    """What the candidates, best first, mean for a person."""
    best, base = next(iter(found.values())), found.get("baseline")
    said = [_confidence(base or best)]
    beside = f", {base.title} {base.nll:.3f} and {base.accuracy:.3f}" if base and base is not best else ""
    said.append(
        f"Use {best.title}: cross-validated NLL {best.nll:.3f}, accuracy {best.accuracy:.3f}{beside}, "
        f"on {len(best.losses):,} calibration rows."
    )
    others = [c for c in found.values() if not c.with_temperature and c.method != "baseline"]
    said += [_effect(min(others, key=lambda c: c.nll), base)] if base and others else []
    if len(best.losses) < FEW_ROWS:
        said.append(f"{len(best.losses)} calibration rows are few: another draw of them may advise otherwise.")
    return said


def _confidence(base: Candidate) -> str:
    t = base.temperature
    if t > CALM[1]:
        return f"{base.method} is overconfident: the temperature that mends it is {t:.2f}."
    if t < CALM[0]:
        return (
            f"{base.method} is underconfident: the temperature that mends it is {t:.2f}. Train it longer (--epochs), "
            "or use temperature; energy training lowers confidence and is the wrong tool here."
        )
    return f"{base.method} is neither over- nor underconfident: the temperature that mends it is {t:.2f}."


def _effect(other: Candidate, base: Candidate) -> str:
    gap = other.losses - base.losses
    mean, error = gap.mean(), gap.std(ddof=1) / np.sqrt(len(gap))
    accuracy = f"accuracy {other.accuracy - base.accuracy:+.3f}"
    size = f"NLL {mean:+.3f} ± {1.96 * error:.3f} against the baseline's, {accuracy}"
    if abs(mean) <= 1.96 * error:
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
