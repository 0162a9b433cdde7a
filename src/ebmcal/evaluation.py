"""Prediction files judged: figures with intervals, paired tests against the first, out-of-domain detection.

What `ebmcal evaluate` does, as functions on named `Predictions`; above metrics and tables, below the command line.
Figures are kept as name → metric → value, so that tables, JSON and the report are made from one thing.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.metrics import DEFAULT_METRICS, OOD_SCORES, Interval, PairedTest, ood_detection, ood_scores, paired_test
from ebmcal.metrics.bootstrap import intervals
from ebmcal.metrics.registry import METRICS, N_BINS, Metric, metric
from ebmcal.predictions import Predictions, align
from ebmcal.tables import Column, Entry, Row, Table, mark_best

SHOWN = ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier")
BY_ENERGY = ("aurc", "error_auroc")
OOD_TITLES = {"auroc": "AUROC", "aupr": "AUPR", "fpr_at_95_recall": "FPR at 95% recall"}


@dataclass(frozen=True)
class Resampling:
    """How sure the figures are is found with these: bins of the binned metrics, resamples and their seed."""

    n_bins: int = N_BINS
    n_resamples: int = 1000
    seed: int = 0

    def options(self, which: Metric) -> dict[str, Any]:
        return {"n_bins": self.n_bins} if which.binned else {}


@dataclass(frozen=True)
class Evaluation:
    """Figures of each name, in order; `paired` holds those set against the first; `ood` is name → measure → value."""

    how: Resampling
    figures: Mapping[str, Mapping[str, Interval]]
    n_rows: Mapping[str, int]
    paired: Mapping[str, Mapping[str, PairedTest]] = field(default_factory=dict)
    ood: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def first(self) -> str:
        return next(iter(self.figures))


def judge(
    named: Mapping[str, Predictions], metrics: Sequence[str] = DEFAULT_METRICS, how: Resampling = Resampling()
) -> Evaluation:
    """Every metric of every file on its labelled rows; with energies also the rankings by energy.

    >>> rows = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> judge({"mine": rows}, ["accuracy"], Resampling(n_resamples=10)).figures["mine"]["accuracy"].value
    1.0
    """
    figures, n_rows = {}, {}
    for name, rows in named.items():
        with about(name):
            known = rows.labelled()
            figures[name], n_rows[name] = _figures(known, metrics, how), known.n_rows
    return Evaluation(how, figures, n_rows)


@contextlib.contextmanager
def about(name: str | Path) -> Iterator[None]:
    """Put the name of the file in front of what is wrong with it."""
    try:
        yield
    except EbmcalError as error:
        raise EbmcalError(f"{name}: {error}") from error


def _figures(rows: Predictions, metrics: Sequence[str], how: Resampling) -> dict[str, Interval]:
    wanted = {name: (metric(name), how.options(metric(name))) for name in metrics}
    if rows.energies is not None:
        by_energy = {"scores": -rows.energies}  # low energy = looks like data = trusted
        wanted |= {f"{name}_by_energy": (metric(name), by_energy) for name in BY_ENERGY if name in metrics}
    return intervals(wanted, rows.labels, rows.probabilities(), n_resamples=how.n_resamples, seed=how.seed)


def same_rows(named: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """The files with their rows in the order of the first, matched by id; an error where they are of other rows."""
    (first_name, first), *others = named.items()
    found = {first_name: first}
    for name, rows in others:
        try:
            found[name] = align([first, rows])[1]
        except EbmcalError as error:
            raise EbmcalError(
                f"{name} cannot be compared with {first_name}: {error} Give files of the same rows, or judge each by "
                "itself (--unpaired)."
            ) from error
    return found


def compare(
    named: Mapping[str, Predictions], metrics: Sequence[str] = SHOWN, how: Resampling = Resampling()
) -> dict[str, dict[str, PairedTest]]:
    """Each file after the first set against the first; their rows must be in the same order (`same_rows`).

    >>> sure = Predictions([0, 1] * 50, ("no", "yes"), probs=[[0.9, 0.1], [0.1, 0.9]] * 50)
    >>> vague = sure.with_probs([[0.6, 0.4], [0.4, 0.6]] * 50)
    >>> round(compare({"vague": vague, "sure": sure}, ["nll"])["sure"]["nll"].difference, 3)
    -0.405
    """
    (first_name, first), *others = [(name, rows.labelled()) for name, rows in named.items()]
    for name, rows in others:
        if list(rows.ids) != list(first.ids):
            raise EbmcalError(f"{name} and {first_name} are not of the same rows in the same order.")
    return {name: _tests(first, rows, metrics, how) for name, rows in others}


def _tests(first: Predictions, rows: Predictions, metrics: Sequence[str], how: Resampling) -> dict[str, PairedTest]:
    probs, probs_first = rows.probabilities(), first.probabilities()
    return {
        name: paired_test(
            name,
            first.labels,
            probs,
            probs_first,
            n_resamples=how.n_resamples,
            seed=how.seed,
            **how.options(metric(name)),
        )
        for name in metrics
    }


def detect(inside: Predictions, outside: Predictions) -> dict[str, float]:
    """How well energy, maximum probability and entropy tell the outside rows: `ood_<score>_<measure>` → value.

    Energies are those of the files, or are read off the logits (−logsumexp); without either there are none.
    """
    found = {}
    for kind in OOD_SCORES:
        scores = [_ood_scores(kind, rows, other) for rows, other in ((inside, outside), (outside, inside))]
        if all(s is not None for s in scores):
            found |= {f"ood_{kind}_{measure}": value for measure, value in ood_detection(*scores).items()}
    return found


def _ood_scores(kind: str, rows: Predictions, other: Predictions) -> Any:
    if kind != "energy":
        return ood_scores(kind, probs=rows.probs)
    if rows.energies is not None and other.energies is not None:
        return ood_scores(kind, energies=rows.energies)
    # Both sides must be scored in the same way.
    return None if rows.logits is None or other.logits is None else ood_scores(kind, logits=rows.logits)


def figure_table(evaluation: Evaluation, metrics: Sequence[str] = SHOWN) -> Table:
    """Files × metrics with intervals, the best figure of each column marked."""
    columns = [Column("file", "File"), Column("n_rows", "Rows"), *(_column(name, evaluation.how) for name in metrics)]
    rows = [
        Row((Entry(name), Entry(evaluation.n_rows[name]), *(_entry(figures[m]) for m in metrics)))
        for name, figures in evaluation.figures.items()
    ]
    n = evaluation.how.n_resamples
    notes = (f"In brackets: 95% bootstrap interval over {n:,} resamples of the rows.",) if n else ()
    return mark_best(Table("", tuple(columns), tuple(rows), notes))


def paired_table(evaluation: Evaluation) -> Table:
    """Each file minus the first, metric by metric, with interval and p-value."""
    columns = (
        Column("file", "File"),
        Column("metric", "Metric"),
        Column("difference", "Difference"),
        Column("p_value", "p"),
    )
    rows = tuple(
        Row((Entry(name), Entry(_title(m, evaluation.how)), _entry(test), Entry(test.p_value)), section=name)
        for name, tests in evaluation.paired.items()
        for m, test in tests.items()
    )
    note = "Interval by paired bootstrap, p by paired permutation, both over the same rows."
    return Table(f"Difference from {evaluation.first}", columns, rows, (note,))


def ood_table(evaluation: Evaluation) -> Table:
    """Files × scores: how well each tells in-domain rows from the others."""
    columns = [Column("file", "File"), Column("score", "Score")]
    columns += [Column(k, title, better=-1 if k.startswith("fpr") else 1) for k, title in OOD_TITLES.items()]
    rows = tuple(
        Row((Entry(name), Entry(kind.replace("_", " ")), *(Entry(found[f"ood_{kind}_{m}"]) for m in OOD_TITLES)))
        for name, found in evaluation.ood.items()
        for kind in OOD_SCORES
        if f"ood_{kind}_auroc" in found
    )
    return mark_best(Table("Out-of-domain detection", tuple(columns), rows, ("In-domain rows are the positives.",)))


def to_json(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """name → metric → {"value", "low", "high"}, with "paired" beside them where the metric was compared."""
    data = {n: {m: i.to_json() for m, i in figures.items()} for n, figures in evaluation.figures.items()}
    for name, tests in evaluation.paired.items():
        for m, test in tests.items():
            data[name][m]["paired"] = {"against": evaluation.first, **test.to_json()}
    for name, found in evaluation.ood.items():
        data[name] |= {m: {"value": value, "low": None, "high": None} for m, value in found.items()}
    return data


def to_document(evaluation: Evaluation) -> dict[str, Any]:
    """The same in the layout of a run's `metrics.json`, for the report."""
    rows = [
        {"method": name, "n_rows": evaluation.n_rows[name], "metrics": {m: i.to_json() for m, i in figures.items()}}
        for name, figures in evaluation.figures.items()
    ]
    paired = [
        {"method": name, "against": evaluation.first, "metric": m, **test.to_json()}
        for name, tests in evaluation.paired.items()
        for m, test in tests.items()
    ]
    return {"rows": rows, "paired": paired}


def _title(name: str, how: Resampling) -> str:
    return METRICS[name].display_with(n_bins=how.n_bins)


def _column(name: str, how: Resampling) -> Column:
    return Column(name, _title(name, how), better=1 if METRICS[name].higher_is_better else -1)


def _entry(figure: Interval | PairedTest) -> Entry:
    value = figure.value if isinstance(figure, Interval) else figure.difference
    has_interval = math.isfinite(figure.low) and math.isfinite(figure.high)
    return Entry(value, low=figure.low, high=figure.high) if has_interval else Entry(value)
