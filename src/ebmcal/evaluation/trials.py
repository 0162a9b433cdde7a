"""`evaluate_trials`: every trial of a run on every test set, as trained and with post-hoc calibrators, over seeds."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ebmcal.calibration import Calibrator, FewRowsWarning, LeakageWarning, make_calibrator
from ebmcal.errors import EbmcalError
from ebmcal.evaluation.estimates import (
    Estimates,
    Record,
    Settings,
    adjust,
    comparison_records,
    detection_records,
    estimate_predictions,
    records_over_seeds,
    verdict,
)
from ebmcal.evaluation.inputs import check_two_classes
from ebmcal.evaluation.results import COMPARISONS, DETECTION, RESULTS, Evaluation, make_frame
from ebmcal.metrics.calibration import N_BINS
from ebmcal.predictions import Predictions, ensemble
from ebmcal.progress import Reporter
from ebmcal.run_dir import Trial

#: Split that calibrators are fitted on → how that is shown; (train) and (dev) as in the paper.
FITTED_ON = {"train": "train", "calibration": "dev", "out_of_fold": "cross-fit"}

#: The method that the others are compared with.
REFERENCE = "baseline"

Splits = Mapping[str, Predictions]


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
    every: list[Estimates] = []
    not_fitted: dict[str, str] = {}
    detection: list[Record] = []
    verdicts: dict[str, str] = {}
    with _quiet(), (reporter or Reporter()).stage("evaluating", len(predictions)) as advance:
        for trial, splits in predictions.items():
            place = {"method": trial.method, "seed": trial.seed}
            calibrators = _fit(splits, posthoc, not_fitted)
            found = list(_estimates(splits, calibrators, settings, model=trial.name, **place))
            every += found
            if "test" in splits and found:
                plain = next(one for one in found if one.test_set == "test")
                verdicts.setdefault(trial.method, verdict(trial.method, splits["test"], plain, {}))
                detection += _detection(splits, settings, model=trial.name, **place)
            advance()
        ensembles = [
            one for m in _seeds(predictions) for one in _ensemble(m, predictions, posthoc, not_fitted, settings)
        ]
    records = [record for one in every for record in one.records()]
    records += [record for several in _by_method(every) for record in records_over_seeds(several)]
    records += [record for one in ensembles for record in one.records()]
    meta = {**settings.meta, "label_names": _label_names(predictions), "not_fitted": not_fitted}
    return Evaluation(
        make_frame(records, RESULTS),
        make_frame(_comparisons(every, settings) if n_resamples else [], COMPARISONS),
        make_frame(detection, DETECTION),
        {**meta, "verdicts": list(verdicts.values())},
        {trial.name: splits["test"] for trial, splits in predictions.items() if "test" in splits},
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
    splits: Splits, calibrators: Mapping[str, Calibrator], settings: Settings, **identity: Any
) -> Iterator[Estimates]:
    """Every labelled test set, as trained and with each calibrator."""
    for test_set, rows in splits.items():
        if not test_set.startswith("test") or not (rows.labels >= 0).any():
            continue
        yield estimate_predictions(rows, settings, **identity, test_set=test_set)
        for shown, calibrator in calibrators.items():
            place = {**identity, "calibrator": shown, "test_set": test_set, "note": calibrator.note}
            yield estimate_predictions(calibrator.apply(rows), settings, **place)


def _detection(splits: Splits, settings: Settings, **identity: Any) -> Iterator[Record]:
    for split, rows in splits.items():
        if split == "noise" or split.startswith("ood_"):
            yield from detection_records(splits["test"], rows, settings, **identity, texts=split)


def _seeds(predictions: Mapping[Trial, Splits]) -> dict[str, list[Trial]]:
    """Method → its trials, of the methods with several seeds."""
    methods = dict.fromkeys(trial.method for trial in predictions)
    found = {method: [trial for trial in predictions if trial.method == method] for method in methods}
    return {method: trials for method, trials in found.items() if len(trials) > 1}


def _ensemble(
    method: str,
    predictions: Mapping[Trial, Splits],
    posthoc: Sequence[str],
    not_fitted: dict[str, str],
    settings: Settings,
) -> Iterator[Estimates]:
    """The seeds of a method as one model; calibrators are fitted on the mean of the held-out predictions."""
    members = [splits for trial, splits in predictions.items() if trial.method == method]
    shared = [s for s in members[0] if all(s in other for other in members)]
    wanted = [s for s in shared if s.startswith("test") or s in ("calibration", "out_of_fold")]
    name = f"{method} ensemble"
    try:
        splits = {split: ensemble([member[split] for member in members]) for split in wanted}
    except EbmcalError as error:
        not_fitted[name] = str(error)
        return
    calibrators = _fit(splits, posthoc, {})  # reasons are those of the single seeds
    for found in _estimates(splits, calibrators, settings, model=name, method=name):
        note = f"mean of {len(members)} seeds"
        yield Estimates(**{**vars(found), "note": "; ".join(filter(None, (note, found.note)))})


def _by_method(every: Sequence[Estimates]) -> list[list[Estimates]]:
    """Estimates that differ only in their seed, of methods with several seeds."""
    groups: dict[tuple[Any, ...], list[Estimates]] = {}
    for one in every:
        groups.setdefault((one.method, one.calibrator, one.test_set), []).append(one)
    return [several for several in groups.values() if len(several) > 1]


def _comparisons(every: Sequence[Estimates], settings: Settings) -> list[Record]:
    """Every method against the baseline on the test rows, both as trained, over all seeds that both have."""
    plain = [one for one in every if one.calibrator is None and one.test_set == "test"]
    reference = {one.seed: one for one in plain if one.method == REFERENCE}
    found: list[Record] = []
    for method in dict.fromkeys(one.method for one in plain if one.method != REFERENCE):
        pairs = [(one, reference[one.seed]) for one in plain if one.method == method and one.seed in reference]
        pairs = [(a, b) for a, b in pairs if np.array_equal(a.labels, b.labels)]
        if pairs:
            ours, theirs = zip(*pairs, strict=True)
            found += comparison_records(ours, theirs, settings.compared, model=method, reference=REFERENCE)
    return adjust(found)


def _label_names(predictions: Mapping[Trial, Splits]) -> list[str]:
    names = (rows.label_names for splits in predictions.values() for rows in splits.values())
    return list(next(names, ()))
