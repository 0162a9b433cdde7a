"""Evaluation: `evaluate` for predictions of any classifier, `evaluate_trials` for the models of a run.

    ebmcal.evaluate({"ours": predictions, "theirs": "theirs.csv"}).table()

Here: files and predictions by name, matched by row; texts with several labels, label by label. `results` has
`Evaluation`, tidy data frames of everything that was measured, and `evaluate_trials`.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibration import CALIBRATORS, Calibrator, FewRowsWarning, make_calibrator
from ebmcal.calibration.curves import OneVsRest
from ebmcal.calibration.leakage import check_two_classes, warn_of_training_rows
from ebmcal.errors import EbmcalError, RowError, error_context, plural, unknown_name
from ebmcal.evaluation.results import (
    TODO,
    Estimates,
    Evaluation,
    Record,
    Settings,
    calibrate_command,
    comparison_records,
    detection_records,
    differences,
    estimate_predictions,
    evaluate_trials,
    not_compared,
    verdict,
    zero_probabilities,
)
from ebmcal.metrics import DEFAULT_METRICS, HEADLINE_METRICS, find_metric
from ebmcal.metrics.calibration import N_BINS
from ebmcal.predictions import Predictions, align
from ebmcal.predictions import ensemble as mean_of
from ebmcal.predictions.files import FileColumns, numbers, read_columns
from ebmcal.progress import make_reporter

__all__ = ["Evaluation", "evaluate", "evaluate_trials"]

#: Predictions, the path of a file, or "NAME=FILE".
Source = Predictions | str | os.PathLike[str]
Sources = Source | Sequence[Source] | Mapping[str, Source]

#: More resamples do not make an interval visibly better.
MAX_RESAMPLES = 100_000

#: Metrics that are defined for a single label of a text with several; the first five are shown.
LABEL_METRICS = ("accuracy", "macro_f1", "ece_classwise", "nll", "brier", "matthews", "mce_classwise")


_TODO_LABELS = " Calibrate it on other labelled rows: `ebmcal evaluate --multilabel --fit OTHER_ROWS` shows the effect."


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
        predictions: `Predictions` or files (.parquet, .csv, .tsv, .jsonl, .json): one, several, or a mapping from
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
    calibrators = _make_calibrators(calibrator, fit)
    named = _read_all(predictions, normalize)
    reference = next(iter(named)) if reference is None else reference
    if reference not in named:
        raise unknown_name("reference", reference, named)
    named = _match_rows(named, reference) if paired else named
    fit_sources, ood_sources = (_partners(named, given, o) for given, o in ((fit, "fit"), (ood, "ood")))
    fitting, outside = (
        {
            name: _read(s, f"{o} of {name}", named[name], normalize=normalize, labels_required=o == "fit")
            for name, s in sources.items()
        }
        for o, sources in (("fit", fit_sources), ("ood", ood_sources))
    )
    _check_fit(named, fitting)
    if ensemble:
        _add_ensemble(named if paired else {}, fitting, outside)
    found, versions, verdicts = list[Estimates](), dict[str, Predictions](), []
    # The test rows of a run come with its calibrated model.
    is_run = any("calibrator" in rows.meta for rows in named.values())
    given = name_sources(predictions)
    with make_reporter(progress).stage("evaluating", len(named)) as advance:
        for name, rows in named.items():
            warn_of_training_rows(rows, name)
            calibrated = _calibrate(rows, fitting[name], calibrators, name) if name in fitting else {}
            own = [_estimate(name, None, rows, settings)]
            own += [_estimate(name, spec, changed, settings) for spec, changed in calibrated.items()]
            zeros = zero_probabilities(name, rows) if "nll" in own[0].by_metric else ""
            files = _paths({"file": given.get(name), "fit": fit_sources.get(name)})
            command = (
                None
                if is_run and not calibrated
                else calibrate_command(**files, calibrator=next(iter(calibrated), "temperature"))
            )
            verdicts.append(verdict(name, rows, own[0], calibrated, command) + zeros)
            versions |= dict(zip((one.name for one in own), (rows, *calibrated.values()), strict=True))
            found += own
            advance()
    theirs = next(one for one in found if one.model == reference)
    pairs = [([one], [theirs]) for one in found if one is not theirs] if paired and n_resamples else []
    comparisons = comparison_records(pairs, settings.compared)
    verdicts = [f"{text}{differences(name, comparisons)}" for name, text in zip(named, verdicts, strict=True)]
    frames = {
        "results": [record for one in found for record in one.records()],
        "comparisons": comparisons,
        "detection": [
            record
            for name, rows in outside.items()
            for record in detection_records(named[name], rows, settings, model=name, texts="ood")
        ],
    }
    meta = {**settings.meta, "label_names": list(next(iter(named.values())).label_names)}
    meta |= {"shown_metrics": list(metrics or HEADLINE_METRICS), "verdicts": verdicts, **not_compared(pairs)}
    if fitting:
        files = _paths(fit_sources)
        meta["fitted_on"] = {
            name: f"{plural(len(rows), 'row')} of {files[name]}" if name in files else plural(len(rows), "other row")
            for name, rows in fitting.items()
        }
    return Evaluation.from_records(frames, meta=meta, predictions=versions)


def _paths(sources: Mapping[str, Any]) -> dict[str, str]:
    """The sources that are files."""
    return {name: os.fspath(source) for name, source in sources.items() if isinstance(source, str | os.PathLike)}


def _settings(metrics: Sequence[str] | None, n_bins: int, n_resamples: int, seed: int) -> Settings:
    if metrics is not None and not metrics:
        raise EbmcalError("metrics is empty. Pass some, such as accuracy and ece_classwise (--metrics: with commas).")
    for name in metrics or ():
        find_metric(name)
    if not 0 <= n_resamples <= MAX_RESAMPLES:
        raise EbmcalError(f"n_resamples: expected a number from 0 to {MAX_RESAMPLES:,}, got {n_resamples}.")
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
    for notes in sorted({one.notes for one in found.by_metric.values() if one.notes}):
        warnings.warn(" ".join(notes), FewRowsWarning, stacklevel=3)
    return found


def name_sources(given: Sources) -> dict[str, Source]:
    """Name → source: the keys of a mapping, NAME of "NAME=FILE", otherwise the path or a number.

    >>> name_sources(["ours=a.csv", "b.csv"])
    {'ours': 'a.csv', 'b.csv': 'b.csv'}
    """
    pairs = _name_pairs(given)
    (name, n), *_ = Counter(name for name, _ in pairs).most_common(1)
    if n > 1:
        raise EbmcalError(f"{name} is given twice. Give each file once, or names: NAME=FILE.")
    return dict(pairs)


def _name_pairs(given: Sources) -> list[tuple[str, Source]]:
    if isinstance(given, Mapping):
        pairs = [(str(name), source) for name, source in given.items()]
    else:
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        pairs = [split_name(source, place) for place, source in enumerate(listed, start=1)]
    if not pairs:
        raise EbmcalError("There is nothing to evaluate. Pass predictions or a prediction file.")
    for name, source in pairs:
        if not isinstance(source, Predictions | str | os.PathLike):
            raise EbmcalError(f"{name}: expected predictions or a file, got {type(source).__name__}.")
    return pairs


def split_name(source: Source, place: int = 1) -> tuple[str, Source]:
    """The name of a source and the source itself; predictions in memory are numbered by their place."""
    if not isinstance(source, str | os.PathLike):
        return f"predictions {place}", source
    path = os.fspath(source)
    name, _, file = path.partition("=")
    if name and file and not Path(path).exists() and os.sep not in name:
        return name, file
    return path, source


def _read_all(given: Sources, normalize: bool) -> dict[str, Predictions]:
    """Name → labelled predictions, all with the class order of the first if they have the same classes."""
    named: dict[str, Predictions] = {}
    for name, source in name_sources(given).items():
        rows = _read(source, name, next(iter(named.values()), None), normalize=normalize)
        with error_context(name):
            named[name] = rows.labelled()
        n_dropped = rows.n_rows - named[name].n_rows
        if n_dropped:
            verb = "row has no label and is" if n_dropped == 1 else "rows have no label and are"
            warnings.warn(f"{name}: {n_dropped:,} of {rows.n_rows:,} {verb} left out.", stacklevel=3)
    return named


def _read(source: Source, name: str, like: Predictions | None, **options: Any) -> Predictions:
    rows = source if isinstance(source, Predictions) else Predictions.read(source, **options)
    if rows.n_classes < 2:
        raise EbmcalError(f"{name} has one class only ({rows.label_names[0]}). Expected a column for every class.")
    is_same = like is not None and set(rows.label_names) == set(like.label_names)
    return rows.reorder(like.label_names) if like is not None and is_same else rows


def _match_rows(named: Mapping[str, Predictions], reference: str) -> dict[str, Predictions]:
    """All predictions with their rows in the order of the reference, matched by id."""
    _check_classes(named, reference)
    matched = {}
    for name, rows in named.items():
        try:
            matched[name] = rows if name == reference else align([named[reference], rows])[1]
        except EbmcalError as error:
            raise EbmcalError(
                f"{name} cannot be compared with {reference}: {error} Pass predictions for the same rows, or evaluate "
                "them separately (paired=False, --unpaired)."
            ) from error
    return matched


def _check_classes(named: Mapping[str, Predictions], reference: str) -> None:
    """Raise unless all predictions have the classes of the reference."""
    expected = set(named[reference].label_names)
    for name, rows in named.items():
        lone = {name: set(rows.label_names) - expected, reference: expected - set(rows.label_names)}
        only = [f"only {file} has {', '.join(sorted(classes)[:10])}" for file, classes in lone.items() if classes]
        if only:
            raise EbmcalError(
                f"{name} cannot be compared with {reference}, their classes differ: {' and '.join(only)}. If two names "
                "mean the same class, rename it in the header and in the column label. If a model does not know a "
                "class, add a column prob_<class> of zeros. Or evaluate them separately (paired=False, --unpaired)."
            )


def _partners(named: Mapping[str, Predictions], given: Sources | None, option: str) -> dict[str, Source]:
    """What belongs to each of the evaluated predictions in `fit` or `ood`: by name, place, or one for all."""
    if given is None:
        return {}
    pairs = _name_pairs(given)
    if isinstance(given, Mapping) or {name for name, _ in pairs} & named.keys():
        sources = name_sources(given)
    else:
        if len(pairs) not in (1, len(named)):
            raise EbmcalError(
                f"{option} (--{option}): expected one file, or one for each of the {len(named)} evaluated, got "
                f"{len(pairs)}."
            )
        if len(pairs) < len(named):
            warnings.warn(
                f"One {option} (--{option}) for {len(named)} files is right only if all are predictions of one model.",
                stacklevel=3,
            )
        sources = dict(zip(named, [source for _, source in pairs] * (len(named) // len(pairs)), strict=True))
    for name in sources.keys() - named.keys():
        raise unknown_name(f"name in {option}", name, named)
    return sources


def _make_calibrators(given: Any, fit: Any) -> dict[str, Calibrator]:
    """Name → unfitted calibrator."""
    if given and fit is None:
        raise EbmcalError("A calibrator needs fit (--fit): predictions for other rows, to fit it on.")
    wanted = [given] if isinstance(given, str | Calibrator) else given or ["temperature"]
    return {c if isinstance(c, str) else c.name: make_calibrator(c) if isinstance(c, str) else c for c in wanted}


def _check_fit(named: Mapping[str, Predictions], fit: Mapping[str, Predictions]) -> None:
    """Raise unless a calibrator can be fitted on the rows of `fit`."""
    for name, rows in fit.items():
        if rows.label_names != named[name].label_names:
            ours, theirs = (", ".join(p.label_names[:10]) + ", …" * (p.n_classes > 10) for p in (named[name], rows))
            raise EbmcalError(
                f"fit (--fit) of {name} has the classes {theirs}, {name} has {ours}. Pass those of the same model."
            )
        check_two_classes(rows, f"fit (--fit) of {name}")


def _add_ensemble(named: dict[str, Predictions], *others: dict[str, Predictions]) -> None:
    """Add the mean of all predictions, and the means of their `fit` and `ood` rows if all have them."""
    if len(named) < 2:
        raise EbmcalError("An ensemble (--ensemble) needs at least two files with the same rows (not --unpaired).")
    name, n_members = f"ensemble of {len(named)}", len(named)
    for given in (named, *others):
        if len(given) == n_members:
            with error_context(name):
                given[name] = mean_of(list(given.values()))


def _evaluate_multilabel(
    files: Sources, settings: Settings, metrics: Sequence[str] | None, fit: Sources | None, calibrator: Any,
    progress: bool | None,
) -> Evaluation:  # fmt: skip
    """Every label as a two-class problem, "not a" and "a", with means over labels.

    Metrics and calibrators that need one correct class per text are not defined.
    """
    wanted = [calibrator] if isinstance(calibrator, str) else list(calibrator or (["platt"] if fit else []))
    one_vs_rest = [name for name, kind in CALIBRATORS.items() if issubclass(kind, OneVsRest)]
    for kind, names, allowed in (("metric", metrics or (), LABEL_METRICS), ("calibrator", wanted, one_vs_rest)):
        for name in names:
            if name.partition(":")[0] not in allowed:
                raise unknown_name(f"{kind} for texts with several labels", name, allowed)
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
    verdicts = [s.replace(TODO.format(calibrate_command()), _TODO_LABELS) for s in found.verdicts()]
    verdicts = [re.sub(": `ebmcal calibrate [^`]*`", "", s) for s in verdicts]  # it expects one label per text
    document = found.to_json() | {"shown_metrics": list(metrics or LABEL_METRICS[:5]), "verdicts": verdicts}
    document["results"] += [mean for name in named for mean in _means_over_labels(found, f"{name}: ")]
    return replace(Evaluation.from_json(document), predictions=found.predictions)


def _means_over_labels(evaluation: Evaluation, prefix: str) -> Iterator[Record]:
    """One record per metric and calibrator: the mean over the labels of a file, without an interval."""
    frame = evaluation.results[evaluation.results["model"].str.startswith(prefix)]
    groups = frame.groupby(["calibrator", "metric"], dropna=False, sort=False)["value"]
    for (calibrator, metric), values in groups:
        name = f"{prefix}mean over {len(values)} label{'s' * (len(values) > 1)}"
        place = {"model": name, "calibrator": calibrator if isinstance(calibrator, str) else None, "metric": metric}
        n_rows = int(frame["n_rows"].iloc[0])
        yield {**place, "test_set": "test", "value": float(values.mean()), "n_rows": n_rows, "note": ""}


def read_labels(file: Any) -> dict[str, Predictions]:
    """Label → predictions of the classes "not <label>" and "<label>", from a multi-label prediction file.

    `label` holds all labels of a row (a list, or "a|b" in CSV; empty if none applies), `prob_<label>` or
    `logit_<label>` the probability or logit of each label; rows need not sum to one.
    """
    if not isinstance(file, str | os.PathLike):
        raise EbmcalError(f"Several labels per text are read from files, got {type(file).__name__}.")
    table = read_columns(file)
    with error_context(file), table.name_rows():
        return split_labels(table)


def split_labels(table: FileColumns) -> dict[str, Predictions]:
    """Each label of a table as a two-class problem.

    >>> table = FileColumns({"label": [["a"], ["a", "b"]], "prob_a": [0.9, 0.6], "prob_b": [0.2, 0.7]})
    >>> split_labels(table)["b"].labels, split_labels(table)["b"].probs.round(2).tolist()
    (array([0, 1]), [[0.8, 0.2], [0.3, 0.7]])
    """
    prefix = next((p for p in ("logit_", "prob_") if any(name.startswith(p) for name in table.columns)), None)
    if prefix is None or "label" not in table.columns:
        raise EbmcalError("Expected a column label and a column prob_<label> or logit_<label> for each label.")
    columns = {n.removeprefix(prefix): numbers(c, n) for n, c in table.columns.items() if n.startswith(prefix)}
    sets = [_labels_of_row(value, row, columns) for row, value in enumerate(table.columns["label"])]
    ids = [str(i) for i in table.columns["id"]] if "id" in table.columns else None
    found = {}
    for label, values in columns.items():
        values = values.astype(np.float64)
        bad = np.flatnonzero((values < 0) | (values > 1)) if prefix == "prob_" else np.array([])
        if len(bad):
            raise RowError(f"column {prefix + label!r}", f" is {values[bad[0]]:g}: not a probability.", bad[0])
        other = 1.0 - values if prefix == "prob_" else np.zeros(len(values))
        scores: dict[str, Any] = {prefix.rstrip("_") + "s": np.stack([other, values], axis=1)}
        has_label = np.array([label in labels for labels in sets], dtype=np.int64)
        found[label] = Predictions(has_label, (f"not {label}", label), **scores, ids=ids)
    return found


def _labels_of_row(value: Any, row: int, known: Iterable[str]) -> set[str]:
    if value is None:
        raise RowError("column 'label'", " is missing. Use an empty list (CSV: an empty cell) for no label.", row)
    parts = value.split("|") if isinstance(value, str) else value if isinstance(value, list) else [value]
    labels = {str(part).strip() for part in parts if str(part).strip()}
    for label in sorted(labels.difference(known)):
        raise RowError("column 'label'", f": {unknown_name('label', label, known)}", row)
    return labels
