"""`Evaluation`: everything that was measured, as tidy data frames; `evaluate_trials` fills it for the models of a run.

Metrics of one model, calibrator and test set are `Estimates`; they become records of the frames.
"""

import contextlib
import math
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.advice import confidence_gap
from ebmcal.calibration import Calibrator, FewRowsWarning, LeakageWarning, make_calibrator
from ebmcal.calibration.leakage import check_two_classes
from ebmcal.errors import EbmcalError
from ebmcal.metrics import (
    DEFAULT_METRICS,
    HEADLINE_METRICS,
    OOD_SCORES,
    find_metric,
    ood_bootstrap,
    ood_scores,
)
from ebmcal.metrics.calibration import N_BINS
from ebmcal.metrics.classification import TINY
from ebmcal.metrics.comparison import compare_estimates, holm, mean_over_seeds
from ebmcal.metrics.intervals import Estimate, Interval, estimate
from ebmcal.predictions import Predictions, ensemble
from ebmcal.progress import Reporter
from ebmcal.run_dir import Trial
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    import pandas as pd

    from ebmcal.reports.page import Table

_TEXT, _COUNT, _NUMBER = "object", "Int64", "float64"

#: Frame → its columns and their types.
FRAMES = {
    "results": {
        "model": _TEXT, "method": _TEXT, "seed": _COUNT, "n_seeds": _COUNT, "calibrator": _TEXT, "test_set": _TEXT,
        "metric": _TEXT, "value": _NUMBER, "low": _NUMBER, "high": _NUMBER, "noise_floor": _NUMBER, "n_rows": _COUNT,
        "note": _TEXT,
    },
    "comparisons": {
        "model": _TEXT, "calibrator": _TEXT, "reference": _TEXT, "test_set": _TEXT, "n_seeds": _COUNT, "metric": _TEXT,
        "difference": _NUMBER, "low": _NUMBER, "high": _NUMBER, "p_value": _NUMBER, "p_adjusted": _NUMBER,
        "standard_error": _NUMBER, "df": _NUMBER, "rows_needed": _COUNT, "seeds_needed": _COUNT,
    },
    "detection": {
        "model": _TEXT, "method": _TEXT, "seed": _COUNT, "texts": _TEXT, "score": _TEXT, "auroc": _NUMBER,
        "low": _NUMBER, "high": _NUMBER, "aupr": _NUMBER, "fpr95": _NUMBER,
    },
}  # fmt: skip

#: Metrics that rank rows; with energies they are computed by energy too.
BY_ENERGY = ("aurc", "error_auroc")

#: Resamples for the intervals of OOD detection, at most.
DETECTION_RESAMPLES = 200

#: Paired tests need at least this many rows.
MIN_COMPARED_ROWS = 30

#: Metrics of the probabilities as a whole; lower is better.
PROPER_SCORES = ("nll", "brier")

#: Split that calibrators are fitted on → how that is shown; (train) and (dev) as in the paper.
FITTED_ON = {"train": "train", "calibration": "dev", "out_of_fold": "cross-fit"}

#: The method that the others are compared with.
REFERENCE = "baseline"

Record = dict[str, Any]
Splits = Mapping[str, Predictions]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics, paired tests and OOD detection of one or more models.

    `results`: one row per model, calibrator (None: as it is), test set and metric, with value, 95% interval, noise
    floor and number of rows. For the trials of a run, `model` is `<method>-seed<N>`; rows over seeds have the method as
    the model, no seed, and `n_seeds`; the ensemble of the seeds is the method `<method> ensemble`.
    `comparisons`: paired tests of a model against a reference on the same rows; `p_adjusted` is Holm's.
    `detection`: how well a score separates test texts from other `texts`; the interval is that of `auroc`.
    `meta`: settings, label names, verdicts, and for runs the other parts of `results.json`.
    `predictions`: what was evaluated, by name; empty if read from JSON.
    """

    results: "pd.DataFrame"
    comparisons: "pd.DataFrame"
    detection: "pd.DataFrame"
    meta: dict[str, Any] = field(default_factory=dict)
    predictions: Mapping[str, Predictions] = field(default_factory=dict)

    @classmethod
    def from_records(cls, frames: Mapping[str, Iterable[Mapping[str, Any]]], **fields: Any) -> "Evaluation":
        """An evaluation from the records of each frame; missing entries are None, NA or NaN."""
        import pandas as pd

        made = {}
        for name, columns in FRAMES.items():
            records = list(frames.get(name) or ())
            try:
                data = {c: pd.Series([r.get(c) for r in records], dtype=kind) for c, kind in columns.items()}
            except (TypeError, ValueError, AttributeError) as error:
                raise EbmcalError(f"{name!r} of the evaluation is damaged: {error}.") from error
            made[name] = pd.DataFrame(data)
        return cls(**made, **fields)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Evaluation":
        """The evaluation that `to_json` described; other entries of the document are kept in `meta`."""
        if not isinstance(document, Mapping) or not isinstance(document.get("results"), list):
            raise EbmcalError("Not an evaluation: expected a JSON object with a list 'results'.")
        return cls.from_records(document, meta={name: v for name, v in document.items() if name not in FRAMES})

    def to_json(self) -> dict[str, Any]:
        """Everything but the predictions as JSON values: the frames as lists of objects, next to `meta`."""
        frames = {name: getattr(self, name).to_dict("records") for name in FRAMES}
        return {
            **self.meta,
            **{name: [{k: _plain(v) for k, v in r.items()} for r in records] for name, records in frames.items()},
        }

    def table(self, *, verbose: bool = False) -> "Table":
        """Models × metrics; `verbose` adds intervals."""
        from ebmcal.reports.tables import summary_table

        return summary_table(self, verbose=verbose)

    def verdicts(self) -> list[str]:
        """On each model: over- or underconfident or not, by how much, what to do; clear differences of NLL, Brier."""
        return list(self.meta.get("verdicts") or ())

    def report(self, path: PathLike) -> Path:
        """Write a self-contained HTML report; returns its path."""
        from ebmcal.reports.report import write_evaluation_report

        return write_evaluation_report(self, path)

    def __repr__(self) -> str:
        return str(self.table())


def _plain(value: Any) -> Any:
    """A JSON value: missing numbers are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) else None


@dataclass(frozen=True)
class Settings:
    """What is computed: metrics, those compared in paired tests, bins, and resamples of the rows and their seed."""

    metrics: Sequence[str] = DEFAULT_METRICS
    compared: Sequence[str] = HEADLINE_METRICS
    n_bins: int = N_BINS
    n_resamples: int = 1000
    seed: int = 0

    @property
    def meta(self) -> Record:
        """The entries of `Evaluation.meta`."""
        return {"n_bins": self.n_bins, "n_resamples": self.n_resamples, "resampling_seed": self.seed}


@dataclass(frozen=True)
class Estimates:
    """The metrics of one model and calibrator on one test set, over the same resamples of its labelled rows."""

    model: str
    by_metric: Mapping[str, Estimate]
    labels: np.ndarray
    method: str | None = None
    seed: int | None = None
    calibrator: str | None = None
    test_set: str = "test"
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.model} + {self.calibrator}" if self.calibrator else self.model

    def records(self) -> Iterator[Record]:
        """One record of the results per metric."""
        for metric, found in self.by_metric.items():
            yield self._record(metric, found.interval(), found.n_rows)

    def _record(self, metric: str, interval: Interval, n_rows: int) -> Record:
        identity = ("model", "method", "seed", "calibrator", "test_set")
        return {
            **{name: getattr(self, name) for name in identity},
            "metric": metric,
            **{name: getattr(interval, name) for name in ("value", "low", "high", "noise_floor")},
            "n_rows": n_rows,
            "note": "; ".join(filter(None, (self.note, *interval.notes))),
        }


def estimate_predictions(predictions: Predictions, settings: Settings, model: str, **identity: Any) -> Estimates:
    """Every metric on the labelled rows of predictions; `identity` holds the other fields of `Estimates`."""
    known = predictions.labelled()
    requested: dict[str, Any] = {}
    for name in settings.metrics:
        metric = find_metric(name)
        requested[name] = metric, {"n_bins": settings.n_bins} if metric.is_binned else {}
        if name in BY_ENERGY and known.energies is not None:
            # A low energy means data-like, hence trusted.
            requested[f"{name}_by_energy"] = metric, {"scores": -known.energies.astype(np.float64)}
    found = estimate(requested, known.labels, known.probs, n_resamples=settings.n_resamples, seed=settings.seed)
    return Estimates(model, found, known.labels, **identity)


def records_over_seeds(several: Sequence[Estimates]) -> Iterator[Record]:
    """Means over the seeds of a method, with intervals over seeds and rows together."""
    first = replace(several[0], model=str(several[0].method), seed=None, note="")
    for metric, found in first.by_metric.items():
        mean = mean_over_seeds([one.by_metric[metric] for one in several])
        yield first._record(metric, mean, found.n_rows) | {"n_seeds": len(several)}


Pair = tuple[Sequence[Estimates], Sequence[Estimates]]


def comparison_records(pairs: Iterable[Pair], compared: Iterable[str], over_seeds: bool = False) -> list[Record]:
    """Paired tests of (ours, theirs) on the same rows, one entry per seed each; p-values are adjusted for all tests."""
    found = []
    for ours, theirs in pairs:
        first, reference = ours[0], theirs[0]
        if len(first.labels) < MIN_COMPARED_ROWS:
            continue
        place = {"calibrator": first.calibrator, "test_set": first.test_set}
        place |= {"model": first.method if over_seeds else first.model}
        place |= {"reference": reference.method if over_seeds else reference.name}
        for metric in compared:
            test = compare_estimates([one.by_metric[metric] for one in ours], [one.by_metric[metric] for one in theirs])
            found.append({**place, "n_seeds": len(ours) if over_seeds else None, "metric": metric, **asdict(test)})
    adjusted = holm([record["p_value"] for record in found])
    return [{**record, "p_adjusted": p} for record, p in zip(found, adjusted, strict=True)]


def not_compared(pairs: Iterable[Pair]) -> Record:
    """An entry of `meta` that says why models were not compared; empty if they were."""
    n_rows = min((len(ours[0].labels) for ours, _ in pairs), default=MIN_COMPARED_ROWS)
    if n_rows >= MIN_COMPARED_ROWS:
        return {}
    rows = "1 row is" if n_rows == 1 else f"{n_rows} rows are"
    return {"not_compared": f"Differences were not tested: {rows} too few, at least {MIN_COMPARED_ROWS} are needed."}


def detection_records(
    inside: Predictions, outside: Predictions, settings: Settings, **identity: Any
) -> Iterator[Record]:
    """How well each score separates other texts from test texts.

    Scores are energy, largest probability, entropy, and the distances that both predictions have.
    """
    n_resamples = min(settings.n_resamples, DETECTION_RESAMPLES)
    for score, values in _detection_scores(inside, outside).items():
        found = ood_bootstrap(*values, n_resamples=n_resamples, seed=settings.seed)
        interval = {"low": found["auroc"].low, "high": found["auroc"].high}
        yield {**identity, "score": score, **{name: found[name].value for name in found}, **interval}


def _detection_scores(*both: Predictions) -> dict[str, list[np.ndarray]]:
    """Score → its values for the test texts and for the other texts, higher for test texts."""
    scores = {}
    for kind in OOD_SCORES:
        # Energies of the predictions, or of their logits; not computed if one side has neither.
        sources = ("energies", "logits") if kind == "energy" else ("probs",)
        source = next((s for s in sources if all(getattr(rows, s) is not None for rows in both)), None)
        if source is not None:
            scores[kind] = [ood_scores(kind, **{source: getattr(rows, source)}) for rows in both]
    ours, theirs = (rows.distances or {} for rows in both)
    return scores | {name: [-ours[name], -theirs[name]] for name in ours if name in theirs}


def calibrate_command(file: str = "FILE", fit: str = "OTHER_ROWS", calibrator: str = "temperature") -> str:
    """The command that calibrates a file of predictions, between backticks."""
    options = {"--predictions": fit, "--apply": file}
    options |= {"--calibrator": calibrator} if calibrator != "temperature" else {}  # the default
    shown = " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items())
    return f"`ebmcal calibrate {shown} --output calibrated.csv`"


#: What to do about miscalibration, after a space.
TODO = " Calibrate it on other labelled rows: {}."


def verdict(
    name: str,
    plain: Predictions,
    found: Estimates,
    calibrated: Mapping[str, Predictions],
    command: str | None = None,
) -> str:
    """Whether a model is over- or underconfident on its labelled rows, by how much, and what to do: the command."""
    known = plain.labelled()
    gap = confidence_gap(known.labels, known.probs)
    sentence = gap.describe(name)
    if gap.verdict is None:
        ece = found.by_metric.get("ece_top_label")
        if ece is None or gap.n_rows < 10 * N_BINS or not ece.interval().low > 0:  # fewer: mostly chance
            return sentence
        sentence = (
            f"{name} is neither over- nor underconfident on average, but miscalibrated: ECE top-label "
            f"{ece.value:.3f} on {gap.n_rows:,} rows (noise floor {ece.interval().noise_floor:.3f})."
        )
    for calibrator, rows in calibrated.items():
        known = rows.labelled()
        after = confidence_gap(known.labels, known.probs)
        more = "Calibrate it on more rows, or on rows that resemble these more." if after.verdict else ""
        more = more or f"Use the calibrated probabilities: {command}."
        return f"{sentence} {after.describe(f'{name} + {calibrator}')} {more}"
    return sentence + (TODO.format(command) if command else "")


def zero_probabilities(name: str, rows: Predictions) -> str:
    """A sentence, after a space, about labels with probability 0, which make the NLL meaningless; else empty."""
    known = rows.labelled()
    n = int((np.take_along_axis(known.probs, known.labels[:, None], axis=1) == 0).sum())
    if not n:
        return ""
    start = "1 row gives" if n == 1 else f"{n:,} rows give"
    rounded = " Were the probabilities rounded? Write more decimals." if rows.logits is None else ""
    return (
        f" {name}: {start} the true label a probability of 0. Its NLL is infinite; each counts {-math.log(TINY):.0f} "
        f"instead, so do not compare it.{rounded}"
    )


def differences(model: str, comparisons: Iterable[Record]) -> str:
    """Sentences, each after a space, about significantly better or worse NLL and Brier scores than the reference's."""
    found: dict[tuple[str, str], list[Record]] = {}
    for test in comparisons:
        if test["model"] == model and test["metric"] in PROPER_SCORES and test["p_adjusted"] < 0.05:
            name = f"{model} + {test['calibrator']}" if test["calibrator"] else model
            found.setdefault((name, test["reference"]), []).append(test)
    sentences = []
    for (name, reference), tests in found.items():
        sizes = ", ".join(f"{find_metric(test['metric']).title} {test['difference']:+.3f}" for test in tests)
        effects = {"worse" if test["difference"] > 0 else "better" for test in tests}
        verdict = f"has significantly {min(effects)} probabilities than {reference}"
        if len(effects) > 1:
            verdict = f"has probabilities that are better than those of {reference} by one score and worse by another"
        sentences.append(f" {name} {verdict}: {sizes} (lower is better).")
    return "".join(sentences)


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
    results = [record for one in found for record in one.records()]
    results += [record for several in _by_method(found) for record in records_over_seeds(several)]
    pairs = list(_pairs(found)) if n_resamples else []
    comparisons = comparison_records(pairs, settings.compared, over_seeds=True)
    names = next((list(rows.label_names) for splits in predictions.values() for rows in splits.values()), [])
    return Evaluation.from_records(
        {"results": results, "comparisons": comparisons, "detection": detection},
        meta=settings.meta
        | {"label_names": names, "not_fitted": not_fitted, "verdicts": list(verdicts.values())}
        | not_compared(pairs),
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
