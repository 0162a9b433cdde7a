"""Several evaluations in the layout of the paper's main table: methods × test sets, performance and ECE for each.

Calibrators on the baseline have rows under their own name; those fitted on the calibration split are listed last and
are not marked best, as in the paper; the same holds for ensembles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ebmcal.reports.tables.published import PUBLISHED, PUBLISHED_NOTE, TEST_SETS, published_set
from ebmcal.reports.tables.results import (
    Key,
    Row,
    Value,
    is_ensemble,
    list_test_sets,
    metric_direction,
    metric_title,
    result_rows,
    row_name,
    task_metric,
)
from ebmcal.reports.tables.table import Column, Table

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation

_SHORT = {"accuracy": "acc.", "matthews": "mcc.", "macro_f1": "F1"}
_ECE_NAMES = {"ece_classwise": "class-wise ECE", "ece_top_label": "top-label ECE"}


@dataclass(frozen=True)
class _TestSet:
    """One test set of one evaluation: the two columns it gets."""

    title: str
    published: str | None
    metrics: tuple[str, str]
    rows: dict[Key, Row]

    @property
    def columns(self) -> list[Column]:
        performance = self.metrics[0]
        return [(self.title, _SHORT.get(performance, metric_title(performance))), (self.title, "ECE")]

    def values(self, key: Key) -> list[Value]:
        row = self.rows.get(key)
        return [row.values.get(metric, Value(None)) if row else Value(None) for metric in self.metrics]


def paper_table(evaluations: Sequence["Evaluation"], *, ece: str = "ece_classwise", published: bool = True) -> Table:
    """Methods × test sets of one evaluation per task, with their average; `ece` is the metric in the ECE columns.

    Averages are over test sets and given only where a method has all of them. Standard deviations are over seeds.
    `published` adds the paper's rows for the same test sets.
    """
    import pandas as pd

    sets = [_test_set(evaluation, name, ece) for evaluation in evaluations for name in list_test_sets(evaluation)]
    keys = _ordered([key for found in sets for key in found.rows])
    lines = [(_name(key), _with_average([found.values(key) for found in sets]), _section(key)) for key in keys]
    notes = [f"ECE: {_ECE_NAMES.get(ece, metric_title(ece))}, 20 bins.", "± standard deviation over seeds."]
    if published and any(found.published for found in sets):
        lines += [(f"{method}, published", _published(sets, method), "published") for method in PUBLISHED]
        notes.append(PUBLISHED_NOTE)
    columns: list[Column] = [column for found in sets for column in found.columns]
    columns += [("Average", "perf."), ("Average", "ECE")] if len(sets) > 1 else []
    better: dict[Column, int] = {
        c: -1 if c[1] == "ECE" else 1 for c in columns if metric_direction(ece) or c[1] != "ECE"
    }
    values = [[name, *(v.value for v in found)] for name, found, _ in lines]
    extras = [["", *("" if v.deviation is None else f"± {v.deviation:.3f}" for v in found)] for _, found, _ in lines]
    index = pd.Index(["Method", *columns], tupleize_cols=False)
    return Table(
        pd.DataFrame(values, columns=index), "Test-set performance and calibration error", tuple(notes), better,
        extra=pd.DataFrame(extras, columns=index), sections=[section for *_, section in lines],
        unranked=frozenset(i for i, (*_, section) in enumerate(lines) if section),
    )  # fmt: skip


def _test_set(evaluation: "Evaluation", name: str, ece: str) -> _TestSet:
    task = str(evaluation.meta.get("task") or "results")
    known = published_set(task, name)
    title = TEST_SETS.get(known or "", task if name == "test" else f"{task} {name}")
    rows = {row.key: row for row in result_rows(evaluation.results, name)}
    return _TestSet(title, known, (task_metric(evaluation), ece), rows)


def _with_average(pairs: Sequence[list[Value]]) -> list[Value]:
    values = [value for pair in pairs for value in pair]
    return values + [_average([pair[i] for pair in pairs]) for i in range(2)] if len(pairs) > 1 else values


def _average(values: Sequence[Value]) -> Value:
    """The mean over all test sets; nothing if one is missing, since averages over fewer sets are not comparable.

    Its standard deviation assumes that seeds of different tasks are independent, which they are.
    """
    numbers = [value.value for value in values if value.value is not None]
    if len(numbers) < len(values):
        return Value(None)
    spreads = [value.deviation for value in values if value.deviation is not None]
    deviation = float(np.sqrt(np.sum(np.square(spreads)))) / len(values) if len(spreads) == len(values) else None
    return Value(float(np.mean(numbers)), deviation=deviation)


def _published(sets: Sequence[_TestSet], method: str) -> list[Value]:
    found = [PUBLISHED[method].get(test_set.published or "", (None, None)) for test_set in sets]
    return _with_average([[Value(value) for value in pair] for pair in found])


def _ordered(keys: Sequence[Key]) -> list[Key]:
    """Without repetitions; calibrators fitted on the calibration split last, then ensembles."""
    return sorted(dict.fromkeys(keys), key=lambda key: ("", "calibration split", "ensembles").index(_section(key)))


def _section(key: Key) -> str:
    if is_ensemble(key[0]):
        return "ensembles"
    return "calibration split" if key[1] and key[1].endswith(("(dev)", "(cross-fit)")) else ""


def _name(key: Key) -> str:
    method, calibrator = key
    return calibrator if method == "baseline" and calibrator else row_name(method, calibrator)
