"""`fit_abstention`: labelled predictions for rows that the model was not trained on → an `AbstentionRule`.

Each guarantee holds for texts from the same distribution as the calibration rows, and is refused if these are too few.
With a model, the rule is bound to its weights and its calibrator.
"""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.calibration.leakage import distinct_rows
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.selective.conformal import SETS, cut_off, stored_scores
from ebmcal.selective.ood import DISTANCES, OOD_SCORES, OodTest, TrainingFeatures, ood_scores_of
from ebmcal.selective.risk_control import Guarantee, fit_threshold, least_rows, split_rows
from ebmcal.selective.rule import AbstentionRule, LabelSets
from ebmcal.selective.sample_size import refusal
from ebmcal.selective.scores import SCORES, Score, fit_score
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.model import Model

#: False-positive rate of the OOD test if none is given.
OOD_RATE = 0.05


def fit_abstention(
    predictions: Predictions | PathLike,
    *,
    max_error: float | None = None,
    confidence: float = 0.9,
    score: str = "confidence",
    coverage: float | None = None,
    sets: str = "split",
    ood: float | None = None,
    ood_score: str | None = None,
    answer_ood: bool = False,
    model: "Model | PathLike | None" = None,
    training: Any = None,
    normalize: bool = False,
    seed: int = 0,
) -> AbstentionRule:
    """An abstention rule from labelled predictions for rows that the model was not trained on.

    - `max_error`: answer only if at most this share of the answers is wrong, with probability `confidence` over the
      drawing of the rows; by `score`: confidence, energy or both.
    - `coverage`: label sets that contain the true label with this probability; `sets="class-conditional"`: in each
      class.
    - `ood`: the share of in-distribution texts that may be flagged as OOD, 0 for no OOD test; by default 0.05 if there
      are enough rows. `ood_score`: knn or mahalanobis (distances to `training` texts, which need a model), energy or
      max_prob; by default knn if training texts are known, else energy. The rule abstains on OOD texts, unless
      `answer_ood`.
    - `model`: a `Model` or a model directory that made these uncalibrated predictions; its calibrator is applied first
      and the rule is bound to both. `training`: its training texts (a file, table or `Predictions`; by default those of
      the run that the model belongs to). Without a model, the rule is for predictions as they are in the file.

    >>> rows = Predictions([0, 1] * 100, ("no", "yes"), probs=np.repeat([[0.9, 0.1], [0.4, 0.6]], 100, 0)[::-1])
    >>> fit_abstention(rows, coverage=0.9, ood=0).sets.kind
    'split'
    """
    check_settings(max_error, confidence, coverage, ood, score, sets, ood_score)
    settings: dict[str, Any] = {"max_error": max_error, "confidence": confidence, "score": score, "coverage": coverage}
    settings |= {"sets": sets, "ood": ood, "ood_score": ood_score, "answer_ood": answer_ood, "seed": seed}
    if model is not None:
        from ebmcal.selective.for_model import fit_for_model

        return fit_for_model(model, predictions, training, normalize, settings)
    if training is not None:
        raise EbmcalError("training (--training) needs a model, which measures distances from these texts.")
    rows = predictions if isinstance(predictions, Predictions) else Predictions.read(predictions, normalize=normalize)
    return fit_rule(rows, **settings)


def check_settings(
    max_error: float | None,
    confidence: float,
    coverage: float | None,
    ood: float | None,
    score: str,
    sets: str,
    ood_score: str | None,
) -> None:
    """Raise for shares outside 0..1 and unknown names, before any work."""
    shares = {"max_error": max_error, "confidence": confidence, "coverage": coverage, "ood": ood or None}
    for name, value in shares.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < 1):
            flag = "--" + name.replace("_", "-")
            raise EbmcalError(f"{name} ({flag}): expected a share between 0 and 1, such as 0.05, got {value!r}.")
    for kind, given, table in (("score", score, SCORES), ("kind of sets", sets, SETS)):
        if given not in table:
            raise unknown_name(kind, given, table)
    if ood_score is not None and ood_score not in OOD_SCORES:
        raise unknown_name("OOD score (--ood-score)", ood_score, OOD_SCORES)


def fit_rule(
    predictions: Predictions,
    *,
    max_error: float | None,
    confidence: float,
    score: str,
    coverage: float | None,
    sets: str,
    ood: float | None,
    ood_score: str | None,
    answer_ood: bool,
    seed: int,
    features: TrainingFeatures | None = None,
) -> AbstentionRule:
    """The rule for predictions as they are; see `fit_abstention`."""
    if predictions.meta.get("split") in ("train", "out_of_fold"):
        raise EbmcalError("These are predictions for training rows, which are too optimistic. Pass held-out rows.")
    rows = predictions.labelled()
    if max_error is not None:
        _check_enough(rows, max_error, confidence)
    groups = distinct_rows(rows)
    _warn_of_duplicates(groups)
    rule = AbstentionRule(rows.label_names, int(groups.max()) + 1, calibrated_by=predictions.meta.get("calibrator"))
    test = None if ood == 0 else _fit_ood(predictions, ood, ood_score, features, seed)
    rule = replace(rule, ood=test, answer_ood=answer_ood)
    if coverage is not None:
        rule = replace(rule, sets=LabelSets(sets, coverage, _fit_limits(rows, groups, sets, coverage)))
    if max_error is not None:
        allowed = np.ones(rows.n_rows, dtype=bool)
        if test is not None and not answer_ood:
            allowed = test.below_cut_off(ood_scores_of(test.score, rows), seed)
        fitted, guarantee = _fit_guarantee(rows.rows(allowed), groups[allowed], score, max_error, confidence, seed)
        rule = replace(rule, score=fitted, guarantee=guarantee)
    if rule.guarantee is None and rule.sets is None and rule.ood is None:
        raise EbmcalError("No guarantee requested: pass max_error (--max-error), coverage or ood.")
    return rule


def _check_enough(rows: Predictions, max_error: float, confidence: float) -> None:
    needed = least_rows(max_error, confidence)
    if rows.n_rows < needed:
        raise EbmcalError(
            f"{rows.n_rows:,} rows do not support an error of at most {max_error:g} at confidence {confidence:g}: at "
            f"least {needed:,} labelled rows are needed, and more if any answer is wrong. Pass more rows, a larger "
            "max_error (--max-error) or a smaller confidence (--confidence)."
        )


def _warn_of_duplicates(groups: np.ndarray) -> None:
    n_copies = len(groups) - int(groups.max()) - 1
    if n_copies:
        warnings.warn(
            f"{n_copies:,} of {len(groups):,} rows are exact duplicates. Guarantees are also tested with each counted "
            "once.",
            stacklevel=4,
        )


def _first_rows(groups: np.ndarray) -> np.ndarray:
    """Positions of the distinct rows."""
    return np.unique(groups, return_index=True)[1]


def _fit_guarantee(
    rows: Predictions, groups: np.ndarray, name: str, max_error: float, confidence: float, seed: int
) -> tuple[Score, Guarantee]:
    distinct, groups = np.unique(groups, return_inverse=True)
    if len(distinct) < least_rows(max_error, confidence):
        _check_enough(rows.rows(_first_rows(groups)), max_error, confidence)
    first = _first_rows(groups)
    score = fit_score(name, rows.rows(first[split_rows(len(first), seed)[0]]))
    scores, wrong = score(rows), rows.predicted != rows.labels
    guarantee = fit_threshold(scores, wrong, groups, max_error, confidence, seed)
    if guarantee is None:
        raise refusal(scores[first], wrong[first], max_error, confidence)
    return score, guarantee


def _fit_limits(rows: Predictions, groups: np.ndarray, sets: str, coverage: float) -> tuple[float, ...]:
    """The limits from all rows and from distinct rows, whichever is larger."""
    first = _first_rows(groups)
    limits = SETS[sets](rows.probs[first], rows.labels[first], coverage)
    if len(first) < len(groups):
        limits = np.maximum(limits, SETS[sets](rows.probs, rows.labels, coverage))
    return tuple(limits.tolist())


def _fit_ood(
    predictions: Predictions, ood: float | None, name: str | None, features: TrainingFeatures | None, seed: int
) -> OodTest | None:
    """The OOD test; None if nobody asked for it and it is not possible."""
    chosen = name or ("energy" if features is None else "knn")
    rate = OOD_RATE if ood is None else ood
    try:
        scores = ood_scores_of(chosen, predictions)
        first = _first_rows(distinct_rows(predictions))
        stored = stored_scores(scores[first], rate, seed)
        if len(first) < len(scores):  # from all rows and from distinct rows, whichever flags less
            everything = stored_scores(scores, rate, seed)
            stored = max(stored, everything, key=lambda values: cut_off(values, rate)[0])
        return OodTest(rate, chosen, stored, features if chosen in DISTANCES else None)
    except EbmcalError:
        if ood is not None or name is not None:
            raise
        return None
