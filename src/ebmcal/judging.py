"""Predictions judged: figures with intervals, paired tests, detection of other texts. The one engine of evaluation.

`ebmcal run` judges the cells of its folder here, `ebmcal evaluate` the files it is given; what comes out is the same
document, `metrics.json` in a run folder, which tables, report and benchmark read:

    rows       [{"method", "posthoc", "seed", "test_set", "n_rows", "note",
                 "metrics": {name: {"value", "low", "high"[, "noise_floor"]}}}]
    over_seeds rows as above, means over the seeds of a method, with "n_seeds" in place of "seed" (two seeds or more)
    paired     [{"method", "posthoc", "against", "seed", "metric", "difference", "low", "high", "p_value", "p_holm",
                 "standard_error", "df"[, "rows_needed", "seeds_needed"]}]
    paired_over_seeds  the same over all seeds that both have, with "n_seeds" in place of "seed" (two seeds or more)
    not_fitted {post-hoc step: why it has no rows}, of runs
    detection  {model: {"<texts> by <score>": {"auroc", "aupr", "fpr_at_95_recall"}}}

Part of the evaluation half: it reads predictions and needs no torch.
"""

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ebmcal.calibrators import Calibrator, FewRows, make_calibrator
from ebmcal.calibrators.held_out import require_two_classes
from ebmcal.ensembles import ensembles_of
from ebmcal.errors import EbmcalError
from ebmcal.metrics import (
    DEFAULT_METRICS,
    HEADLINE_METRICS,
    OOD_SCORES,
    FewRowsWarning,
    holm,
    ood_detection,
    ood_scores,
)
from ebmcal.metrics.comparing import compare_measured, mean_over_seeds
from ebmcal.metrics.human import HUMAN_METRICS
from ebmcal.metrics.intervals import Measured, measure, warn_of
from ebmcal.metrics.registry import N_BINS, Metric, metric
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder

#: Where the calibrators of a run are fitted, and how that is shown: as the paper does.
FITTED_ON = {"train": "train", "calibration": "dev"}

#: Metrics that rank rows, by confidence unless told otherwise.
BY_ENERGY = ("aurc", "error_auroc")


@dataclass(frozen=True)
class Measures:
    """What is measured and how: metrics, bins of the binned ones, resamples of the rows and their seed."""

    metrics: Sequence[str] = DEFAULT_METRICS
    compared: Sequence[str] = HEADLINE_METRICS
    n_bins: int = N_BINS
    n_resamples: int = 1000
    seed: int = 0
    by_energy: bool = False  # rank by energy too, where there are energies

    def options(self, which: Metric) -> dict[str, Any]:
        return {"n_bins": self.n_bins} if which.binned else {}


def judge(
    predictions: Predictions,
    how: Measures = Measures(),
    *,
    method: str,
    posthoc: str | None = None,
    seed: int | None = None,
    test_set: str = "test",
    note: str = "",
) -> dict[str, Any]:
    """A row of the document: every metric on the labelled rows, with intervals over the same resamples.

    >>> rows = Predictions([0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.4, 0.6]])
    >>> judge(rows, Measures(["accuracy"], n_resamples=10), method="mine")["metrics"]["accuracy"]["value"]
    1.0
    """
    figures = measure_rows(predictions, how)
    warn_of(figures.values())
    identity = {"method": method, "posthoc": posthoc, "seed": seed, "test_set": test_set}
    return row_of(figures, **identity, note=note)


#: Metrics as they were measured on the rows of some predictions.
Figures = Mapping[str, Measured]


def measure_rows(predictions: Predictions, how: Measures) -> Figures:
    """Every metric on the labelled rows, over the same resamples of them."""
    known = predictions.labelled()
    wanted = {name: (metric(name), how.options(metric(name))) for name in how.metrics}
    if how.by_energy and known.energies is not None:
        scores = {"scores": -known.energies}  # low energy = looks like data = trusted
        wanted |= {f"{name}_by_energy": (metric(name), scores) for name in BY_ENERGY if name in how.metrics}
    if known.human is not None:
        wanted |= {name: (which, {"human": known.human}) for name, which in HUMAN_METRICS.items()}
    return measure(wanted, known.labels, known.probabilities(), n_resamples=how.n_resamples, seed=how.seed)


def row_of(figures: Figures, *, note: str = "", **identity: Any) -> dict[str, Any]:
    """A row of the document."""
    n_rows = next(iter(figures.values())).n_rows
    found = {name: figure.interval().to_json() for name, figure in figures.items()}
    return {**identity, "n_rows": n_rows, "note": note, "metrics": found}


def compare(
    ours: Predictions, theirs: Predictions, how: Measures = Measures(), **identity: Any
) -> list[dict[str, Any]]:
    """Paired tests of two sets of predictions for the same rows in the same order, each with its `identity`.

    >>> theirs = Predictions([0, 1] * 50, ("no", "yes"), probs=[[0.6, 0.4], [0.4, 0.6]] * 50)
    >>> ours = theirs.with_probs([[0.9, 0.1], [0.1, 0.9]] * 50)
    >>> round(compare(ours, theirs, Measures(compared=["nll"]), method="ours")[0]["difference"], 3)
    -0.405
    """
    a, b = (measure_rows(rows, replace(how, metrics=how.compared)) for rows in (ours, theirs))
    return with_holm(compare_figures([a], [b], how, **identity))


def compare_figures(
    ours: Sequence[Figures], theirs: Sequence[Figures], how: Measures, **identity: Any
) -> list[dict[str, Any]]:
    """Paired tests of figures of the same rows, one for each seed."""
    return [
        {**identity, "metric": name, **compare_measured([f[name] for f in ours], [f[name] for f in theirs]).to_json()}
        for name in how.compared
    ]


def with_holm(tests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tests with p-values that may be looked at together."""
    adjusted = holm([test["p_value"] for test in tests])
    return [{**test, "p_holm": p} for test, p in zip(tests, adjusted, strict=True)]


def detect(inside: Predictions, outside: Predictions, texts: str) -> dict[str, dict[str, float]]:
    """How well each score tells other `texts`: "<texts> by <score>" → measure → value.

    Scores are energy, largest probability and entropy, and the distances that both predictions have. Energies are those
    of the predictions, or are read off the logits (−logsumexp); without either there are none.
    """
    found = {}
    for kind in OOD_SCORES:
        given = _score_inputs(kind, inside, outside)
        if given is not None:
            found[f"{texts} by {kind}"] = ood_detection(*(ood_scores(kind, **options) for options in given))
    ours, theirs = (rows.distances or {} for rows in (inside, outside))
    for name in (name for name in ours if name in theirs):
        found[f"{texts} by {name}"] = ood_detection(-ours[name], -theirs[name])
    return found


def _score_inputs(kind: str, *both: Predictions) -> list[dict[str, Any]] | None:
    """What a score is made from, the same on both sides; None where one of them lacks it."""
    if kind != "energy":
        return [{"probs": rows.probs} for rows in both]
    for name in ("energies", "logits"):
        if all(getattr(rows, name) is not None for rows in both):
            return [{name: getattr(rows, name)} for rows in both]
    return None


def judge_run(
    folder: RunFolder, cells: Sequence[Cell], posthoc: Sequence[str] = (), how: Measures = Measures()
) -> dict[str, Any]:
    """The document's rows, paired tests (against the baseline of the same seed) and detection, of cells of a run.

    Post-hoc calibrators are fitted on the training predictions, shown as (train), and on the calibration split, shown
    as (dev); one that cannot be fitted has no row, but a reason. Each file of predictions is read once.
    """
    document: dict[str, Any] = {"rows": [], "detection": {}, "not_fitted": {}}
    seeds: Seeds = {}
    with warnings.catch_warnings():
        # Small splits and fits that failed are in the notes; a warning for each of many rows would drown the table.
        warnings.simplefilter("ignore", FewRowsWarning)
        warnings.simplefilter("ignore", FewRows)
        warnings.filterwarnings("ignore", message=".* did not (settle|converge)")
        for cell in cells:
            tests = {s: _read(folder, cell, s) for s in folder.splits(cell) if s.startswith("test")}
            calibrators, failed = _calibrators(folder, cell, posthoc)
            document["not_fitted"] |= failed
            for row, figures in _cell_rows(cell, tests, calibrators, how):
                document["rows"].append(row)
                seeds.setdefault((row["method"], row["posthoc"], row["test_set"]), {})[cell.seed] = figures
            others = [s for s in folder.splits(cell) if s == "noise" or s.startswith("ood_")]
            for split in others:
                found = detect(tests["test"], _read(folder, cell, split), split)
                document["detection"].setdefault(cell.name, {}).update(found)
        document["rows"] += _ensemble_rows(folder, cells, posthoc, how)
    return document | {"over_seeds": list(_over_seeds(seeds))} | _paired(seeds, how)


#: (method, post-hoc step, test set) → seed → figures.
Seeds = dict[tuple[str, str | None, str], dict[int, Figures]]


def _over_seeds(seeds: Seeds) -> Iterator[dict[str, Any]]:
    """Means over seeds, where there are several, with intervals over seeds and rows together."""
    for (method, posthoc, test_set), runs in seeds.items():
        if len(runs) > 1:
            every = list(runs.values())
            found = {name: mean_over_seeds([figures[name] for figures in every]).to_json() for name in every[0]}
            yield {"method": method, "posthoc": posthoc, "test_set": test_set, "n_seeds": len(runs), "metrics": found}


def _paired(seeds: Seeds, how: Measures) -> dict[str, list[dict[str, Any]]]:
    """Every method against the baseline on the test rows: each seed by itself, and all that both have together."""
    theirs = seeds.get(("baseline", None, "test"), {})
    single, together = [], []
    for (method, posthoc, test_set), runs in seeds.items():
        if method == "baseline" or posthoc is not None or test_set != "test":
            continue
        both = [seed for seed in runs if seed in theirs]
        identity: dict[str, Any] = {"method": method, "against": "baseline"}
        for seed in both:
            single += compare_figures([runs[seed]], [theirs[seed]], how, **identity, seed=seed)
        if len(both) > 1:
            ours, others = ([found[seed] for seed in both] for found in (runs, theirs))
            together += compare_figures(ours, others, how, **identity, n_seeds=len(both))
    return {"paired": with_holm(single), "paired_over_seeds": with_holm(together)}


def _ensemble_rows(
    folder: RunFolder, cells: Sequence[Cell], posthoc: Sequence[str], how: Measures
) -> Iterator[dict[str, Any]]:
    """A row for the seeds of a method together, with "n_members" in place of a seed."""
    for identity, predictions in ensembles_of(folder, cells, posthoc):
        yield judge(predictions, how, **identity) | {"n_members": len(predictions.meta["ensemble"])}


def _read(folder: RunFolder, cell: Cell, split: str) -> Predictions:
    return Predictions.read(folder.predictions(cell, split))


def _calibrators(folder: RunFolder, cell: Cell, posthoc: Sequence[str]) -> tuple[dict[str, Calibrator], dict[str, str]]:
    """Every post-hoc calibrator of a cell, fitted, by the name it is shown under; of others why they could not be."""
    rows = {split: _read(folder, cell, split) for split in (FITTED_ON if posthoc else ())}
    fitted, failed = {}, {}
    for name, (split, shown) in itertools.product(posthoc, FITTED_ON.items()):
        try:  # models are trained by now: what one calibrator cannot do must not take the rest away
            require_two_classes(rows[split], f"{split} split")
            fitted[f"{name} ({shown})"] = make_calibrator(name).fit_predictions(rows[split])
        except EbmcalError as error:
            failed[f"{name} ({shown})"] = str(error)
    return fitted, failed


def _cell_rows(
    cell: Cell, tests: dict[str, Predictions], calibrators: dict[str, Calibrator], how: Measures
) -> Iterator[tuple[dict[str, Any], Figures]]:
    for test_set, rows in tests.items():
        judged = [(None, "", rows), *((shown, c.note, c.apply(rows)) for shown, c in calibrators.items())]
        for posthoc, note, predictions in judged:
            figures = measure_rows(predictions, how)
            identity = {"method": cell.method, "posthoc": posthoc, "seed": cell.seed, "test_set": test_set}
            yield row_of(figures, **identity, note=note), figures
