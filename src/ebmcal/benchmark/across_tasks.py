"""Methods against the baseline over all tasks and seeds of a benchmark: one paired comparison for each metric.

The mean over tasks of the differences on each. The tasks are those of the file, not a sample of all tasks there are;
so the interval is over seeds and rows, and says nothing of other tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ebmcal.judging import with_holm
from ebmcal.metrics import HEADLINE_METRICS
from ebmcal.metrics.comparing import mean_of_tests
from ebmcal.tables import Column, Entry, Table, TableRow
from ebmcal.tables.differences import p_entry
from ebmcal.tables.document import heading

NOTE = (
    "Method minus baseline, the mean of the tasks that both have finished, over the seeds and rows of each; p is below "
    "0.05 exactly where the 95% interval leaves out 0, and p (Holm) may be read together. It is of these tasks alone."
)


def compare_across_tasks(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tests of each method and metric, with the tasks they are over."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for document in documents:
        for test in _tests(document):
            place = (str(test["method"]), str(test["metric"]))
            found.setdefault(place, {})[str(document.get("task"))] = test
    tests = [
        {"method": method, "metric": metric, "tasks": list(of_task), **mean_of_tests(list(of_task.values())).to_json()}
        for (method, metric), of_task in found.items()
    ]
    tests.sort(key=lambda test: HEADLINE_METRICS.index(test["metric"]) if test["metric"] in HEADLINE_METRICS else 99)
    return with_holm(tests)


def across_tasks_table(documents: Sequence[Mapping[str, Any]]) -> Table:
    """The same as a table; empty with fewer than two tasks."""
    columns = (
        Column("method", "Method"),
        Column("metric", "Metric"),
        Column("n_tasks", "Tasks"),
        Column("difference", "Difference"),
        Column("p_value", "p", digits=None),
        Column("p_holm", "p (Holm)", digits=None),
    )
    tests = [test for test in compare_across_tasks(documents) if len(test["tasks"]) > 1]
    rows = tuple(TableRow(_entries(test), section=test["metric"]) for test in tests)
    return Table("Difference from the baseline over all tasks and seeds", columns, rows, (NOTE,) if rows else ())


def _tests(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One test a method and metric: over seeds, or of the only seed."""
    together = document.get("paired_over_seeds") or []
    known = {test["method"] for test in together}
    single = [test for test in document.get("paired") or [] if test["method"] not in known]
    return [test for test in [*together, *single] if test.get("standard_error") is not None]


def _entries(test: Mapping[str, Any]) -> tuple[Entry, ...]:
    return (
        Entry(test["method"]),
        Entry(heading(test["metric"]).title),
        Entry(len(test["tasks"])),
        Entry(test["difference"], low=test["low"], high=test["high"]),
        p_entry(test["p_value"]),
        p_entry(test["p_holm"]),
    )
