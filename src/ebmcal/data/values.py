"""What all readers of files share: the columns that are wanted, one value → a text or a label, what was odd, counted.

Texts are cleaned of what no tokenizer and no Arrow file can hold (bytes that are not UTF-8, NUL). Every reader gets
one `Tally`; the audit prints it. Nothing is cleaned or dropped without passing through it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ebmcal.errors import EbmcalError, unknown_name

FIRST = 5  # places remembered for each kind: enough to find the trouble, small for a million bad rows
# Bytes that were not UTF-8 arrive as lone surrogates ("surrogateescape"); JSON can also spell them out.
_SURROGATES = re.compile("[\ud800-\udfff]")
_WHOLE_FLOAT = re.compile(r"^(-?[0-9]{1,18})\.0+$")


#: Something to read in a text, in every dialect of regular expressions: no space, control character or BOM.
INK = r"[^\s\x00-\x20\x7f-\xa0\ufeff]"

#: A reason in the tally: characters that are lost.
NOT_UTF8 = "invalid UTF-8 replaced"


class SourceRow(NamedTuple):
    """One row of a source: its number from 0, its texts, its label as written (None when missing)."""

    number: int
    text: str
    pair: str | None
    label: str | None


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; `where` keeps only rows whose column has that value."""

    text: str
    pair: str | None = None
    label: str | None = None
    where: tuple[str, str] | None = None

    def wanted(self) -> list[str]:
        names = [self.text, self.pair, self.label, self.where[0] if self.where else None]
        return [name for name in names if name is not None]

    def override(self, text: str | None, pair: str | None, label: str | None) -> "Columns":
        """These columns with the names that were given in their place."""
        return Columns(text or self.text, pair or self.pair, label or self.label, self.where)

    def check(self, path: Path, present: Sequence[str], hint: str = "") -> None:
        """Raise unless every wanted column is there exactly once."""
        named = {"text": self.text, "second text": self.pair, "label": self.label}
        for role, name in named.items():
            twice = [other for other in named if name is not None and other != role and named[other] == name]
            if twice:
                raise EbmcalError(
                    f"The column {name!r} was given as the {role} and as the {twice[0]}; they must differ."
                )
        counts = Counter(present)
        for name in self.wanted():
            if counts[name] == 0:
                raise _missing(path, name, present, hint)
            if counts[name] > 1:
                raise EbmcalError(f"{path} has {counts[name]} columns named {name!r}; rename all but one.")


class Tally:
    """Counts by group ("set_aside", "cleaned", "met") and reason, with the first line or row numbers.

    >>> tally = Tally("line"); tally.add("set_aside", "wrong number of fields", 7); tally.as_dict()["set_aside"]
    {'wrong number of fields': {'count': 1, 'first_lines': [7]}}
    """

    def __init__(self, unit: str = "row"):
        self.unit = unit
        self._groups: dict[str, dict[str, tuple[list[int], list[int]]]] = {}

    def add(self, group: str, reason: str, place: int) -> None:
        count, first = self._groups.setdefault(group, {}).setdefault(reason, ([0], []))
        count[0] += 1
        if len(first) < FIRST:
            first.append(place)

    def as_dict(self, groups: Iterable[str] = ("set_aside", "cleaned", "met")) -> dict[str, dict[str, Any]]:
        return {group: self._entries(self._groups.get(group, {})) for group in groups}

    def _entries(self, reasons: dict[str, tuple[list[int], list[int]]]) -> dict[str, Any]:
        return {
            reason: {"count": count[0], f"first_{self.unit}s": list(first)}
            for reason, (count, first) in sorted(reasons.items())
        }


def as_row(number: int, values: Sequence[Any], columns: Columns, place: int, tally: Tally) -> SourceRow:
    """Row `number` of a source from its values for text, pair and label; `place` is its line or row for the tally."""
    return SourceRow(
        number,
        as_text(values[0], columns.text, place, tally),
        None if columns.pair is None else as_text(values[1], columns.pair, place, tally),
        None if columns.label is None else as_label(values[2], columns.label, place, tally),
    )


def as_text(value: Any, column: str, place: int, tally: Tally) -> str:
    """A text; null becomes "", numbers are written out, lists and objects are refused.

    >>> as_text(3, "text", 0, Tally())
    '3'
    """
    if type(value) is not str:
        value = _written_out(value, column, f"{tally.unit} {place}")
    if "\0" in value:
        tally.add("cleaned", "NUL characters turned to spaces", place)
        value = value.replace("\0", " ")
    if has_surrogates(value):
        tally.add("cleaned", NOT_UTF8, place)
        value = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


def has_surrogates(text: str) -> bool:
    """Whether a text holds half a character, which no file and no tokenizer takes."""
    return not text.isascii() and _SURROGATES.search(text) is not None


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read in it.

    >>> is_blank(" \\n"), is_blank("a")
    (True, False)
    """
    return re.search(INK, text) is None


def as_label(value: Any, column: str, place: int, tally: Tally) -> str | None:
    """A label as text, None when missing; 1.0 and "1.0" are the class "1".

    >>> as_label(1.0, "label", 0, Tally()), as_label(" pos ", "label", 0, Tally()), as_label("", "label", 0, Tally())
    ('1', 'pos', None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    written = as_text(value, column, place, tally)
    label = written.strip()
    if label != written and label:
        tally.add("cleaned", "labels with spaces around them, which were taken off", place)
    return (_WHOLE_FLOAT.sub(r"\1", label) if "." in label else label) or None


def _written_out(value: Any, column: str, where: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | dict | tuple | bytes):
        kind = {"list": "a list", "dict": "an object", "tuple": "a list", "bytes": "binary data"}
        raise EbmcalError(
            f"Column {column!r} holds {kind[type(value).__name__]} at {where}; texts and labels must be strings or "
            "numbers. Choose another column or flatten this one."
        )
    return str(value)


def _missing(path: Path, name: str, present: Sequence[str], hint: str) -> EbmcalError:
    shown = [column if len(column) <= 60 else column[:57] + "..." for column in present[:30]]
    return EbmcalError(f"{path}: {unknown_name('column', name, shown)}{hint}")
