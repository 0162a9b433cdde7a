"""Selective prediction with guarantees: answer or abstain, label sets, OOD texts. No torch, except for distances.

    rule = fit_abstention("calibration.parquet", model="model", max_error=0.05, confidence=0.9)
    rule.apply(predictions).answered

Here a rule is fitted on labelled predictions for rows that the model was not trained on; `risk_control` tests its
guarantee, `rule` applies and stores it, `ood` scores and flags texts unlike the training data. Each guarantee holds for
texts from the same distribution as the calibration rows, and is refused if these are too few. With a model, the rule is
bound to its weights and its calibrator.

Label sets: split conformal prediction. With calibration rows and a new row from the same distribution, the rank of the
new row among them is uniform, so the label is in its set with probability at least `coverage`.
"""

import math
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.calibration import Calibrator, check_held_out, persistence, read_calibrator
from ebmcal.calibration.leakage import N_TRAINING, distinct_rows, logits_in
from ebmcal.errors import EbmcalError, error_context, plural, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.run_dir import predictions_of_model, weights_fingerprint
from ebmcal.selective.ood import (
    DISTANCES,
    OOD_SCORES,
    OodTest,
    TrainingFeatures,
    distance_of,
    energies_of,
    fit_distance,
    load_model,
    measure_distances,
    model_folder,
    ood_scores_of,
    rank_texts,
    texts_of,
)  # fmt: skip
from ebmcal.selective.risk_control import first_rows, fit_threshold, least_rows, refusal
from ebmcal.selective.rule import SCORES, AbstentionRule, Decisions, Guarantee, LabelSets, read_rule, save_rule
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.model import Model

__all__ = [
    "DISTANCES", "OOD_SCORES", "SCORES", "AbstentionRule", "Decisions", "fit_abstention", "fit_distance", "read_rule",
    "save_rule",
]  # fmt: skip

OOD_RATE = 0.05  # false-positive rate of the OOD test if none is given
#: Label sets with one coverage for all rows, or for the rows of each class, also of rare ones.
SETS = ("split", "class-conditional")
#: Calibrators with one parameter: fitted on the rows of the rule, they do not affect its guarantee (tests measure it).
ONE_PARAMETER = ("temperature", "temperature-grid")


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
      drawing of the rows; by `score`: confidence or energy.
    - `coverage`: label sets that contain the true label with this probability; `sets="class-conditional"`: in each
      class.
    - `ood`: the share of in-distribution texts that may be flagged as OOD, 0 for no OOD test; by default 0.05 if there
      are enough rows. `ood_score`: knn or mahalanobis (distances to `training` texts, which need a model), energy,
      max_prob, or combined (knn and energy), which is the default if training texts are known, else energy. The rule
      abstains on OOD texts, unless `answer_ood`.
    - `model`: a `Model`, a model directory or a run (its recommended model) that made these uncalibrated predictions;
      its calibrator is applied first and the rule is bound to both. `training`: its training texts (a file, table or
      `Predictions`; by default those of the run that the model belongs to). Without a model, the rule is for
      predictions as they are in the file.

    >>> rows = Predictions([0, 1] * 100, ("no", "yes"), probs=np.repeat([[0.9, 0.1], [0.4, 0.6]], 100, 0)[::-1])
    >>> fit_abstention(rows, coverage=0.9, ood=0).sets.kind
    'split'
    """
    shares = {"max_error": max_error, "confidence": confidence, "coverage": coverage, "ood": ood or None}
    _check_settings(shares, {"score": score, "kind of sets": sets, "OOD score (--ood-score)": ood_score})
    if model is not None:
        folder = model_folder(model)
        calibrator = read_calibrator(folder) if isinstance(model, str | os.PathLike) else model.calibrator
        rows = persistence.read_held_out(predictions, folder, normalize=normalize)
    elif training is not None:
        raise EbmcalError("training (--training) needs a model, which measures distances from these texts.")
    else:
        rows = _read(predictions, normalize)
    split = rows.meta.get("split")
    if split == "train":
        raise EbmcalError("These are predictions for training rows, which are too optimistic. Pass held-out rows.")
    if split == "out_of_fold":
        ood_score = _check_out_of_fold(max_error, coverage, ood_score)
    if max_error is not None:
        _check_enough(rows.n_rows, max_error, confidence)
    features: TrainingFeatures | None = None
    bound_to: dict[str, Any] = {}
    n_given = rows.n_rows + rows.meta.get(N_TRAINING, 0)
    if model is not None:
        if ood != 0:
            rows, features = _with_distances(model, rows, ood_score, training)
        bound_to["model"] = weights_fingerprint(folder)
        bound_to["calibrator"] = persistence.calibrator_fingerprint(calibrator)
        bound_to["notes"] = _calibrator_notes(calibrator, rows)
        rows = calibrated(rows, calibrator)
    groups, n_training = distinct_rows(rows), n_given - rows.n_rows
    n_distinct = int(groups.max()) + 1
    if n_distinct < len(groups):
        copies = f"{len(groups):,} rows contain {plural(len(groups) - n_distinct, 'exact duplicate')} of others"
        warnings.warn(f"The {copies}. Guarantees are also tested with each text counted once.", stacklevel=2)
    test = None if ood == 0 else _fit_ood(rows, groups, ood, ood_score, features, seed)
    calibrated_by = rows.meta.get("calibrator")
    rule = AbstentionRule(
        rows.label_names, n_distinct, ood=test, answer_ood=answer_ood, calibrated_by=calibrated_by,
        n_copies=len(groups) - n_distinct, n_training=n_training, **bound_to,
    )  # fmt: skip
    if coverage is not None:
        rule = replace(rule, sets=LabelSets(sets, coverage, _fit_limits(rows, groups, sets, coverage)))
    if max_error is not None:
        if test is not None and not answer_ood:
            allowed = test.below_cut_off(ood_scores_of(test.score, rows), seed)
            rows, groups = rows.rows(allowed), groups[allowed]
        guarantee = _fit_guarantee(rows, groups, score, max_error, confidence, seed, n_given)
        rule = replace(rule, score=score, guarantee=guarantee)
    if rule.guarantee is None and rule.sets is None and rule.ood is None:
        raise EbmcalError("No guarantee requested: pass max_error (--max-error), coverage or ood.")
    return rule


def _check_settings(shares: dict[str, float | None], names: dict[str, str | None]) -> None:
    """Raise for shares outside 0..1 and unknown names, before any work."""
    for name, value in shares.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < 1):
            flag = "--" + name.replace("_", "-")
            raise EbmcalError(f"{name} ({flag}): expected a share between 0 and 1, got {value!r}.")
    for (kind, given), table in zip(names.items(), (list(SCORES), list(SETS), list(OOD_SCORES)), strict=True):
        if given is not None and given not in table:
            raise unknown_name(kind, given, table)


def _check_out_of_fold(max_error: float | None, coverage: float | None, ood_score: str | None) -> str:
    """The OOD score for out-of-fold rows; an error for guarantees that they cannot give."""
    if max_error is not None or coverage is not None:
        raise EbmcalError(
            "These are out-of-fold predictions of training rows: they are of the models of the folds, not of this "
            "model, so neither an error nor a coverage can be guaranteed. Pass labelled rows that the model was not "
            "trained on, or train with --calibration holdout and pass the calibration split. Only the OOD test (--ood) "
            "can use out-of-fold rows, approximately."
        )
    if ood_score and distance_of(ood_score):
        raise EbmcalError(
            f"Out-of-fold rows are training rows, with a distance of 0 to themselves, so {ood_score} cannot use them. "
            "Use --ood-score energy or max_prob, or pass held-out rows."
        )
    return ood_score or "energy"


def _check_enough(n_rows: int, max_error: float, confidence: float) -> None:
    needed = least_rows(max_error, confidence)
    if n_rows < needed:
        raise EbmcalError(
            f"{n_rows:,} rows do not support an error of at most {max_error:g} at confidence {confidence:g}: at "
            f"least {needed:,} labelled rows are needed, and more if any answer is wrong. Pass more rows, a larger "
            "max_error (--max-error) or a smaller confidence (--confidence)."
        )


def _fit_guarantee(
    rows: Predictions, groups: np.ndarray, score: str, max_error: float, confidence: float, seed: int, n_given: int
) -> Guarantee:
    first = first_rows(groups)
    _check_enough(len(first), max_error, confidence)
    scores, wrong = SCORES[score](rows), rows.predicted != rows.labels
    guarantee = fit_threshold(scores, wrong, groups, max_error, confidence, seed)
    if guarantee is None:
        raise refusal(scores[first], wrong[first], max_error, confidence, n_given)
    return guarantee


def _fit_limits(rows: Predictions, groups: np.ndarray, sets: str, coverage: float) -> tuple[float, ...]:
    """The limits from all rows and from distinct rows, whichever is larger."""
    distinct = rows.rows(first_rows(groups))
    limits = [_set_limits(part, sets, coverage) for part in (distinct, rows)]
    return tuple(np.maximum(*limits).tolist())


def _set_limits(rows: Predictions, sets: str, coverage: float) -> np.ndarray:
    """For each class, the largest 1 − P(y|x) with which y is in the set [C]."""
    misfits = 1.0 - np.take_along_axis(rows.probs, rows.labels[:, None], axis=1)[:, 0]
    if sets == "split":
        return np.full(rows.n_classes, _limit(misfits, coverage, ""))
    of = " of every class, here class number {}"
    return np.array([_limit(misfits[rows.labels == c], coverage, of.format(c)) for c in range(rows.n_classes)])


def _limit(misfits: np.ndarray, coverage: float, of: str) -> float:
    """The ⌈(n + 1) · coverage⌉-th smallest of the misfits."""
    needed = math.ceil(coverage / (1.0 - coverage) - 1e-9)  # with fewer rows a set would have to contain every label
    if len(misfits) < needed:
        raise EbmcalError(
            f"{len(misfits):,} rows do not support label sets with a coverage of {coverage:g}: at least "
            f"{needed:,} labelled rows are needed{of}. Pass more rows or a smaller coverage (--coverage)."
        )
    return float(np.sort(misfits)[math.ceil((len(misfits) + 1) * coverage - 1e-9) - 1])


def _fit_ood(
    rows: Predictions, groups: np.ndarray, ood: float | None, name: str | None, features: TrainingFeatures | None,
    seed: int,
) -> OodTest | None:  # fmt: skip
    """The OOD test from all rows and from distinct rows, whichever flags less; by default None if it is impossible."""
    chosen = name or ("energy" if features is None else "combined")
    rate = OOD_RATE if ood is None else ood
    try:
        scores = ood_scores_of(chosen, rows)
        is_approximate = rows.meta.get("split") == "out_of_fold"
        tests = [
            OodTest(rate, chosen, rank_texts(part, rate, seed), features, is_approximate)
            for part in (scores[:, first_rows(groups)], scores)
        ]
        return min(tests, key=lambda test: np.count_nonzero(test.is_flagged(scores)))
    except EbmcalError:
        if ood is not None or name is not None:
            raise
        return None


def _read(predictions: Predictions | PathLike, normalize: bool) -> Predictions:
    """The labelled rows of predictions or of a file."""
    if isinstance(predictions, Predictions):
        return predictions.labelled()
    with error_context(predictions):
        return Predictions.read(predictions, normalize=normalize).labelled()


def calibrated(rows: Predictions, calibrator: Calibrator | None) -> Predictions:
    """The rows after a calibrator, with the energies of the original logits; calibrated rows are left as they are."""
    if calibrator is None or rows.meta.get("calibrator"):
        return rows
    energies = energies_of(rows) if rows.energies is not None or rows.logits is not None else None
    probs = calibrator.predict_proba(logits_in(rows))
    return rows.replace(energies=energies, probs=probs, meta=rows.meta | {"calibrator": calibrator.description})


def _calibrator_notes(calibrator: Calibrator | None, rows: Predictions) -> tuple[str, ...]:
    """What the rule should state about the calibrator; an error if a flexible one was fitted on the same rows."""
    if calibrator is None:
        return ("The model has no calibrator: confidence is the model's own.",)
    share = calibrator.fitted_on_.share_among(rows)
    if share and calibrator.name in ONE_PARAMETER:
        same = f"The {calibrator.name} was fitted on {share:.0%} of the same rows"
        return (f"{same}; with one parameter this is harmless.",)
    if share:
        raise EbmcalError(
            f"{share:.0%} of these rows were used to fit the model's {calibrator.name} calibrator, so its confidences "
            "are too good there and nothing can be guaranteed. Calibrate on one half of the rows and fit the rule on "
            "the other, or calibrate by temperature."
        )
    return ()


def _with_distances(
    model: "Model | PathLike", rows: Predictions, ood_score: str | None, training: Any
) -> tuple[Predictions, TrainingFeatures | None]:
    """Rows with distances to training texts, if these are wanted; by default, if they cannot be measured, a warning."""
    distance = distance_of(ood_score or "combined")
    if distance is None:
        if training is not None:
            raise EbmcalError("training (--training) goes with the OOD scores combined, knn and mahalanobis.")
        return rows, None
    if ood_score is None and training is None and predictions_of_model(model_folder(model), "train") is None:
        return rows, None
    try:
        return measure_distances(model, rows, distance, training)
    except EbmcalError as error:
        if ood_score is not None or training is not None:
            raise
        warnings.warn(f"{str(error).rstrip('.')}. The OOD score is the energy instead.", stacklevel=3)
        return rows, None


def predictions_for_rule(
    model_dir: PathLike | None, source: PathLike, rule: AbstentionRule, *, normalize: bool = False
) -> Predictions:
    """A prediction file as the rule needs it: calibrated by the model's calibrator and with its distances."""
    if model_dir is None:
        return _read(source, normalize)
    folder = Path(model_dir)
    rows = check_held_out(persistence.read_for_model(source, folder, normalize=normalize), folder, where=source)
    if rule.needs_features:
        rows = rule.add_distances(rows, load_model(folder).features(texts_of(rows, "rows")))
    return calibrated(rows, read_calibrator(folder))
