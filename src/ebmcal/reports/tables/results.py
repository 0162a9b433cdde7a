"""The tidy results of an `Evaluation`, grouped into the rows that tables show: one per model and calibrator."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.metrics import HEADLINE_METRICS, HUMAN_METRICS, METRICS, Metric

if TYPE_CHECKING:
    import pandas as pd

    from ebmcal.evaluation import Evaluation

#: Methods of the paper, in its order; other methods follow in the order of the results.
METHOD_ORDER = ("baseline", "poscal", "scalar", "hidden", "sharp-hidden")

#: Logistic regression on the encoder before finetuning, a row of every run; it has no seeds.
FROZEN_PROBE = "frozen-probe"

Key = tuple[str, str | None]  # method (or model), calibrator


@dataclass(frozen=True)
class Value:
    """A metric of a row: its value, 95% interval, noise floor, and the standard deviation over seeds if known."""

    value: float | None
    low: float | None = None
    high: float | None = None
    noise_floor: float | None = None
    deviation: float | None = None

    @property
    def interval(self) -> str:
        """The interval as text; without one, the standard deviation over seeds.

        >>> Value(0.5, 0.4, 0.6).interval, Value(0.5, deviation=0.02).interval
        ('[0.400, 0.600]', '± 0.020')
        """
        if self.low is not None and self.high is not None:
            return f"[{self.low:.3f}, {self.high:.3f}]"
        return "" if self.deviation is None else f"± {self.deviation:.3f}"


@dataclass(frozen=True)
class Row:
    """The results of a model with a calibrator on a test set; means if it has several seeds."""

    key: Key
    n_seeds: int | None  # None for files of predictions and for ensembles
    n_rows: int | None
    values: Mapping[str, Value]

    @property
    def name(self) -> str:
        return row_name(*self.key)

    @property
    def is_detail(self) -> bool:
        """Whether a short table leaves it out: calibrators fitted on training rows, ensembles of the seeds."""
        return is_ensemble(self.key[0]) or (self.key[1] or "").endswith("(train)")

    def value(self, metric: str) -> float | None:
        return self.values[metric].value if metric in self.values else None


def row_name(model: str, calibrator: str | None) -> str:
    """The name of a model with its calibrator.

    >>> row_name("hidden", "temperature (dev)"), row_name("hidden", None)
    ('hidden + temperature (dev)', 'hidden')
    """
    return f"{model} + {calibrator}" if calibrator else model


def is_ensemble(method: str) -> bool:
    """Whether a row is the ensemble of the seeds of a method: see `ebmcal.evaluation.evaluate_trials`."""
    return method.endswith(" ensemble")


def metric_title(metric: str) -> str:
    """The title of a metric as a heading.

    >>> metric_title("ece_classwise"), metric_title("aurc_by_energy"), metric_title("my_score")
    ('ECE class-wise', 'AURC by energy', 'My score')
    """
    known = _find(metric)
    title = known.title + (" by energy" if metric.endswith("_by_energy") else "") if known else metric.replace("_", " ")
    return title[:1].upper() + title[1:]


def metric_direction(metric: str) -> int:
    """+1 if higher is better, −1 if lower is better, 0 if unknown."""
    known = _find(metric)
    return 0 if known is None else 1 if known.higher_is_better else -1


def _find(metric: str) -> Metric | None:
    return (METRICS | HUMAN_METRICS).get(metric.removesuffix("_by_energy"))


def list_test_sets(evaluation: "Evaluation") -> list[str]:
    """The test sets of an evaluation, in the order of the results."""
    return list(dict.fromkeys(evaluation.results["test_set"]))


def result_rows(results: "pd.DataFrame", test_set: str) -> list[Row]:
    """One row per method (or model) and calibrator; methods in the paper's order, each without calibrator first."""
    frame = results[results["test_set"] == test_set]
    found: dict[Key, list[dict[str, Any]]] = {}
    for record in frame.to_dict("records"):
        name = record.get("method")
        key = (name if isinstance(name, str) else str(record["model"]), text_or_none(record.get("calibrator")))
        found.setdefault(key, []).append(record)
    names = sorted(dict.fromkeys(name for name, _ in found), key=_method_rank)
    keys = sorted(found, key=lambda key: (names.index(key[0]), _calibrator_rank(key[1])))
    return [_row(key, found[key]) for key in keys]


def shown_metrics(evaluation: "Evaluation", rows: Iterable[Row]) -> list[str]:
    """The metrics of a summary: those the user asked for, otherwise the task's metric and the headline metrics."""
    available = dict.fromkeys(name for row in rows for name in row.values)
    usual = [task_metric(evaluation), *HEADLINE_METRICS]
    wanted = dict.fromkeys(evaluation.meta.get("shown_metrics") or usual)
    return list(wanted) if set(wanted) <= set(available) else list(available)


def task_metric(evaluation: "Evaluation") -> str:
    """The headline metric of the task: accuracy or matthews."""
    return str(evaluation.meta.get("task_metric") or "accuracy")


def recommended_key(evaluation: "Evaluation") -> Key | None:
    """The recommended method and calibrator: `meta["recommended"]`, an object with "trial" and "calibrator"."""
    found = evaluation.meta.get("recommended")
    if not isinstance(found, Mapping) or not found.get("trial"):
        return None
    trial = str(found["trial"])
    return trial.rpartition("-seed")[0] or trial, text_or_none(found.get("calibrator"))


def _row(key: Key, records: list[dict[str, Any]]) -> Row:
    """The records over seeds if there are any, otherwise the mean of the records."""
    pooled = [record for record in records if _finite(record.get("seed")) is None]
    metrics = dict.fromkeys(str(record["metric"]) for record in records)
    singles = {m: [r for r in records if r["metric"] == m and _finite(r.get("seed")) is not None] for m in metrics}
    values = {}
    for metric in metrics:
        over_seeds = next((record for record in pooled if record["metric"] == metric), None)
        values[metric] = _value(over_seeds, singles[metric])
    counts = [_finite(record.get("n_rows")) for record in records]
    seeds = max([len(found) for found in singles.values()], default=0) or None
    return Row(key, seeds, int(next((n for n in counts if n is not None), 0)) or None, values)


def _value(pooled: Mapping[str, Any] | None, singles: list[dict[str, Any]]) -> Value:
    found = [value for record in singles if (value := _finite(record["value"])) is not None]
    deviation = float(np.std(found, ddof=1)) if len(found) > 1 else None
    single = pooled if pooled is not None else singles[0] if len(singles) == 1 else None
    if single is not None:
        value, low, high, floor = (_finite(single.get(part)) for part in ("value", "low", "high", "noise_floor"))
        return Value(value, low, high, floor, deviation)
    floors = [floor for record in singles if (floor := _finite(record.get("noise_floor"))) is not None]
    means = (float(np.mean(values)) if values else None for values in (found, floors))
    return Value(next(means), noise_floor=next(means), deviation=deviation)


def _method_rank(method: str) -> int:
    if method == FROZEN_PROBE:
        return len(METHOD_ORDER) + 1
    return METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)


def _calibrator_rank(calibrator: str | None) -> tuple[int, str]:
    """No calibrator, fitted on training rows, on calibration rows, cross-fitted, anything else."""
    endings = ("(train)", "(dev)", "(cross-fit)")
    if calibrator is None:
        return -1, ""
    return next((i for i, end in enumerate(endings) if calibrator.endswith(end)), len(endings)), calibrator


def text_or_none(value: Any) -> str | None:
    """A non-empty text, or None: missing values of a DataFrame are None, NaN or NA."""
    return value if isinstance(value, str) and value else None


def _finite(value: Any) -> float | None:
    """A finite number, or None: missing values of a DataFrame are None, NaN or NA."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    return float(value) if math.isfinite(value) else None
