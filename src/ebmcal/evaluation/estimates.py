"""From predictions to records of the result frames: metrics with intervals, paired tests, OOD detection."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ebmcal.advice import confidence_gap
from ebmcal.metrics import DEFAULT_METRICS, HEADLINE_METRICS, HUMAN_METRICS, OOD_SCORES, ood_bootstrap, ood_scores
from ebmcal.metrics.calibration import N_BINS
from ebmcal.metrics.comparison import compare_estimates, holm, mean_over_seeds
from ebmcal.metrics.intervals import Estimate, Interval, estimate
from ebmcal.metrics.registry import find_metric
from ebmcal.predictions import Predictions

#: Metrics that rank rows; with energies they are computed by energy too.
BY_ENERGY = ("aurc", "error_auroc")

#: Resamples for the intervals of OOD detection, at most.
DETECTION_RESAMPLES = 200

Record = dict[str, Any]


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
        numbers = {name: getattr(interval, name) for name in ("value", "low", "high", "noise_floor")}
        note = "; ".join(filter(None, (self.note, *interval.notes)))
        identity = {"model": self.model, "method": self.method, "seed": self.seed, "calibrator": self.calibrator}
        return {**identity, "test_set": self.test_set, "metric": metric, **numbers, "n_rows": n_rows, "note": note}


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
    if known.human is not None:
        requested |= {name: (metric, {"human": known.human}) for name, metric in HUMAN_METRICS.items()}
    found = estimate(requested, known.labels, known.probs, n_resamples=settings.n_resamples, seed=settings.seed)
    return Estimates(model, found, known.labels, **identity)


def records_over_seeds(several: Sequence[Estimates]) -> Iterator[Record]:
    """Means over the seeds of a method, with intervals over seeds and rows together."""
    first = replace(several[0], model=str(several[0].method), seed=None, note="")
    for metric, found in first.by_metric.items():
        mean = mean_over_seeds([one.by_metric[metric] for one in several])
        yield first._record(metric, mean, found.n_rows) | {"n_seeds": len(several)}


def comparison_records(
    ours: Sequence[Estimates], theirs: Sequence[Estimates], compared: Iterable[str], **identity: Any
) -> Iterator[Record]:
    """Paired tests of two models on the same rows; one entry per seed. `p_adjusted` is added by `adjust`."""
    for metric in compared:
        test = compare_estimates([one.by_metric[metric] for one in ours], [one.by_metric[metric] for one in theirs])
        place = {"calibrator": ours[0].calibrator, "test_set": ours[0].test_set, "n_seeds": len(ours)}
        yield {**place, **identity, "metric": metric, **asdict(test)}


def adjust(records: Sequence[Record]) -> list[Record]:
    """The records of all tests of an evaluation with p-values adjusted for multiple comparisons."""
    adjusted = holm([record["p_value"] for record in records])
    return [{**record, "p_adjusted": p} for record, p in zip(records, adjusted, strict=True)]


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


def verdict(name: str, plain: Predictions, found: Estimates, calibrated: Mapping[str, Predictions]) -> str:
    """Whether a model is over- or underconfident on its labelled rows, by how much, and what to do."""
    known = plain.labelled()
    gap = confidence_gap(known.labels, known.probs)
    sentence = gap.describe(name)
    if gap.verdict is None:
        ece = found.by_metric.get("ece_top_label")
        if ece is None or not ece.interval().low > 0:
            return sentence
        sentence = (
            f"{name} is neither over- nor underconfident on average, but miscalibrated: ECE top-label "
            f"{ece.value:.3f} on {gap.n_rows:,} rows (noise floor {ece.interval().noise_floor:.3f})."
        )
    for calibrator, rows in calibrated.items():
        after = rows.labelled()
        return f"{sentence} {confidence_gap(after.labels, after.probs).describe(f'With {calibrator}')}"
    return f"{sentence} Calibrate it on other labelled rows (fit=, --fit FILE)."
