"""Paired tests as a table: who differs from whom, how sure that is, and how much more would settle it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ebmcal.tables.document import Document, heading, method_rank, row_name
from ebmcal.tables.table import Column, Entry, Table, TableRow

COLUMNS = {
    "method": Column("method", "Method"),
    "against": Column("against", "Against"),
    "seed": Column("seed", "Seed"),
    "metric": Column("metric", "Metric"),
    "difference": Column("difference", "Difference"),
    "p_value": Column("p_value", "p", digits=None),
    "p_holm": Column("p_holm", "p (Holm)", digits=None),
    "needed": Column("needed", "Would settle it"),
}
NOTE = (
    "Method minus the one it is set against, on the same rows. p is below 0.05 exactly where the 95% interval leaves "
    "out 0; of {n} tests, look at p (Holm), which may be read together. The last column: roughly how much would show a "
    "difference of this size, four times in five."
)


def paired_table(document: Document, *, each_seed: bool = False) -> Table:
    """Methods against the baseline: all seeds together where there are several, unless `each_seed` is wanted.

    >>> test = {"method": "hidden", "against": "baseline", "n_seeds": 3, "metric": "nll", "difference": -0.1}
    >>> [entry.text() for entry in paired_table({"paired_over_seeds": [test]}).rows[0].entries][:4]
    ['hidden', 'baseline', 'all 3', 'NLL']
    """
    together = document.get("paired_over_seeds")
    title = "Paired tests over all seeds" if together and not each_seed else "Paired tests"
    tests = (document.get("paired") if each_seed else together or document.get("paired")) or []
    tests = sorted(tests, key=lambda test: method_rank(str(test.get("method")))[0])
    return _table(title, tests, tuple(COLUMNS), document)


def difference_table(document: Document, title: str) -> Table:
    """The paired tests of files, all against the same one, which the `title` names."""
    names = [name for name in COLUMNS if name not in ("against", "seed")]
    table = _table(title, document.get("paired") or [], names, document)
    return replace(table, columns=(Column("method", "File"), *table.columns[1:]))


def _table(title: str, tests: Sequence[Mapping[str, Any]], names: Sequence[str], document: Document) -> Table:
    rows = []
    for test in tests:
        entries = _entries(test, document.get("n_bins"))
        rows.append(TableRow(tuple(entries[name] for name in names), section=entries["method"].text()))
    notes = (NOTE.format(n=len(rows)),) if rows else ()
    return Table(title, tuple(COLUMNS[name] for name in names), tuple(rows), notes)


def _entries(test: Mapping[str, Any], n_bins: int | None) -> dict[str, Entry]:
    return {
        "method": Entry(row_name((str(test.get("method")), test.get("posthoc")))),
        "against": Entry(test.get("against")),
        "seed": Entry(f"all {test['n_seeds']}" if test.get("n_seeds") else test.get("seed")),
        "metric": Entry(heading(str(test.get("metric", "")), n_bins).title),
        "difference": Entry(test.get("difference"), low=test.get("low"), high=test.get("high")),
        "p_value": p_entry(test.get("p_value")),
        "p_holm": p_entry(test.get("p_holm")),
        "needed": Entry(needed(test)),
    }


def p_entry(p: Any) -> Entry:
    """A p-value; very small ones by their bound."""
    return Entry("< 0.0001" if isinstance(p, int | float) and p < 0.0001 else p)


def needed(test: Mapping[str, Any]) -> str | None:
    """How many rows or seeds would settle a difference, in words.

    >>> needed({"rows_needed": 1300}), needed({"seeds_needed": 7}), needed({})
    ('some 1,300 rows', 'some 7 seeds', None)
    """
    for what in ("rows", "seeds"):
        count = test.get(f"{what}_needed")
        if isinstance(count, int):
            return f"some {count:,} {what}" if count <= 10**7 else f"more than ten million {what}"
    return None
