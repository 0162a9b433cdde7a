"""`fit_rule`: labelled predictions for rows that the model was not trained on → a `Rule` with its promises.

Each part holds for texts drawn like the calibration rows, and is refused where the rows are too few to promise it.
"""

from typing import Any

from ebmcal.decisions.conformal import SETS, kept_scores
from ebmcal.decisions.risk import PLAN_EVERY, find_threshold, least_rows, plan_thresholds, refusal, split_rows
from ebmcal.decisions.rule import Abstention, LabelSets, Rule
from ebmcal.decisions.scores import SCORES, fit_score
from ebmcal.decisions.unusual import ENERGY, NEAREST, UNUSUAL_BY, TrainingFeatures, Unusual, unusual_scores
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions import Predictions

FALSE_ALARMS = 0.05


def fit_rule(
    predictions: Predictions,
    *,
    max_error: float | None = None,
    confidence: float = 0.9,
    score: str = "confidence",
    coverage: float | None = None,
    sets: str = "split",
    false_alarms: float | None = None,
    unusual_by: str | None = None,
    training: TrainingFeatures | None = None,
    seed: int = 0,
) -> Rule:
    """A rule from labelled predictions for rows that the model was not trained on.

    - `max_error`: answer only where at most this share of the answers is wrong, a promise that is kept with
      probability `confidence` over the drawing of the rows; by `score`: confidence, energy or both.
    - `coverage`: label sets that hold the right label with this probability; `sets="class-conditional"`: in each class.
    - `false_alarms`: the share of usual texts that may be called unusual. Left open, 0.05 where there are scores and
      rows enough. `unusual_by`: energy, or knn or mahalanobis, of which the predictions then have distances, measured
      from the features of `training` texts, which the rule keeps. Left open, knn with such features, else energy.

    >>> rows = Predictions([0, 1] * 100, ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]] * 100)
    >>> fit_rule(rows, max_error=0.05, coverage=0.9).sets.kind
    'split'
    """
    check_settings(max_error, confidence, coverage, false_alarms, score, sets, unusual_by)
    if predictions.meta.get("split") == "train":
        raise EbmcalError("These are predictions for training rows, which flatter the model. Give held-out rows.")
    rows = predictions.labelled()
    parts: dict[str, Any] = {}
    if max_error is not None:
        parts["abstention"] = _fit_abstention(rows, score, max_error, confidence, seed)
    if coverage is not None:
        parts["sets"] = LabelSets(sets, coverage, _limits(rows, sets, coverage))
    if (unusual := _fit_unusual(predictions, false_alarms, seed, unusual_by, training)) is not None:
        parts["unusual"] = unusual
    if not parts:
        raise EbmcalError("Nothing was asked for: give max_error (--max-error), coverage or false_alarms.")
    return Rule(rows.label_names, rows.n_rows, calibrated_by=predictions.meta.get("calibrator"), **parts)


def check_settings(
    max_error: float | None,
    confidence: float,
    coverage: float | None,
    false_alarms: float | None,
    score: str,
    sets: str,
    unusual_by: str | None = None,
) -> None:
    """Refuse shares that are none, and unknown names, before any work."""
    shares = {"max_error": max_error, "confidence": confidence, "coverage": coverage, "false_alarms": false_alarms}
    for name, value in shares.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < 1):
            flag = "--" + name.replace("_", "-")
            raise EbmcalError(f"{name} ({flag}) is {value!r}; a share above 0 and below 1 is needed, such as 0.05.")
    if score not in SCORES:
        raise unknown_name("score", score, SCORES)
    if sets not in SETS:
        raise unknown_name("kind of sets", sets, SETS)
    if unusual_by is not None and unusual_by not in UNUSUAL_BY:
        raise unknown_name("score of unusual texts (--unusual-by)", unusual_by, UNUSUAL_BY)


def _fit_abstention(rows: Predictions, score: str, max_error: float, confidence: float, seed: int) -> Abstention:
    plan, test = split_rows(rows.n_rows, seed)
    needed = least_rows(max_error, confidence)
    if len(test) < needed or not len(plan):
        total = -(-needed * PLAN_EVERY // (PLAN_EVERY - 1)) + 1
        raise EbmcalError(
            f"{rows.n_rows:,} rows cannot promise an error of at most {max_error:g} at confidence {confidence:g}: "
            f"{max(total, PLAN_EVERY):,} labelled rows are the least, if no answer among them is wrong. Give more "
            "rows, a larger max_error (--max-error) or a smaller confidence (--confidence)."
        )
    fitted = fit_score(score, rows.rows(plan))
    scores, wrong = fitted(rows), rows.predicted() != rows.labels
    levels = plan_thresholds(scores[plan], wrong[plan], len(test), max_error)
    promise = find_threshold(scores[test], wrong[test], levels, max_error, confidence)
    if promise is None:
        raise refusal(scores, wrong, max_error, confidence)
    return Abstention(fitted, promise)


def _limits(rows: Predictions, sets: str, coverage: float) -> tuple[float, ...]:
    return tuple(SETS[sets](rows.probabilities(), rows.labels, coverage).tolist())


def _fit_unusual(
    predictions: Predictions,
    false_alarms: float | None,
    seed: int,
    asked: str | None,
    training: TrainingFeatures | None,
) -> Unusual | None:
    """The part for unusual texts; where nobody asked for it and it cannot be had, there is none."""
    by = asked or (ENERGY if training is None else NEAREST)
    try:
        rate = FALSE_ALARMS if false_alarms is None else false_alarms
        return Unusual(rate, kept_scores(unusual_scores(by, predictions), rate, seed), by, training)
    except EbmcalError:
        if false_alarms is not None or asked not in (None, ENERGY):
            raise
        return None
