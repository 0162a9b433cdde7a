"""Recommendations in sentences: is a model over- or underconfident, and which model and calibrator of a run to use.

`recommend` uses calibration rows or out-of-fold predictions only: test rows are for evaluation, not for selection.
The criterion is the cross-validated negative log-likelihood; a simpler model wins unless it is clearly worse.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, stdtrit

from ebmcal.calibration.leakage import logits_in
from ebmcal.calibration.scaling import fit_temperature
from ebmcal.errors import plural
from ebmcal.methods import METHODS
from ebmcal.metrics.calibration import N_BINS
from ebmcal.metrics.classification import confidence_and_correct
from ebmcal.metrics.comparison import StandardError
from ebmcal.predictions import Predictions
from ebmcal.run_dir import FROZEN_PROBE, Trial

#: Split to select on, in this order → the name of its rows and the label of a calibrator fitted on it.
SELECTION = {"out_of_fold": ("out-of-fold", "cross-fit"), "calibration": ("calibration", "dev")}

#: The temperature is fitted and evaluated on these folds of the rows.
N_FOLDS = 5
#: A temperature beyond these reached its bound: the rows do not determine it.
TEMPERATURE_BOUNDS = (0.02, 50.0)
#: Fewer rows than this make a recommendation uncertain.
FEW_ROWS = 100

#: Users read a few sentences.
MAX_SENTENCES = 6


@dataclass(frozen=True)
class ConfidenceGap:
    """Mean confidence minus accuracy on some rows, with the margin of its 95% interval.

    >>> gap = confidence_gap(np.zeros(100, dtype=int), np.tile([0.9, 0.1], (100, 1)))
    >>> round(gap.difference, 3), gap.verdict
    (-0.1, 'underconfident')
    """

    confidence: float
    accuracy: float
    margin: float
    n_rows: int

    @property
    def difference(self) -> float:
        return self.confidence - self.accuracy

    @property
    def verdict(self) -> str | None:
        """ "overconfident" or "underconfident" if the difference is significant, otherwise None."""
        if abs(self.difference) <= self.margin:
            return None
        return "overconfident" if self.difference > 0 else "underconfident"

    def describe(self, name: str, rows: str = "row") -> str:
        """The verdict on a model as a sentence.

        >>> ConfidenceGap(0.95, 0.96, 0.08, 26).describe("baseline")
        'baseline: no clear miscalibration on 26 rows (mean confidence 95.0%, accuracy 96.0%).'
        """
        numbers = f"mean confidence {self.confidence:.1%}, accuracy {self.accuracy:.1%}"
        if self.verdict is None:
            return f"{name}: no clear miscalibration on {plural(self.n_rows, rows)} ({numbers})."
        size = f"{100 * abs(self.difference):.1f} ± {100 * self.margin:.1f} points"
        return f"{name} is {self.verdict} by {size}: {numbers} on {plural(self.n_rows, rows)}."


def confidence_gap(labels: np.ndarray, probs: np.ndarray) -> ConfidenceGap:
    """Compare the mean confidence with the accuracy of labels [n] and probabilities [n, C].

    The standard error is the larger of two: that of the observed differences, and that of a calibrated model with these
    confidences, so that rows that are all correct do not prove underconfidence.
    """
    confidence, correct = confidence_and_correct(labels, probs)
    n = len(labels)
    observed = float(np.var(confidence - correct, ddof=1)) if n > 1 else np.inf
    calibrated = float((confidence * np.maximum(1 - confidence, 0.0)).mean())
    margin = float(stdtrit(max(n - 1, 1), 0.975) * np.sqrt(max(observed, calibrated) / n))
    return ConfidenceGap(float(confidence.mean()), float(correct.mean()), margin, n)


@dataclass(frozen=True)
class Advice:
    """The recommended trial and calibrator, the sentences for the user, and the numbers behind them."""

    trial: Trial
    calibrator: str | None  # such as "temperature (dev)"
    sentences: tuple[str, ...]
    evidence: tuple[Mapping[str, Any], ...] = ()  # one entry per candidate, best first
    rows: str = "calibration"  # the rows that the choice is based on
    n_rows: int = 0
    has_learned: bool = True  # whether a model is more accurate than the most frequent class

    def __post_init__(self) -> None:
        object.__setattr__(self, "sentences", shorten(self.sentences))

    def to_json(self) -> dict[str, Any]:
        """The advice as JSON values."""
        return asdict(self) | {"trial": self.trial.name, "sentences": list(self.sentences)}


def shorten(sentences: Iterable[str]) -> tuple[str, ...]:
    """The first of the sentences; models to calibrate come first."""
    ordered = sorted(dict.fromkeys(sentences), key=lambda sentence: "Calibrate it" not in sentence)
    return tuple(ordered[:MAX_SENTENCES])


def is_action(sentence: str) -> bool:
    """Whether a sentence says what to do, not only what was found.

    >>> is_action("Only 3 rows. Give more."), is_action("Only 3 rows.")
    (True, False)
    """
    return bool(re.search(r"(^|[.?] )(Use|Give|Pass|Train|Calibrate|Write|If so, run)\b", sentence))


def label_issue_advice(n: int) -> str:
    """What to do about n training rows that out-of-fold predictions contradict.

    >>> label_issue_advice(1)
    'Check 1 training row whose label may be wrong. Wrong labels also make the fitted temperature too high.'
    """
    rows = "training row whose label" if n == 1 else "training rows whose labels"
    return f"Check {n:,} {rows} may be wrong. Wrong labels also make the fitted temperature too high."


@dataclass(frozen=True)
class Candidate:
    """A method with or without temperature scaling; losses [n] of the rows, averaged over seeds."""

    method: str
    calibrator: str | None
    losses: np.ndarray
    by_seed: tuple[float, ...]  # NLL of each seed
    temperature: float
    gap: ConfidenceGap  # of the uncalibrated first seed
    accuracy: float
    confidence: float  # the mean over rows and seeds

    @property
    def name(self) -> str:
        return f"{self.method} + {self.calibrator}" if self.calibrator else self.method

    @property
    def nll(self) -> float:
        return float(self.losses.mean())

    def to_json(self) -> dict[str, Any]:
        numbers = {"nll": self.nll, "accuracy": self.accuracy, "temperature": self.temperature}
        return {"model": self.method, "calibrator": self.calibrator, **{k: round(v, 4) for k, v in numbers.items()}}

    def effect(self, other: "Candidate") -> str:
        """What this model changes compared with another one."""
        difference, margin = self.minus(other)
        return "made no clear difference" if abs(difference) <= margin else "helped" if difference < 0 else "hurt"

    def minus(self, other: "Candidate") -> tuple[float, float]:
        """The difference in NLL on the same rows, and the margin of its 95% interval over rows and seeds."""
        difference = self.losses - other.losses
        is_paired = len(self.by_seed) == len(other.by_seed)
        seeds = [a - b for a, b in zip(self.by_seed, other.by_seed, strict=True)] if is_paired else []
        variance = float(difference.var(ddof=1)) / len(difference)
        return float(difference.mean()), StandardError.from_variances(variance, seeds, len(difference)).margin


def recommend(predictions: Mapping[Trial, Mapping[str, Predictions]]) -> Advice:
    """Choose a trial and a calibrator from the out-of-fold or calibration rows of the trials of a run.

    `predictions` maps each trial to its splits.
    """
    predictions = {trial: predictions[trial] for trial in sorted(predictions, key=_simplicity)}
    first = next(iter(predictions))
    split = next((s for s in SELECTION if any(s in splits for splits in predictions.values())), None)
    if split is None:
        sentence = "There are no calibration rows, so no model can be recommended. Pass some (--calibration FILE)."
        return Advice(first, None, (sentence,))
    predictions = {trial: splits for trial, splits in predictions.items() if split in splits}  # others are unfinished
    rows, suffix = SELECTION[split]
    runs = _labelled_runs({trial: splits[split] for trial, splits in predictions.items()})
    if not runs:
        return Advice(first, None, (f"No {rows} row has a label, so no model can be recommended.",), rows=rows)
    known = runs[first.method][0]
    if problem := _unusable(known, rows):
        return Advice(first, None, (problem,), rows=rows, n_rows=known.n_rows)
    found = [c for method, seeds in runs.items() for c in make_candidates(method, seeds, f"temperature ({suffix})")]
    if not _has_learned(found, known):  # more extreme probabilities would not be justified
        found = [c for c in found if c.calibrator is None or c.temperature >= 1]
    # A temperature has one parameter and changes no label: a method is used with it if that lowers the NLL.
    by_method = [min((c for c in found if c.method == method), key=lambda c: c.nll) for method in runs]
    # The simpler of two equals: the first method that is not clearly worse than the best.
    best = min(by_method, key=lambda c: c.nll)
    chosen = next(c for c, (worse, margin) in ((c, c.minus(best)) for c in by_method) if worse <= margin)
    n_test = next((splits["test"].n_rows for splits in predictions.values() if "test" in splits), None)
    sentences = tuple(_sentences(found, chosen, known, rows, n_test))
    trial = next(trial for trial in predictions if trial.method == chosen.method)
    evidence = tuple(c.to_json() for c in sorted(found, key=lambda c: c.nll))
    return Advice(trial, chosen.calibrator, sentences, evidence, rows, known.n_rows, _has_learned(found, known))


def _simplicity(trial: Trial) -> tuple[bool, bool, bool, int]:
    """A sort key: the baseline, other methods without noise, methods with noise, the frozen probe; then by seed."""
    uses_noise = trial.method in METHODS and METHODS[trial.method].uses_noise
    return trial.method == FROZEN_PROBE, uses_noise, trial.method != "baseline", trial.seed


def _labelled_runs(predictions: Mapping[Trial, Predictions]) -> dict[str, list[Predictions]]:
    """Method → the predictions of its seeds, for the labelled rows that all trials share, in the same order."""
    first, *others = predictions.values()
    if all(np.array_equal(first.ids, other.ids) for other in others):  # also right if ids repeat
        places = [np.flatnonzero(first.labels >= 0)] * len(predictions)
    else:
        positions = [{row: i for i, row in enumerate(p.ids.tolist()) if p.labels[i] >= 0} for p in predictions.values()]
        shared = [row for row in positions[0] if all(row in other for other in positions)]
        places = [np.array([found[row] for row in shared], dtype=int) for found in positions]
    runs: dict[str, list[Predictions]] = {}
    for (trial, rows), place in zip(predictions.items(), places, strict=True):
        if len(place):
            runs.setdefault(trial.method, []).append(rows.rows(place))
    return runs


def _unusable(known: Predictions, rows: str) -> str | None:
    """Why nothing can be chosen on these rows; None if it can."""
    seen = np.unique(known.labels)
    if len(seen) < 2:
        return (
            f"All {rows} rows have the label {known.label_names[seen[0]]}: no calibrator can be fitted and no model "
            "recommended. Pass calibration rows of every class (--calibration FILE)."
        )
    if known.n_rows < 2 * N_FOLDS:
        return f"{plural(known.n_rows, f'{rows} row')}: too few to recommend a model. Give at least {2 * N_FOLDS}."
    return None


def make_candidates(method: str, seeds: Sequence[Predictions], calibrator: str) -> list[Candidate]:
    """A method as trained and, if its temperature could be fitted, with temperature scaling."""
    logits = [logits_in(rows).astype(np.float64, copy=False) for rows in seeds]
    fits = [_cross_validated(z, rows.labels) for z, rows in zip(logits, seeds, strict=True)]
    temperature = float(np.mean([t for _, t in fits]))
    gap = confidence_gap(seeds[0].labels, seeds[0].probs)
    accuracy = float(np.mean([(rows.predicted == rows.labels).mean() for rows in seeds]))

    def candidate(name: str | None, log_probs: Sequence[np.ndarray]) -> Candidate:
        losses = [-z[np.arange(rows.n_rows), rows.labels] for z, rows in zip(log_probs, seeds, strict=True)]
        by_seed = tuple(float(each.mean()) for each in losses)
        confidence = float(np.mean([np.exp(z.max(axis=1)) for z in log_probs]))
        return Candidate(method, name, np.mean(losses, axis=0), by_seed, temperature, gap, accuracy, confidence)

    is_fitted = all(_is_inside(t) for _, t in fits)
    plain = candidate(None, [log_softmax(z, axis=1) for z in logits])
    return [plain] + ([candidate(calibrator, [scaled for scaled, _ in fits])] if is_fitted else [])


def _largest(known: Predictions) -> float:
    """The share of the most frequent class."""
    return float(np.bincount(known.labels).max() / known.n_rows)


def _has_learned(found: Sequence[Candidate], known: Predictions) -> bool:
    """Whether a model is more accurate than always predicting the most frequent class."""
    return max(c.accuracy for c in found) > _largest(known)


def _sentences(
    found: Sequence[Candidate], chosen: Candidate, known: Predictions, rows: str, n_test: int | None
) -> Iterator[str]:
    """What to use, whether its confidence is right, how certain that is, and whether the energy helped."""
    if not _has_learned(found, known):
        yield (
            "No model is more accurate than always predicting the most frequent class "
            f"({_largest(known):.1%} of the {rows} rows). Train longer (--epochs) or on more rows before looking at "
            "calibration."
        )
        yield from _cautions(found, known, rows, n_test)
        return
    base = next((c for c in found if c.name == "baseline"), None)
    accuracy, confidence = f"{chosen.accuracy:.1%}", f"{chosen.confidence:.1%}"
    if base and base is not chosen:
        accuracy += f" (baseline: {base.accuracy:.1%})" if base.method != chosen.method else ""
        confidence += f" (baseline: {base.confidence:.1%})"
    is_simplest = chosen.method in (found[0].method, FROZEN_PROBE)
    simpler = "" if is_simplest else "; no simpler method is as good"
    yield (
        f"Use {chosen.name}. On {known.n_rows:,} {rows} rows it is right in {accuracy}, with a mean confidence of "
        f"{confidence}{simpler}."
    )
    yield from _frozen_probe(found, chosen)
    described = base or next(c for c in found if c.method == chosen.method)
    yield _confidence(described, next((c for c in found if c.method == described.method and c.calibrator), None), rows)
    yield from _cautions([c for c in found if c.method != described.method], known, rows, n_test)
    others = [c for c in found if c.calibrator is None and c.method not in ("baseline", FROZEN_PROBE)]
    if base and others:
        other = next((c for c in others if c.method == chosen.method), min(others, key=lambda c: c.nll))
        yield _effect(other, base, found, rows)
    if base is None:
        yield "No baseline was trained to compare with: the same command with --methods baseline adds one."


def _effect(other: Candidate, base: Candidate, found: Sequence[Candidate], rows: str) -> str:
    """What another method changes compared with the baseline, as trained and with temperature."""
    scaled = [c for m in (other, base) for c in found if c.method == m.method and c.calibrator]
    pairs = {"as trained": (other, base)}
    if len(scaled) == 2:
        pairs["with temperature"] = (scaled[0], scaled[1])
    effects: dict[str, list[str]] = {}
    for when, (ours, theirs) in pairs.items():
        is_equal = abs(ours.nll - theirs.nll) < 0.0005
        numbers = "" if is_equal else f" (NLL {ours.nll:.3f} instead of {theirs.nll:.3f})"
        effects.setdefault("made no clear difference" if is_equal else ours.effect(theirs), []).append(when + numbers)
    shown = ", but ".join(f"{effect} {' and '.join(parts)}" for effect, parts in effects.items())
    change = f"{100 * (other.accuracy - base.accuracy):+.1f}"
    accuracy = "" if change in ("+0.0", "-0.0") else f"; accuracy {change} points"
    return f"Compared with {base.method} on the {rows} rows, {other.method} {shown}{accuracy}."


def _frozen_probe(found: Sequence[Candidate], chosen: Candidate) -> Iterator[str]:
    """Whether finetuning was worth it: a sentence if the frozen probe is chosen, or right more often."""
    probe = min((c for c in found if c.method == FROZEN_PROBE), key=lambda c: c.nll, default=None)
    if probe is None or (probe.method != chosen.method and probe.accuracy <= chosen.accuracy):
        return
    if probe.method == chosen.method:
        yield (
            "It is a logistic regression on the encoder as it is: finetuning was not worth it on these rows. More rows "
            "or epochs may change that."
        )
        return
    worse, margin = probe.minus(chosen)
    reason = "its probabilities are worse" if worse > margin else "its probabilities are not clearly better"
    yield (
        f"{FROZEN_PROBE}, a logistic regression on the encoder as it is, is right in {probe.accuracy:.1%}, but "
        f"{reason} (NLL {probe.nll:.3f} against {chosen.nll:.3f}): finetuning gained little on these rows."
    )


def _confidence(plain: Candidate, scaled: Candidate | None, rows: str) -> str:
    """Whether a model is over- or underconfident, and what a temperature changes."""
    name = plain.method if len(plain.by_seed) == 1 else f"{plain.method} (first seed)"
    sentence = f"As trained, {plain.gap.describe(name, f'{rows} row')}"
    if scaled is None:
        return f"{sentence} The rows do not determine its temperature: the fit reached its bound."
    if plain.gap.verdict is None:
        gain = f"(T = {plain.temperature:.2f}) lowers the NLL from {plain.nll:.3f} to {scaled.nll:.3f}"
        effect = f"Temperature scaling {gain}." if scaled.nll < plain.nll else "A temperature does not lower the NLL."
        return f"{sentence} {effect}"
    longer = " Training longer (--epochs) may help too." if plain.gap.verdict == "underconfident" else ""
    return (
        f"{sentence} With temperature scaling (T = {plain.temperature:.2f}; cross-validated) the mean confidence is "
        f"{scaled.confidence:.1%} and the NLL {scaled.nll:.3f} instead of {plain.nll:.3f}.{longer}"
    )


def _cautions(found: Sequence[Candidate], known: Predictions, rows: str, n_test: int | None) -> Iterator[str]:
    """Reasons why numbers are weak: few rows, missing classes, temperatures at their bound."""
    few, wanted = list[str](), list[str]()
    if known.n_rows < FEW_ROWS:
        few.append(plural(known.n_rows, f"{rows} row"))
        option = "calibration" if rows == "calibration" else "train"
        wanted.append(f"{FEW_ROWS} {'calibration' if rows == 'calibration' else 'training'} rows (--{option} FILE)")
    harm = "; other rows may lead to another recommendation, and calibrators fitted on them may do harm" if few else ""
    if n_test is not None and n_test < 10 * N_BINS:
        few.append(plural(n_test, "test row"))
        wanted.append(f"{10 * N_BINS} test rows (--test FILE)")
        harm += f"; calibration errors (ECE) are mostly chance on fewer than {10 * N_BINS} test rows"
    if few:
        yield f"Only {' and '.join(few)}{harm}. Give at least {' and '.join(wanted)}."
    seen = set(known.labels.tolist())
    missing = [name for index, name in enumerate(known.label_names) if index not in seen]
    if missing:
        shown = ", ".join(missing[:5]) + (f", … ({len(missing)} labels)" if len(missing) > 5 else "")
        several = len(missing) > 1
        yield (
            f"No {rows} row has the label{'s' * several} {shown}; calibrators cannot learn about "
            f"{'them' if several else 'it'}."
        )
    bound = [c.method for c in found if c.calibrator is None and not _is_inside(c.temperature)]
    if bound:
        yield f"The temperature of {', '.join(bound)} reached its bound and is not recommended."


def _is_inside(temperature: float) -> bool:
    return TEMPERATURE_BOUNDS[0] < temperature < TEMPERATURE_BOUNDS[1]


def _cross_validated(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Log-probabilities [n, C] with a temperature fitted on the other folds, and the temperature of all rows."""
    folds = np.random.default_rng(0).permutation(len(labels)) % N_FOLDS
    scaled = np.empty(logits.shape)
    for fold in range(N_FOLDS):
        rest, held_out = folds != fold, folds == fold
        scaled[held_out] = logits[held_out] / fit_temperature(logits[rest], labels[rest])[0]
    return log_softmax(scaled, axis=1), fit_temperature(logits, labels)[0]
