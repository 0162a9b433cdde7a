"""Evaluation: `evaluate` for predictions of any classifier, `evaluate_trials` for the models of a run.

ebmcal.evaluate({"ours": predictions, "theirs": "theirs.csv"}).table()

results      `Evaluation`, tidy data frames of everything that was measured
estimates    predictions → records of these frames
inputs       files and predictions by name, matched by row
trials       all trials of a run with their calibrators
multilabel   texts with several labels
"""

from collections.abc import Sequence
from typing import Any

from ebmcal.calibration import Calibrator
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.evaluation.estimates import (
    Estimates,
    Record,
    Settings,
    adjust,
    comparison_records,
    detection_records,
    estimate_predictions,
    verdict,
)
from ebmcal.evaluation.inputs import (
    Sources,
    add_ensemble,
    calibrated,
    check_fit,
    make_calibrators,
    match_rows,
    read_all,
    read_partners,
)
from ebmcal.evaluation.results import COMPARISONS, DETECTION, RESULTS, Evaluation, make_frame
from ebmcal.evaluation.trials import evaluate_trials
from ebmcal.metrics import DEFAULT_METRICS, HEADLINE_METRICS, HUMAN_METRICS
from ebmcal.metrics.calibration import N_BINS
from ebmcal.metrics.intervals import warn_of_notes
from ebmcal.metrics.registry import find_metric
from ebmcal.predictions import Predictions
from ebmcal.progress import make_reporter

__all__ = ["Evaluation", "evaluate", "evaluate_trials"]

#: More resamples do not make an interval visibly better.
MAX_RESAMPLES = 100_000


def evaluate(
    predictions: Sources,
    *,
    metrics: Sequence[str] | None = None,
    n_bins: int = N_BINS,
    n_resamples: int = 1000,
    seed: int = 0,
    reference: str | None = None,
    paired: bool = True,
    ensemble: bool = False,
    fit: Sources | None = None,
    calibrator: str | Calibrator | Sequence[str | Calibrator] | None = None,
    ood: Sources | None = None,
    normalize: bool = False,
    multilabel: bool = False,
    progress: bool | None = False,
) -> Evaluation:
    """Evaluate predictions of any classifier: accuracy, calibration and ranking with intervals, and paired tests.

    Args:
        predictions: `Predictions` or files (.parquet, .csv, .tsv, .jsonl, .json, .npz): one, several, or a mapping from
            names; "NAME=FILE" names a file. Rows without a label are left out with a warning.
        metrics: Names of `metrics.METRICS`. Default: the most useful ones.
        n_bins: Bins of the binned calibration errors.
        n_resamples: Resamples for intervals and tests; 0 computes neither.
        seed: Seed of the resampling.
        reference: The name that the others are compared with. Default: the first.
        paired: Whether all predictions are for the same rows (matched by id), so that they can be compared.
        ensemble: Also evaluate the mean of all predictions.
        fit: Predictions for other rows to fit calibrators on: one for all, or one for each.
        calibrator: Names of calibrators, such as "temperature" (the default with `fit`) or "scaling-binning:n_bins=15".
        ood: Predictions for other texts, which need no labels, to measure OOD detection: one for all, or one for each.
        normalize: Divide rounded probabilities by the sums of their rows.
        multilabel: A text may have several labels; every label is evaluated separately. Files only.
        progress: Show a progress bar; None shows it on terminals and in notebooks.

    >>> vague = Predictions([0, 1] * 50, ("no", "yes"), probs=[[0.6, 0.4], [0.4, 0.6]] * 50)
    >>> sure = vague.with_probs([[0.9, 0.1], [0.1, 0.9]] * 50)
    >>> found = evaluate({"vague": vague, "sure": sure}, metrics=["nll"], n_resamples=100)
    >>> found.comparisons["difference"].round(3).tolist()
    [-0.405]
    """
    settings = _settings(metrics, n_bins, n_resamples, seed)
    if multilabel:
        from ebmcal.evaluation.multilabel import evaluate_multilabel

        unsupported = {"ood": ood, "ensemble": ensemble, "normalize": normalize, "reference": reference}
        for option, value in unsupported.items():
            if value:
                raise EbmcalError(f"{option} (--{option}) is not defined with several labels per text.")
        return evaluate_multilabel(predictions, settings, metrics, fit, calibrator, progress)
    calibrators = make_calibrators(calibrator, fit)
    named = read_all(predictions, normalize)
    reference = next(iter(named)) if reference is None else reference
    if reference not in named:
        raise unknown_name("reference", reference, named)
    named = match_rows(named, reference) if paired else named
    fitting, outside = (read_partners(named, given, o, normalize) for given, o in ((fit, "fit"), (ood, "ood")))
    check_fit(named, fitting)
    if ensemble:
        add_ensemble(named, fitting, outside, paired)
    return _evaluate(named, fitting, outside, calibrators, settings, reference if paired else None, metrics, progress)


def _settings(metrics: Sequence[str] | None, n_bins: int, n_resamples: int, seed: int) -> Settings:
    if metrics is not None and not metrics:
        raise EbmcalError("metrics is empty. Pass some, such as accuracy and ece_classwise (--metrics: with commas).")
    for name in metrics or ():
        find_metric(name)
    if isinstance(n_resamples, bool) or not isinstance(n_resamples, int) or not 0 <= n_resamples <= MAX_RESAMPLES:
        raise EbmcalError(f"n_resamples: expected a whole number from 0 to {MAX_RESAMPLES:,}, got {n_resamples!r}.")
    chosen = tuple(dict.fromkeys(metrics or ()))
    return Settings(chosen or DEFAULT_METRICS, chosen or HEADLINE_METRICS, n_bins, n_resamples, seed)


def _evaluate(
    named: dict[str, Predictions],
    fitting: dict[str, Predictions],
    outside: dict[str, Predictions],
    calibrators: dict[str, Calibrator],
    settings: Settings,
    reference: str | None,
    metrics: Sequence[str] | None,
    progress: bool | None,
) -> Evaluation:
    """Evaluate predictions that were read and matched."""
    every: list[Estimates] = []
    evaluated: dict[str, Predictions] = {}
    verdicts: list[str] = []
    with make_reporter(progress).stage("evaluating", len(named)) as advance:
        for name, rows in named.items():
            versions = dict(calibrated(rows, fitting.get(name), calibrators, name))
            found = [_estimates(name, None, rows, settings)]
            found += [_estimates(name, spec, changed, settings) for spec, changed in versions.items()]
            verdicts.append(verdict(name, rows, found[0], versions))
            evaluated |= dict(zip((one.name for one in found), (rows, *versions.values()), strict=True))
            every += found
            advance()
    shown = tuple(metrics or HEADLINE_METRICS)
    if all(rows.human is not None for rows in named.values()):
        shown += tuple(HUMAN_METRICS)
    meta = {**settings.meta, "label_names": list(next(iter(named.values())).label_names)}
    detection = [
        record
        for name, rows in outside.items()
        for record in detection_records(named[name], rows, settings, model=name, texts="ood")
    ]
    return Evaluation(
        make_frame([record for one in every for record in one.records()], RESULTS),
        make_frame(_comparisons(every, reference, settings) if settings.n_resamples else [], COMPARISONS),
        make_frame(detection, DETECTION),
        {**meta, "shown_metrics": list(shown), "verdicts": verdicts},
        evaluated,
    )


def _estimates(name: str, calibrator: str | None, rows: Predictions, settings: Settings) -> Estimates:
    note = rows.meta["calibrator"]["note"] if calibrator else ""
    with error_context(name):
        found = estimate_predictions(rows, settings, name, calibrator=calibrator, note=note)
    warn_of_notes(found.by_metric.values())
    return found


def _comparisons(every: Sequence[Estimates], reference: str | None, settings: Settings) -> list[Record]:
    """Paired tests of every model and calibrator against the reference as it is."""
    theirs = next((one for one in every if one.model == reference and one.calibrator is None), None)
    if theirs is None:
        return []
    found: list[Any] = []
    for ours in every:
        if ours is not theirs:
            place = {"model": ours.model, "reference": theirs.name, "n_seeds": None}
            found += comparison_records([ours], [theirs], settings.compared, **place)
    return adjust(found)
