"""A table as data: columns, rows of entries, and which entry of a column is the best one.

Made by `comparison`, `paper` and `examples`, turned into text by `render` and into HTML by `ebmcal.report`. Nothing
here knows about metrics: a column says by itself whether more or less is better.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

EMPTY = "–"
Value = float | int | str | None


@dataclass(frozen=True)
class Column:
    """A heading. `better` is +1 when more is better, -1 when less is, 0 when nothing is to be marked.

    `group` is a heading over several columns (a data set); `digits` are shown after the point, None for as many as
    it takes to show four that count.
    """

    key: str
    title: str
    better: int = 0
    group: str = ""
    digits: int | None = 3


@dataclass(frozen=True)
class Entry:
    """One figure or word: with an interval, or a spread over seeds, or neither; a calibration error with its floor.

    >>> Entry(0.8312, spread=0.004).text(), Entry(0.8312, low=0.81, high=0.85).text(), Entry(None).text()
    ('0.831 ± 0.004', '0.831 [0.810, 0.850]', '–')
    >>> Entry(0.05, low=0.0, high=0.03, floor=0.045).text()
    '0.050 (floor 0.045) [0.000, 0.030]'
    """

    value: Value = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    best: bool = False
    floor: float | None = None

    @property
    def number(self) -> float | None:
        """The value where it is a finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return None
        return float(self.value) if math.isfinite(self.value) else None

    def text(self, digits: int | None = 3) -> str:
        """Everything: the value and how sure it is."""
        return f"{self.main(digits)} {self.extra(digits)}".rstrip()

    def main(self, digits: int | None = 3) -> str:
        """The value alone."""
        if self.number is None or not isinstance(self.value, int | float):
            return self.value if isinstance(self.value, str) and self.value else EMPTY
        return format_number(self.value, digits)

    def extra(self, digits: int | None = 3) -> str:
        """How sure the value is, where that is known, and what chance alone would show."""
        if self.number is None:
            return ""
        parts = [f"(floor {format_number(self.floor, digits)})"] if self.floor is not None else []
        if self.low is not None and self.high is not None:
            parts.append(f"[{format_number(self.low, digits)}, {format_number(self.high, digits)}]")
        elif self.spread is not None:
            parts.append(f"± {format_number(self.spread, digits)}")
        return " ".join(parts)


@dataclass(frozen=True)
class TableRow:
    """Entries in column order. Rows with `contest` off are never marked best; a new `section` gets a rule above it."""

    entries: tuple[Entry, ...]
    section: str = ""
    contest: bool = True


@dataclass(frozen=True)
class Table:
    """What every renderer takes."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def has_groups(self) -> bool:
        return any(column.group for column in self.columns)

    def column(self, key: str) -> list[Entry]:
        """The entries of one column, top to bottom."""
        index = [column.key for column in self.columns].index(key)
        return [row.entries[index] for row in self.rows]


#: What the usual number of bins adds to a heading.
BINS = " (20 bins)"


def compact(table: Table) -> Table:
    """The same table without intervals and with short names, for a narrow terminal; spreads over seeds stay.

    >>> wide = Table("t", (Column("a", "a"),), (TableRow((Entry(0.5, low=0.4, high=0.6),)),))
    >>> compact(wide).rows[0].entries[0].text()
    '0.500'
    """
    rows = tuple(replace(row, entries=tuple(map(_compact_entry, row.entries))) for row in table.rows)
    columns = tuple(replace(column, title=column.title.removesuffix(BINS)) for column in table.columns)
    notes = [note for note in table.notes if "In brackets" not in note]
    if columns != table.columns:
        notes.append("ECE with 20 bins.")
    floors = [f"{c.title} {found}" for i, c in enumerate(columns) if (found := _floors(table, i, c.digits))]
    notes += [f"A perfectly calibrated model would show by chance: {', '.join(floors)}."] if floors else []
    return replace(table, rows=rows, columns=columns, notes=tuple(notes))


def _floors(table: Table, index: int, digits: int | None) -> str:
    """The smallest and the largest noise floor of a column."""
    found = [floor for row in table.rows if (floor := row.entries[index].floor) is not None]
    ends = [format_number(end, digits) for end in (min(found), max(found))] if found else []
    return " to ".join(dict.fromkeys(ends))


def _compact_entry(entry: Entry) -> Entry:
    """Without interval and floor; "hidden + temperature (dev)" stands below "hidden" and needs only its second half."""
    name = entry.value.partition(" + ") if isinstance(entry.value, str) else None
    return replace(entry, low=None, high=None, floor=None, value=f"+ {name[2]}" if name and name[2] else entry.value)


def select_columns(table: Table, wanted: Callable[[str], bool]) -> Table:
    """The first column and those whose key is wanted."""
    indices = [i for i, column in enumerate(table.columns) if i == 0 or wanted(column.key)]
    rows = tuple(replace(row, entries=tuple(row.entries[i] for i in indices)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in indices), rows=rows)


def split_wide(table: Table, width: int) -> list[Table]:
    """The same table as several that fit into `width` characters: the first column and some groups of columns each.

    >>> wide = Table("t", (Column("m", "Method"), *(Column(str(i), "ECE", group=f"set {i}") for i in range(4))))
    >>> [[column.title for column in part.columns] for part in split_wide(wide, 32)]
    [['Method', 'set 0\\nECE', 'set 1\\nECE'], ['Method', 'set 2\\nECE', 'set 3\\nECE']]
    """
    parts: list[list[Column]] = [[]]
    for group in dict.fromkeys(column.group for column in table.columns[1:]):
        columns = [column for column in table.columns[1:] if column.group == group]
        if parts[-1] and _width(table, [table.columns[0], *parts[-1], *columns]) > width:
            parts.append([])
        parts[-1] += columns
    made = [_stacked(select_columns(table, {column.key for column in part}.__contains__)) for part in parts]
    return [replace(part, notes=()) for part in made[:-1]] + made[-1:]


def _stacked(table: Table) -> Table:
    """Headings under each other: a test set's name would else stand beside that of the metric and widen the column."""
    columns = (replace(c, group="", title=f"{c.group}\n{c.title}" if c.group else c.title) for c in table.columns)
    return replace(table, columns=tuple(columns))


def _width(table: Table, columns: list[Column]) -> int:
    """Characters on the terminal: the longest figure of each column with its star, or its heading, and the gap."""
    total = 0
    for column in columns:
        figures = [len(entry.text(column.digits)) + 2 * entry.best for entry in table.column(column.key)]
        total += max([*figures, len(column.group), len(column.title)]) + 3
    return total


def format_number(value: float, digits: int | None = 3) -> str:
    """A fixed number of digits after the point (None: four that count), no minus zero; whole numbers stay whole.

    >>> format_number(-0.0001), format_number(12), format_number(float("nan")), format_number(0.00012, None)
    ('0.000', '12', '–', '0.00012')
    """
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return EMPTY
    shown = f"{value:.4g}" if digits is None else f"{value:.{digits}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def mark_best(table: Table) -> Table:
    """The same table with the best entry of each column marked.

    Entries that read the same after rounding share the mark; where all of them read the same, or there is only one,
    nobody has won and nothing is marked.
    """
    winners = [_winners(table, index) for index in range(len(table.columns))]
    rows = [
        replace(row, entries=tuple(replace(e, best=n in winners[i]) for i, e in enumerate(row.entries)))
        for n, row in enumerate(table.rows)
    ]
    return replace(table, rows=tuple(rows))


def groups(columns: Sequence[Column]) -> Iterable[tuple[str, int]]:
    """Runs of columns under the same group heading: (heading, number of columns).

    >>> list(groups([Column("m", ""), Column("a", "acc", group="RTE"), Column("e", "ECE", group="RTE")]))
    [('', 1), ('RTE', 2)]
    """
    runs: list[list[Any]] = []
    for column in columns:
        if runs and runs[-1][0] == column.group:
            runs[-1][1] += 1
        else:
            runs.append([column.group, 1])
    return [(name, length) for name, length in runs]


def _winners(table: Table, index: int) -> set[int]:
    column = table.columns[index]
    numbers = {n: row.entries[index].number for n, row in enumerate(table.rows) if row.contest}
    shown = {n: float(format_number(value, column.digits)) for n, value in numbers.items() if value is not None}
    if not column.better or len(set(shown.values())) < 2:
        return set()
    best = max(shown.values(), key=lambda value: value * column.better)
    return {n for n, value in shown.items() if value == best}
