"""Evaluation: `evaluate` for predictions of any classifier, `evaluate_trials` for the models of a run.

ebmcal.evaluate({"ours": predictions, "theirs": "theirs.csv"}).table()

inputs       files and predictions by name, matched by row
results      `Evaluation`, tidy data frames of everything that was measured
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebmcal.calibration import CALIBRATORS, Calibrator, FewRowsWarning, LeakageWarning, make_calibrator
from ebmcal.calibration.curves import OneVsRest
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.evaluation.inputs import (
    Sources,
    add_ensemble,
    check_fit,
    check_two_classes,
    make_calibrators,
    match_rows,
    name_sources,
    read_all,
    read_labels,
    read_partners,
)
from ebmcal.evaluation.results import (
    Estimates,
    Evaluation,
    Record,
    Settings,
    comparison_records,
    detection_records,
    estimate_predictions,
    records_over_seeds,
    verdict,
)
from ebmcal.metrics import DEFAULT_METRICS, HEADLINE_METRICS, HUMAN_METRICS, METRICS
from ebmcal.metrics.calibration import N_BINS
from ebmcal.metrics.intervals import warn_of_notes
from ebmcal.metrics.intervals import find_metric
from ebmcal.predictions import Predictions, ensemble
from ebmcal.progress import Reporter, make_reporter
from ebmcal.run_dir import Trial

__all__ = ["Evaluation", "evaluate", "evaluate_trials"]

#: More resamples do not make an interval visibly better.
MAX_RESAMPLES = 100_000

#: Split that calibrators are fitted on → how that is shown; (train) and (dev) as in the paper.
FITTED_ON = {"train": "train", "calibration": "dev", "out_of_fold": "cross-fit"}

#: The method that the others are compared with.
REFERENCE = "baseline"

#: Metrics that are defined for a single label of a text with several; the first five are shown.
LABEL_METRICS = ("accuracy", "macro_f1", "ece_classwise", "nll", "brier", "matthews", "mce_classwise")

Splits = Mapping[str, Predictions]


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
        for option, value in {"ood": ood, "ensemble": ensemble, "normalize": normalize, "reference": reference}.items():
            if value:
                raise EbmcalError(f"{option} (--{option}) is not defined with several labels per text.")
        return _evaluate_multilabel(predictions, settings, metrics, fit, calibrator, progress)
    calibrators = make_calibrators(calibrator, fit)
    named = read_all(predictions, normalize)
    reference = next(iter(named)) if reference is None else reference
    if reference not in named:
        raise unknown_name("reference", reference, named)
    named = match_rows(named, reference) if paired else named
    fitting, outside = (read_partners(named, given, o, normalize) for given, o in ((fit, "fit"), (ood, "ood")))
    check_fit(named, fitting)
    if ensemble:
        add_ensemble(named if paired else {}, fitting, outside)
    found, versions, verdicts = [], dict[str, Predictions](), []
    with make_reporter(progress).stage("evaluating", len(named)) as advance:
        for name, rows in named.items():
            calibrated = _calibrate(rows, fitting[name], calibrators, name) if name in fitting else {}
            own = [_estimate(name, None, rows, settings)]
            own += [_estimate(name, spec, changed, settings) for spec, changed in calibrated.items()]
            verdicts.append(verdict(name, rows, own[0], calibrated))
            versions |= dict(zip((one.name for one in own), (rows, *calibrated.values()), strict=True))
            found += own
            advance()
    human = HUMAN_METRICS if all(rows.human is not None for rows in named.values()) else ()
    theirs = next(one for one in found if one.model == reference)
    pairs = [([one], [theirs]) for one in found if one is not theirs] if paired and n_resamples else []
    frames = {
        "results": [record for one in found for record in one.records()],
        "comparisons": comparison_records(pairs, settings.compared),
        "detection": [
            record
            for name, rows in outside.items()
            for record in detection_records(named[name], rows, settings, model=name, texts="ood")
        ],
    }
    meta = {**settings.meta, "label_names": list(next(iter(named.values())).label_names)}
    meta |= {"shown_metrics": [*(metrics or HEADLINE_METRICS), *human], "verdicts": verdicts}
    return Evaluation.from_records(frames, meta=meta, predictions=versions)


def _settings(metrics: Sequence[str] | None, n_bins: int, n_resamples: int, seed: int) -> Settings:
    if metrics is not None and not metrics:
        raise EbmcalError("metrics is empty. Pass some, such as accuracy and ece_classwise (--metrics: with commas).")
    for name in metrics or ():
        find_metric(name)
    if isinstance(n_resamples, bool) or not isinstance(n_resamples, int) or not 0 <= n_resamples <= MAX_RESAMPLES:
        raise EbmcalError(f"n_resamples: expected a whole number from 0 to {MAX_RESAMPLES:,}, got {n_resamples!r}.")
    chosen = tuple(dict.fromkeys(metrics or ()))
    return Settings(chosen or DEFAULT_METRICS, chosen or HEADLINE_METRICS, n_bins, n_resamples, seed)


def _calibrate(
    rows: Predictions, fit: Predictions, calibrators: Mapping[str, Calibrator], name: str
) -> dict[str, Predictions]:
    """Calibrator → the rows calibrated by it."""
    found = {}
    for spec, calibrator in calibrators.items():
        with error_context(f"{spec} for {name}"):
            found[spec] = calibrator.fit_predictions(fit).apply(rows)
    return found


def _estimate(name: str, calibrator: str | None, rows: Predictions, settings: Settings) -> Estimates:
    note = rows.meta["calibrator"]["note"] if calibrator else ""
    with error_context(name):
        found = estimate_predictions(rows, settings, name, calibrator=calibrator, note=note)
    warn_of_notes(found.by_metric.values())
    return found


def _evaluate_multilabel(
    files: Sources, settings: Settings, metrics: Sequence[str] | None, fit: Sources | None, calibrator: Any,
    progress: bool | None,
) -> Evaluation:  # fmt: skip
    """Every label as a two-class problem, "not a" and "a", with means over labels.

    Metrics and calibrators that need one correct class per text are not defined.
    """
    _check_defined("metric", metrics or (), METRICS, LABEL_METRICS)
    wanted = [calibrator] if isinstance(calibrator, str) else list(calibrator or (["platt"] if fit else []))
    one_vs_rest = [name for name, kind in CALIBRATORS.items() if issubclass(kind, OneVsRest)]
    _check_defined("calibrator", [spec.partition(":")[0] for spec in wanted], CALIBRATORS, one_vs_rest)
    named = name_sources(files)
    partners = [*name_sources(fit).values()] if fit is not None else []
    if partners and len(partners) != len(named):
        raise EbmcalError(f"fit (--fit): expected one file for each of {len(named)} evaluated, got {len(partners)}.")
    rows = {f"{name}: {label}": p for name, file in named.items() for label, p in read_labels(file).items()}
    fitting: dict[str, Predictions] = {}
    for name, file in zip(named, partners, strict=bool(partners)):
        for label, held_out in read_labels(file).items():
            try:  # a label that never occurs does not stop the others
                check_two_classes(held_out, f"fit (--fit) of {name}: {label}")
                fitting[f"{name}: {label}"] = held_out
            except EbmcalError as error:
                warnings.warn(f"Not calibrated: {error}", stacklevel=3)
    found = evaluate(
        rows, metrics=list(metrics or LABEL_METRICS), n_bins=settings.n_bins, n_resamples=settings.n_resamples,
        seed=settings.seed, paired=False, calibrator=wanted or None, progress=progress,
        fit=fitting if partners else None,
    )  # fmt: skip
    document = found.to_json() | {"shown_metrics": list(metrics or LABEL_METRICS[:5])}
    document["results"] += [mean for name in named for mean in _means_over_labels(found, f"{name}: ")]
    return replace(Evaluation.from_json(document), predictions=found.predictions)


def _check_defined(kind: str, names: Iterable[str], known: Iterable[str], available: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, available)
        if name not in available:
            raise EbmcalError(
                f"{name} needs one correct class per row and is not defined with several labels. Available: "
                f"{', '.join(available)}."
            )


def _means_over_labels(evaluation: Evaluation, prefix: str) -> Iterator[Record]:
    """One record per metric and calibrator: the mean over the labels of a file, without an interval."""
    frame = evaluation.results[evaluation.results["model"].str.startswith(prefix)]
    groups = frame.groupby(["calibrator", "metric"], dropna=False, sort=False)["value"]
    for (calibrator, metric), values in groups:
        name = f"{prefix}mean over {len(values)} label{'s' * (len(values) > 1)}"
        place = {"model": name, "calibrator": calibrator if isinstance(calibrator, str) else None, "metric": metric}
        n_rows = int(frame["n_rows"].iloc[0])
        yield {**place, "test_set": "test", "value": float(values.mean()), "n_rows": n_rows, "note": ""}


def evaluate_trials(
    predictions: Mapping[Trial, Splits],
    *,
    posthoc: Sequence[str] = (),
    n_bins: int = N_BINS,
    n_resamples: int = 1000,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> Evaluation:
    """Evaluate the trials of a run: every trial × test set × (as trained, each calibrator of `posthoc`).

    `predictions` maps each trial to its splits; test sets are those that start with "test", other texts are "noise" and
    those that start with "ood_". Calibrators are fitted on the training rows, shown as (train), on the calibration
    split (dev), and on out-of-fold predictions (cross-fit), where these exist. A calibrator that cannot be fitted has
    no rows, but a reason in `meta["not_fitted"]`. Methods with several seeds also get means over seeds and an ensemble.
    """
    settings = Settings(n_bins=n_bins, n_resamples=n_resamples, seed=seed)
    found: list[Estimates] = []
    not_fitted, verdicts, detection = dict[str, str](), dict[str, str](), list[Record]()
    with _quiet(), (reporter or Reporter()).stage("evaluating", len(predictions)) as advance:
        for trial, splits in predictions.items():
            place = {"method": trial.method, "seed": trial.seed}
            own = list(_estimates(splits, _fit(splits, posthoc, not_fitted), settings, trial.name, **place))
            found += own
            if "test" in splits and own:
                plain = next(one for one in own if one.test_set == "test")
                verdicts.setdefault(trial.method, verdict(trial.method, splits["test"], plain, {}))
                for texts in [name for name in splits if name == "noise" or name.startswith("ood_")]:
                    place |= {"model": trial.name, "texts": texts}
                    detection += detection_records(splits["test"], splits[texts], settings, **place)
            advance()
        for name, splits, n_seeds in _ensembles(predictions, not_fitted):
            for one in _estimates(splits, _fit(splits, posthoc, {}), settings, name, method=name):
                note = "; ".join(filter(None, (f"mean of {n_seeds} seeds", one.note)))
                found.append(replace(one, note=note))
    records = [record for one in found for record in one.records()]
    records += [record for several in _by_method(found) for record in records_over_seeds(several)]
    comparisons = comparison_records(_pairs(found) if n_resamples else [], settings.compared, over_seeds=True)
    names = next((list(rows.label_names) for splits in predictions.values() for rows in splits.values()), [])
    return Evaluation.from_records(
        {"results": records, "comparisons": comparisons, "detection": detection},
        meta={**settings.meta, "label_names": names, "not_fitted": not_fitted, "verdicts": list(verdicts.values())},
        predictions={trial.name: splits["test"] for trial, splits in predictions.items() if "test" in splits},
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Notes in the results replace one warning for each of many rows."""
    with warnings.catch_warnings():
        for category in (FewRowsWarning, LeakageWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", message=".* did not converge")
        yield


def _fit(splits: Splits, posthoc: Sequence[str], not_fitted: dict[str, str]) -> dict[str, Calibrator]:
    """Every calibrator that can be fitted, by the name it is shown under; reasons for the others."""
    fitted = {}
    for split, shown in FITTED_ON.items():
        for name in posthoc if split in splits else ():
            try:  # one calibrator that fails must not discard the other results
                check_two_classes(splits[split], f"split {split}")
                fitted[f"{name} ({shown})"] = make_calibrator(name).fit_predictions(splits[split])
            except EbmcalError as error:
                not_fitted[f"{name} ({shown})"] = str(error)
    return fitted


def _estimates(
    splits: Splits, calibrators: Mapping[str, Calibrator], settings: Settings, model: str, **identity: Any
) -> Iterator[Estimates]:
    """Every labelled test set, as trained and with each calibrator."""
    for test_set, rows in splits.items():
        if not test_set.startswith("test") or not (rows.labels >= 0).any():
            continue
        yield estimate_predictions(rows, settings, model, **identity, test_set=test_set)
        for shown, calibrator in calibrators.items():
            place = {**identity, "calibrator": shown, "test_set": test_set, "note": calibrator.note}
            yield estimate_predictions(calibrator.apply(rows), settings, model, **place)


def _ensembles(
    predictions: Mapping[Trial, Splits], not_fitted: dict[str, str]
) -> Iterator[tuple[str, dict[str, Predictions], int]]:
    """Name, splits and number of seeds of each method with several seeds: the means of their predictions."""
    for method in dict.fromkeys(trial.method for trial in predictions):
        members = [splits for trial, splits in predictions.items() if trial.method == method]
        wanted = [s for s in members[0] if s.startswith("test") or s in ("calibration", "out_of_fold")]
        shared = [s for s in wanted if all(s in other for other in members)]
        if len(members) > 1:
            try:
                splits = {split: ensemble([member[split] for member in members]) for split in shared}
                yield f"{method} ensemble", splits, len(members)
            except EbmcalError as error:
                not_fitted[f"{method} ensemble"] = str(error)


def _by_method(found: Sequence[Estimates]) -> list[list[Estimates]]:
    """Estimates that differ only in their seed, of methods with several seeds."""
    groups: dict[tuple[Any, ...], list[Estimates]] = {}
    for one in found:
        groups.setdefault((one.method, one.calibrator, one.test_set), []).append(one)
    return [several for several in groups.values() if len(several) > 1]


def _pairs(found: Sequence[Estimates]) -> Iterator[tuple[list[Estimates], list[Estimates]]]:
    """Every method and the baseline on the test rows, both as trained, for all seeds that both have."""
    plain = [one for one in found if one.calibrator is None and one.test_set == "test"]
    reference = {one.seed: one for one in plain if one.method == REFERENCE}
    for method in dict.fromkeys(one.method for one in plain if one.method != REFERENCE):
        ours = [one for one in plain if one.method == method and one.seed in reference]
        ours = [one for one in ours if np.array_equal(one.labels, reference[one.seed].labels)]
        if ours:
            yield ours, [reference[one.seed] for one in ours]
