"""`evaluate`: anybody's predictions, as files or in memory, judged, compared, mended with a calibrator.

    ebmcal.evaluate({"ours": predictions, "theirs": "theirs.csv"}).table()

What `ebmcal evaluate` does. Here inputs are read and brought together; `judging` does the work, and its document is
what the tables, the JSON and the report are made from.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ebmcal.calibrators import Calibrator, make_calibrator
from ebmcal.calibrators.held_out import require_two_classes
from ebmcal.errors import EbmcalError, errors_of, unknown_name
from ebmcal.judging import Figures, Measures, compare_figures, detect, measure_rows, row_of, with_holm
from ebmcal.metrics import DEFAULT_METRICS, HEADLINE_METRICS
from ebmcal.metrics.human import HUMAN_METRICS
from ebmcal.metrics.intervals import warn_of
from ebmcal.metrics.registry import N_BINS, metric
from ebmcal.predictions import Predictions, align
from ebmcal.predictions import ensemble as mean_of
from ebmcal.progress import Console, Reporter
from ebmcal.tables import Column, Entry, Sheet, Table, TableRow, mark_best
from ebmcal.tables.comparison import DETECTION_COLUMNS
from ebmcal.tables.differences import difference_table
from ebmcal.tables.document import Key, figure, heading, interval_notes, row_name

#: Predictions, or the path of a file that holds them.
Source = Predictions | str | PathLike[str]

#: Resamples at most: an interval of 1,000 is known to a few percent of its width, one of these to a few thousandths.
MOST_RESAMPLES = 100_000

#: What the rows of `ood` are called in the document.
OTHER_TEXTS = "ood"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What was found. `document` has all of it, in the layout of a run's `metrics.json` (see `ebmcal.judging`).

    `predictions` are those judged, in order; calibrated ones are called "name + calibrator".
    """

    document: Mapping[str, Any]
    predictions: Mapping[str, Predictions]
    shown: Sequence[str] = HEADLINE_METRICS

    def table(self) -> Sheet:
        """The headline figures, the paired tests and the detection as tables that print themselves.

        `print` it, or take its `markdown()` or `latex()`.
        """
        return Sheet(tuple(table for table in (self._figures(), self._tests(), self._detection()) if table.rows))

    def to_json(self) -> str:
        """The document as JSON."""
        return json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)

    def report(self, path: str | PathLike[str]) -> Path:
        """Write a self-contained HTML page with pictures; returns where it is."""
        from ebmcal.report import write_evaluation_report

        return write_evaluation_report(Path(path), self.predictions, self.document)

    def __repr__(self) -> str:
        return str(self.table())

    def _figures(self) -> Table:
        """Names × metrics with intervals, the best figure of each column marked."""
        columns = (Column("file", "File"), Column("n_rows", "Rows"), *map(self._heading, self.shown))
        rows = [
            TableRow((Entry(_name(row)), Entry(row["n_rows"]), *(figure(row, name) for name in self.shown)))
            for row in self.document["rows"]
        ]
        notes = interval_notes(self.document["rows"], self.shown) if self.document["n_resamples"] else ()
        return mark_best(Table("", columns, tuple(rows), tuple(notes)))

    def _tests(self) -> Table:
        """Each minus the first, metric by metric, with interval and p-values."""
        return difference_table(self.document, f"Difference from {next(iter(self.predictions))}")

    def _detection(self) -> Table:
        """Names × scores: how well each tells in-domain rows from the others."""
        columns = (Column("file", "File"), Column("score", "Score"), *DETECTION_COLUMNS.values())
        rows = tuple(
            TableRow((Entry(name), Entry(kind.replace("_", " ")), *(Entry(found[m]) for m in DETECTION_COLUMNS)))
            for name, scores in self.document["detection"].items()
            for kind, found in ((what.removeprefix(f"{OTHER_TEXTS} by "), found) for what, found in scores.items())
        )
        return mark_best(Table("Out-of-domain detection", columns, rows, ("In-domain rows are the positives.",)))

    def _heading(self, name: str) -> Column:
        return heading(name, n_bins=self.document["n_bins"])


def evaluate(
    predictions: Source | Sequence[Source] | Mapping[str, Source],
    *,
    metrics: Sequence[str] | None = None,
    n_bins: int = N_BINS,
    n_resamples: int = 1000,
    seed: int = 0,
    paired: bool = True,
    ensemble: bool = False,
    fit: Source | Sequence[Source] | Mapping[str, Source] | None = None,
    calibrator: str | Calibrator | Sequence[str | Calibrator] | None = None,
    ood: Source | Sequence[Source] | Mapping[str, Source] | None = None,
    normalize: bool = False,
    progress: bool = False,
) -> Evaluation:
    """Judge predictions of any classifier: accuracy, calibration and ranking with intervals, and how they differ.

    `predictions` are `Predictions` or paths (.parquet, .csv, .jsonl, .npz), by name; those after the first are set
    against the first on the same rows (matched by id), unless they are not `paired`. Rows without a label are left
    out. `fit` has predictions for other rows to fit each `calibrator` on (temperature unless said otherwise; settings
    may follow a name, as in "scaling-binning:n_bins=15"), `ood` predictions for other texts, which may lack labels:
    one for all, or one for each. `ensemble` adds the mean of all of them, as of the seeds of one method.
    `n_resamples=0` gives neither intervals nor tests. `normalize` divides probabilities
    that were rounded by the sums of their rows; `progress` shows a bar.

    >>> vague = Predictions([0, 1] * 50, ("no", "yes"), probs=[[0.6, 0.4], [0.4, 0.6]] * 50)
    >>> sure = vague.with_probs([[0.9, 0.1], [0.1, 0.9]] * 50)
    >>> found = evaluate({"vague": vague, "sure": sure}, metrics=["nll"], n_resamples=100)
    >>> round(found.document["paired"][0]["difference"], 3)
    -0.405
    """
    calibrators, chosen = _calibrators(calibrator, fit), _checked_metrics(metrics)
    if isinstance(n_resamples, bool) or not isinstance(n_resamples, int) or not 0 <= n_resamples <= MOST_RESAMPLES:
        raise EbmcalError(
            f"n_resamples must be a whole number from 0 to {MOST_RESAMPLES:,}; {n_resamples!r} came. More make no "
            "interval visibly better."
        )
    named = _read_all(predictions, normalize)
    named = _same_rows(named) if paired else named
    outside, fitting = _partners(named, ood, "ood", normalize), _partners(named, fit, "fit", normalize)
    _check_fitting(named, fitting)
    if ensemble:
        named, fitting, outside = _with_ensemble(named, fitting, outside, paired)
    judged = dict(_with_calibrated(named, fitting, calibrators))
    shown = chosen or HEADLINE_METRICS
    how = Measures(chosen or DEFAULT_METRICS, shown, n_bins, n_resamples, seed, by_energy=True)
    figures: dict[Key, Figures] = {}
    with (Console() if progress else Reporter()).stage("judging", len(judged)) as advance:
        for key, rows in judged.items():
            figures[key] = _measured(key, rows, how)
            advance()
    document = {
        "format": 1,
        "label_names": list(next(iter(named.values())).label_names),
        "n_bins": n_bins,
        "n_resamples": n_resamples,
        "resampling_seed": seed,
        "rows": [_row(key, judged[key], found) for key, found in figures.items()],
        "paired": _paired_tests(figures, how) if paired and n_resamples else [],
        "detection": {name: detect(named[name], rows, OTHER_TEXTS) for name, rows in outside.items()},
    }
    if all(rows.human is not None for rows in named.values()):
        shown = (*shown, *HUMAN_METRICS)
    return Evaluation(document, {row_name(key): rows for key, rows in judged.items()}, shown)


def _measured(key: Key, rows: Predictions, how: Measures) -> Figures:
    with errors_of(row_name(key)):
        figures = measure_rows(rows, how)
    warn_of(figures.values())
    return figures


def _row(key: Key, rows: Predictions, figures: Figures) -> dict[str, Any]:
    method, posthoc = key
    note = rows.meta["calibrator"]["note"] if posthoc else ""
    return row_of(figures, method=method, posthoc=posthoc, seed=None, test_set="test", note=note)


def _paired_tests(judged: Mapping[Key, Figures], how: Measures) -> list[dict[str, Any]]:
    """Tests of each against the first."""
    (first, theirs), *others = judged.items()
    found = []
    for (method, posthoc), ours in others:
        identity = {"method": method, "posthoc": posthoc, "against": row_name(first)}
        found += compare_figures([ours], [theirs], how, **identity)
    return with_holm(found)


def _checked_metrics(names: Sequence[str] | None) -> tuple[str, ...]:
    """The metrics asked for, all names checked before any work."""
    if names is not None and not names:
        raise EbmcalError("metrics names no metric. Give some, such as accuracy and ece_classwise (--metrics: commas).")
    for name in names or ():
        metric(name)
    return tuple(dict.fromkeys(names or ()))


def _calibrators(given: Any, fit: Any) -> dict[str, Calibrator]:
    """Name → calibrator, not fitted yet."""
    if given and fit is None:
        raise EbmcalError("A calibrator needs fit (--fit): predictions to fit it on, for rows that are not judged.")
    wanted = [given] if isinstance(given, str | Calibrator) else given or ["temperature"]
    return {c if isinstance(c, str) else c.name: make_calibrator(c) if isinstance(c, str) else c for c in wanted}


def _read_all(
    given: Source | Sequence[Source] | Mapping[str, Source], normalize: bool = False
) -> dict[str, Predictions]:
    """Name → predictions, the classes of all in the order of the first where they are the same."""
    known = (Predictions, str, PathLike)
    if not isinstance(given, (*known, Mapping, Sequence)):
        raise EbmcalError(f"evaluate takes predictions or files, or names with them; {type(given).__name__} came.")
    for source in given.values() if isinstance(given, Mapping) else () if isinstance(given, known) else given:
        if not isinstance(source, known):
            raise EbmcalError(f"Predictions or a file are judged; {type(source).__name__} came.")
    if not isinstance(given, Mapping):
        sources = [given] if isinstance(given, Predictions | str | PathLike) else list(given)
        names = [f"predictions {i}" if isinstance(s, Predictions) else str(s) for i, s in enumerate(sources, start=1)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise EbmcalError(f"{twice} was given twice. Give each file once.")
        given = dict(zip(names, sources, strict=True))
    if not given:
        raise EbmcalError("There is nothing to judge. Give predictions, or a file of them.")
    named: dict[str, Predictions] = {}
    for name, source in given.items():
        named[str(name)] = _read(source, str(name), like=next(iter(named.values()), None), normalize=normalize)
    return named


def _read(source: Source, name: str, like: Predictions | None = None, normalize: bool = False) -> Predictions:
    """Predictions, their classes in the order of `like` where they are the same; `name` is for those in memory."""
    rows = source if isinstance(source, Predictions) else Predictions.read(source, normalize=normalize)
    if rows.n_classes < 2:
        raise EbmcalError(
            f"{name if rows is source else source} has one class only ({rows.label_names[0]}). A column for each class "
            "is needed, also for two."
        )
    if like is not None and sorted(rows.label_names) == sorted(like.label_names):
        return rows.in_order(like.label_names)
    return rows


def _same_rows(named: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Those with their rows in the order of the first, matched by id; an error where they are of other rows."""
    (first_name, first), *others = named.items()
    found = {first_name: first}
    for name, rows in others:
        try:
            found[name] = align([first, rows])[1]
        except EbmcalError as error:
            raise EbmcalError(
                f"{name} cannot be compared with {first_name}: {error} Give predictions for the same rows, or judge "
                "each by itself (paired=False, --unpaired)."
            ) from error
    return found


def _partners(
    named: Mapping[str, Predictions], given: Any, option: str, normalize: bool = False
) -> dict[str, Predictions]:
    """Which predictions of an option go with which judged ones."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        for name in given.keys() - named.keys():
            raise unknown_name(f"name in {option}", str(name), named)
        return {n: _read(source, f"{option} of {n}", named[n], normalize) for n, source in given.items()}
    sources = [given] if isinstance(given, Predictions | str | PathLike) else list(given)
    if len(sources) not in (1, len(named)):
        raise EbmcalError(
            f"{option} (--{option}) was given {len(sources)} times for {len(named)} files. "
            "Give it once, or once for each."
        )
    if len(sources) < len(named):
        warnings.warn(
            f"One {option} (--{option}) for {len(named)} files is right only if they are all of one model.",
            stacklevel=3,
        )
        sources = sources * len(named)
    pairs = zip(named.items(), sources, strict=True)
    return {name: _read(source, f"{option} of {name}", rows, normalize) for (name, rows), source in pairs}


def _with_ensemble(
    named: Mapping[str, Predictions], fitting: Mapping[str, Predictions], outside: Mapping[str, Predictions],
    paired: bool,
) -> list[dict[str, Predictions]]:  # fmt: skip
    """The three with the mean of all that are judged as one more, which is fitted on the mean of theirs."""
    if not paired or len(named) < 2:
        raise EbmcalError("An ensemble (--ensemble) is of two files or more, of the same rows (not --unpaired).")
    name = f"ensemble of {len(named)}"
    with errors_of(name):
        return [
            dict(given) | ({name: mean_of(list(given.values()))} if len(given) == len(named) else {})
            for given in (named, fitting, outside)
        ]


def _check_fitting(named: Mapping[str, Predictions], fitting: Mapping[str, Predictions]) -> None:
    for name, rows in fitting.items():
        if rows.label_names != named[name].label_names:
            raise EbmcalError(
                f"fit (--fit) of {name} has the classes {', '.join(rows.label_names)}; {name} has "
                f"{', '.join(named[name].label_names)}. Give predictions of the same model."
            )
        where = f"fit (--fit) of {name}"
        with errors_of(where):
            known = rows.labelled()
        require_two_classes(known, where)


def _with_calibrated(
    named: Mapping[str, Predictions], fitting: Mapping[str, Predictions], calibrators: Mapping[str, Calibrator]
) -> Iterator[tuple[Key, Predictions]]:
    """Each of those judged, and below it the same for each calibrator."""
    for name, rows in named.items():
        yield (name, None), rows
        for spec, calibrator in calibrators.items() if name in fitting else ():
            with errors_of(f"{spec} for {name}"):
                calibrated = calibrator.fit_predictions(fitting[name]).apply(rows)
            yield (name, spec), calibrated


def _name(record: Mapping[str, Any]) -> str:
    return row_name((record["method"], record.get("posthoc")))
