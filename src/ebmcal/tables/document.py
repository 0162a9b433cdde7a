"""The rows of a `metrics.json` document, checked and grouped: which methods, which test sets, mean over seeds.

A document may be half finished: a part that is not there yet is empty here, and only a part of the wrong kind is an
error. A row that carries "error" instead of "metrics" is a cell that failed.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ebmcal.config import METHOD_NAMES
from ebmcal.errors import EbmcalError
from ebmcal.metrics import HEADLINE_METRICS, METRICS
from ebmcal.metrics.human import HUMAN_METRICS
from ebmcal.metrics.registry import N_BINS
from ebmcal.tables.table import Column, Entry

Document = Mapping[str, Any]
Key = tuple[str, str | None]  # method, post-hoc step
FAILED = "failed"
TESTS = ("paired", "paired_over_seeds")
RAISED_BY_CHANCE = (
    "An ECE is the plain binned number, which chance pushes up; a perfectly calibrated model would show about the "
    "floor. Its interval is of the true error and may lie below the number."
)


def check_document(document: Any, where: str = "metrics.json") -> Document:
    """The document itself, or an error that names what in it is not as it should be."""
    if not isinstance(document, Mapping):
        raise _damaged(where, f"it holds a {type(document).__name__}, not an object")
    for part in ("rows", "over_seeds", *TESTS, "seeds", "label_names"):
        if not isinstance(document.get(part) or [], list):
            raise _damaged(where, f"{part!r} is a {type(document[part]).__name__}, not a list")
    for index, row in enumerate(document.get("rows") or []):
        _check_row(row, f"{where}: rows[{index}]")
    for index, row in enumerate(document.get("over_seeds") or []):
        _check_row(row, f"{where}: over_seeds[{index}]")
    for part in TESTS:
        for index, test in enumerate(document.get(part) or []):
            if not isinstance(test, Mapping):
                raise _damaged(f"{where}: {part}[{index}]", "a test must be an object")
    return document


def row_name(key: Key) -> str:
    """How a method with its post-hoc step is called in tables.

    >>> row_name(("hidden", "temperature (dev)")), row_name(("hidden", None))
    ('hidden + temperature (dev)', 'hidden')
    """
    method, posthoc = key
    return f"{method} + {posthoc}" if posthoc else method


def method_rank(method: str) -> tuple[int, str]:
    """A sort key: the methods in the paper's order, then others by name."""
    known = METHOD_NAMES.index(method) if method in METHOD_NAMES else len(METHOD_NAMES)
    return known, method


def posthoc_rank(posthoc: str | None) -> tuple[bool, bool, str]:
    """A sort key: none, those fitted on the training split, those fitted on the calibration split (dev), ensembles."""
    name = posthoc or ""
    return name.startswith("ensemble") and not name.startswith("ensemble-"), "(dev)" in name, name


def list_test_sets(document: Document) -> list[str]:
    """The test sets of a document, in the order they appear.

    >>> list_test_sets({"rows": [{"method": "a", "test_set": "test"}, {"method": "b"}]})
    ['test']
    """
    return list(dict.fromkeys(row.get("test_set", "test") for row in document.get("rows") or []))


def rows_by_method(document: Document, test_set: str = "test") -> dict[Key, list[Mapping[str, Any]]]:
    """(method, post-hoc) → its rows, one a seed; methods in the paper's order, each plain first."""
    found: dict[Key, list[Mapping[str, Any]]] = {}
    for row in document.get("rows") or []:
        if row.get("test_set", "test") == test_set:
            found.setdefault((row["method"], row.get("posthoc")), []).append(row)
    methods = list(dict.fromkeys(method for method, _ in found))
    methods.sort(key=lambda method: method_rank(method)[0])  # others than the paper's as they came
    return dict(sorted(found.items(), key=lambda item: (methods.index(item[0][0]), posthoc_rank(item[0][1]))))


def metric_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every metric that appears, the main ones first."""
    seen = dict.fromkeys(name for row in rows for name in row.get("metrics") or {})
    return [name for name in HEADLINE_METRICS if name in seen] + [name for name in seen if name not in HEADLINE_METRICS]


def heading(metric: str, n_bins: int | None = None) -> Column:
    """The column of a metric: its display name and which way is better, from `ebmcal.metrics.METRICS`."""
    known = METRICS.get(metric) or HUMAN_METRICS.get(metric)
    if known is None:
        return Column(metric, metric.replace("_", " "))
    title = known.display_with(n_bins=n_bins or N_BINS)
    return Column(metric, title, better=1 if known.higher_is_better else -1)


def figure(row: Mapping[str, Any], metric: str) -> Entry:
    """One figure of one row, with its interval."""
    if row.get("error"):
        return Entry(FAILED)
    stored = (row.get("metrics") or {}).get(metric)
    if isinstance(stored, Mapping):
        value, low, high, floor = (_finite(stored.get(name)) for name in ("value", "low", "high", "noise_floor"))
        return Entry(value, low=low, high=high, floor=floor)
    return Entry(_finite(stored))


def mean_figure(rows: Iterable[Mapping[str, Any]], metric: str, together: Mapping[str, Any] | None = None) -> Entry:
    """Mean over seeds with their sample standard deviation; a single seed has its interval instead.

    `together` is the row of the document's "over_seeds", which has an interval over seeds and rows for the mean.

    >>> mean_figure([{"metrics": {"nll": 0.4}}, {"metrics": {"nll": 0.5}}], "nll").text()
    '0.450 ± 0.071'
    """
    entries = [figure(row, metric) for row in rows]
    found = [entry for entry in entries if entry.number is not None]
    values = [entry.number for entry in entries if entry.number is not None]
    if len(values) > 1:
        spread = statistics.stdev(values)
        if together is not None and together.get("n_seeds") == len(values):
            return replace(figure(together, metric), spread=spread)
        return Entry(statistics.fmean(values), spread=spread)
    if found:
        return found[0]
    return Entry(FAILED) if any(entry.value == FAILED for entry in entries) else Entry()


def row_over_seeds(document: Document, key: Key, test_set: str) -> Mapping[str, Any] | None:
    """The mean over seeds of a method, where the document has it."""
    place = (*key, test_set)
    found = (row for row in document.get("over_seeds") or [])
    return next((r for r in found if (r["method"], r.get("posthoc"), r.get("test_set", "test")) == place), None)


def interval_notes(rows: Iterable[Mapping[str, Any]], metrics: Iterable[str], n_seeds: int = 1) -> list[str]:
    """What the brackets are, and that chance raises calibration errors where some are shown with their floor."""
    over = "rows" if n_seeds < 2 else f"{n_seeds} seeds and the rows together"
    notes = [f"In brackets: 95% interval over {over}."]
    stored = [(row.get("metrics") or {}).get(name) for row in rows for name in metrics]
    has_floor = any(isinstance(entry, Mapping) and "noise_floor" in entry for entry in stored)
    return [*notes, RAISED_BY_CHANCE] if has_floor else notes


def figure_notes(found: Mapping[Key, list[Mapping[str, Any]]], metrics: Iterable[str]) -> list[str]:
    """What the figures themselves warn of, such as too few rows for the number of bins; each once."""
    stored = ((row.get("metrics") or {}).get(name) for rows in found.values() for row in rows for name in metrics)
    noted = (entry.get("notes") or [] for entry in stored if isinstance(entry, Mapping))
    return list(dict.fromkeys(str(note) for notes in noted if isinstance(notes, list) for note in notes))


def _check_row(row: Any, where: str) -> None:
    if not isinstance(row, Mapping) or not isinstance(row.get("method"), str):
        raise _damaged(where, "a row must be an object with a 'method'")
    figures = row.get("metrics") or {}
    if not isinstance(figures, Mapping):
        raise _damaged(where, f"'metrics' is a {type(figures).__name__}, not an object")
    for name, stored in figures.items():
        value = stored.get("value") if isinstance(stored, Mapping) else stored
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise _damaged(where, f"{name!r} is {value!r}, not a number")


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _damaged(where: str, what: str) -> EbmcalError:
    return EbmcalError(f"{where} is damaged: {what}. Run `ebmcal run` again with the same output folder to rewrite it.")
