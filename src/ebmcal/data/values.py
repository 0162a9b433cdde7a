"""Values of a table: which columns are read, and one value → a text, a label or an id.

Texts are cleaned of what no tokenizer and no Arrow file accepts (bytes that are not UTF-8, NUL). Whatever is cleaned
or left out is counted in a `Tally`, which the audit prints.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ebmcal.errors import EbmcalError, unknown_name

#: A visible character, in a form that all regular expression dialects understand: no space, control character or BOM.
INK = r"[^\s\x00-\x20\x7f-\xa0\ufeff]"

#: Reasons in the tally that other modules look up.
NOT_UTF8, NUL = "characters that are not UTF-8", "NUL characters"

N_PLACES = 5  # lines or rows remembered per reason
# Bytes that are not UTF-8 are decoded as lone surrogates ("surrogateescape"); JSON escapes can spell them out.
_SURROGATES = re.compile("[\ud800-\udfff]")
_WHOLE_FLOAT = re.compile(r"^(-?[0-9]{1,18})\.0+$")
_KINDS: dict[type, str] = {list: "a list", tuple: "a list", dict: "an object", bytes: "binary data"}


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; `where` keeps only the rows with that value in a column.

    A `text` of None becomes "text", "sentence" or the only column, see `resolve`. `other`: read all other columns too.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None
    where: tuple[str, str] | None = None
    other: bool = False

    def names(self) -> list[str]:
        """The columns that are read."""
        named = [self.text, self.pair, self.label, self.id, self.where[0] if self.where else None]
        return [name for name in named if name is not None]

    def wanted(self, present: Iterable[str]) -> list[str]:
        """Those of the `present` columns that are read."""
        names = self.names()
        return [name for name in dict.fromkeys(present) if self.other or name in names]

    def texts(self) -> list[str]:
        """The text column, and that of the second text of a pair."""
        return [name for name in (self.text, self.pair) if name is not None]

    def override(self, other: "Columns") -> "Columns":
        """These columns, replaced by the names that `other` has."""
        return replace(self, **{k: v for k, v in vars(other).items() if v})

    def resolve(self, present: Sequence[str]) -> "Columns":
        """Fill in the text column and check that each column exists once in `present`.

        >>> Columns(label="y").resolve(["sentence", "y"]).text
        'sentence'
        >>> Columns("txt").resolve(["text", "label"])
        Traceback (most recent call last):
        ebmcal.errors.EbmcalError: Unknown column 'txt'. Did you mean 'text'? Available: text, label. Name the \
right one with text_column.
        """
        columns = self if self.text is not None else replace(self, text=_usual_text_column(present))
        roles = {"text": columns.text, "text_pair": columns.pair, "label": columns.label, "id": columns.id}
        named = {role: name for role, name in roles.items() if name is not None}
        columns._check_distinct({role: name for role, name in named.items() if role != "id"})
        counts = Counter(present)
        for role, name in (named | ({"where": self.where[0]} if self.where else {})).items():
            if not counts[name]:
                shown = [column if len(column) <= 60 else column[:57] + "..." for column in present[:30]]
                problem = unknown_name("column", name, shown)
                raise EbmcalError(f"{problem} Name the right one with {role}_column.")
            if counts[name] > 1:
                raise EbmcalError(f"{counts[name]} columns are named {name!r}; rename all but one.")
        return columns

    def _check_distinct(self, named: dict[str, str]) -> None:
        for name, count in Counter(named.values()).items():
            if count > 1:
                first, second = [role for role in named if named[role] == name][:2]
                raise EbmcalError(
                    f"Column {name!r} was given as {first}_column and as {second}_column; they must differ."
                )


def _usual_text_column(present: Sequence[str]) -> str:
    named = [name for name in ("text", "sentence") if name in present]
    return (named or (present if len(present) == 1 else ["text"]))[0]


class Tally:
    """Counts by group ("left_out", "cleaned", "notes") and reason, with the first places; `unit` is "line" or "row".

    >>> tally = Tally(); tally.add("left_out", "too few fields", 7); tally.as_dict()["left_out"]
    {'too few fields': {'count': 1, 'first': [7]}}
    """

    def __init__(self, unit: str = "row") -> None:
        self.unit = unit
        self._groups: dict[str, dict[str, dict[str, Any]]] = {"left_out": {}, "cleaned": {}, "notes": {}}

    def add(self, group: str, reason: str, place: int, count: int = 1) -> None:
        """Count `reason` at a place."""
        entry = self._groups[group].setdefault(reason, {"count": 0, "first": []})
        entry["count"] += count
        if len(entry["first"]) < N_PLACES:
            entry["first"].append(place)

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Group → reason → {"count", "first"}."""
        return {group: dict(sorted(reasons.items())) for group, reasons in self._groups.items()}


def as_text(value: Any, column: str, place: int, tally: Tally) -> str:
    """A text; null becomes "", numbers are written out, lists and objects are an error.

    >>> as_text(3, "text", 0, Tally()), as_text(None, "text", 0, Tally()), as_text("None", "text", 0, Tally())
    ('3', '', 'None')
    """
    if type(value) is not str:
        value = _as_string(value, column, f"{tally.unit} {place}")
    if "\0" in value:
        tally.add("cleaned", NUL, place)
        value = value.replace("\0", " ")
    if has_surrogates(value):
        tally.add("cleaned", NOT_UTF8, place)
        value = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


def as_label(value: Any, column: str, place: int, tally: Tally) -> str | None:
    """A label as a string, None if it is missing; 1.0 and "1.0" are the class "1".

    >>> as_label(1.0, "label", 0, Tally()), as_label(" pos ", "label", 0, Tally()), as_label("", "label", 0, Tally())
    ('1', 'pos', None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    written = as_text(value, column, place, tally)
    label = written.strip()
    if label != written and label:
        tally.add("cleaned", "labels with surrounding spaces", place)
    return (_WHOLE_FLOAT.sub(r"\1", label) if "." in label else label) or None


def has_surrogates(text: str) -> bool:
    """Whether a text contains a lone surrogate (half a character), which neither UTF-8 nor tokenizers accept."""
    return not text.isascii() and _SURROGATES.search(text) is not None


def is_blank(text: str) -> bool:
    """Whether a text has no visible character.

    >>> is_blank(" \\n"), is_blank("a")
    (True, False)
    """
    return re.search(INK, text) is None


def row_key(text: str, pair: str | None = None) -> int:
    """64 bits that identify the content of a row; equal texts have equal keys.

    >>> row_key("a") == row_key("a"), row_key("a", "b") == row_key("ab", "")
    (True, False)
    """
    content = f"{len(text)} {text}{pair or ''}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _as_string(value: Any, column: str, place: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if type(value) in _KINDS:
        raise EbmcalError(
            f"Column {column!r} has {_KINDS[type(value)]} at {place}; expected strings or numbers. Choose another "
            "column or flatten this one."
        )
    return str(value)


def listed(values: Iterable[str], n: int = 5) -> str:
    """Some values, quoted, for a message.

    >>> listed(["a", "b", "c"], 2)
    "'a', 'b', …"
    """
    values = list(values)
    return ", ".join(repr(value[:60]) for value in values[:n]) + (", …" if len(values) > n else "")
