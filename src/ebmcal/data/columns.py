"""Columns and values of a table: which columns are read, one value → a text or a label, labels → classes 0, 1, …

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
MAX_LABELS = 1000
# Bytes that are not UTF-8 are decoded as lone surrogates ("surrogateescape"); JSON escapes can spell them out.
_SURROGATES = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_WHOLE_FLOAT = re.compile(r"^(-?[0-9]{1,18})\.0+$")


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read. A `text` of None becomes "text", "sentence" or the only column, see `resolve`."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None

    def names(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.text, self.pair, self.label, self.id) if name is not None]

    def texts(self) -> list[str]:
        """The text column, and that of the second text of a pair."""
        return [name for name in (self.text, self.pair) if name is not None]

    def resolve(self, present: Sequence[str]) -> "Columns":
        """Fill in the text column and check that each column exists once in `present`.

        >>> Columns(label="y").resolve(["sentence", "y"]).text
        'sentence'
        >>> Columns("txt").resolve(["text", "label"])
        Traceback (most recent call last):
        ebmcal.errors.EbmcalError: Unknown column 'txt'. Did you mean 'text'? Available: text, label. Name the \
right one with text_column (--text-column).
        """
        columns = self if self.text is not None else replace(self, text=_usual_text_column(present))
        roles = {"text": columns.text, "text_pair": columns.pair, "label": columns.label, "id": columns.id}
        counts, seen = Counter(present), dict[str, str]()
        for role, name in roles.items():
            if name is None:
                continue
            if name in seen and role != "id":
                raise EbmcalError(
                    f"Column {name!r} was given as {seen[name]}_column and {role}_column; use two columns."
                )
            seen[name] = role
            if not counts[name]:
                shown = [column if len(column) <= 60 else column[:57] + "..." for column in present[:30]]
                option = f"{role}_column (--{role.replace('_', '-')}-column)"
                raise EbmcalError(f"{unknown_name('column', name, shown)} Name the right one with {option}.")
            if counts[name] > 1:
                raise EbmcalError(f"{counts[name]} columns are named {name!r}; rename all but one.")
        return columns


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
        if isinstance(value, list | tuple | dict | bytes):
            kind = {"dict": "an object", "bytes": "binary data"}.get(type(value).__name__, "a list")
            raise EbmcalError(
                f"Column {column!r} has {kind} at {tally.unit} {place}; expected strings or numbers. Choose another "
                "column or flatten this one."
            )
        value = "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
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


def infer_label_names(values: Sequence[str]) -> tuple[str, ...]:
    """Class names from the distinct labels of a source: integers in numeric order, other names sorted.

    >>> infer_label_names(["10", "9"]), infer_label_names(["b", "a"])
    (('9', '10'), ('a', 'b'))
    """
    if len(values) > MAX_LABELS:
        raise EbmcalError(
            f"The label column has {len(values):,} distinct values ({listed(values, 3)}); expected at most "
            f"{MAX_LABELS:,} classes. Choose another label column."
        )
    numbers = [value for value in values if _INTEGER.fullmatch(value)]
    if numbers and len(numbers) < len(values):
        names = [value for value in values if value not in numbers]
        raise EbmcalError(f"The labels mix numbers ({listed(numbers)}) and names ({listed(names)}). Use one kind.")
    are_plain = all(str(int(value)) == value for value in numbers)  # "01" is a name, not the number 1
    return tuple(sorted(values, key=int if numbers and are_plain else None))


def class_map(names: Sequence[str], by_number: bool) -> dict[str, int]:
    """Label as written → class. With `by_number` and names that are words, "0", "1", … are classes and "-1" is none.

    >>> class_map(("no", "yes"), by_number=True), class_map(("-1", "1"), by_number=True)
    ({'no': 0, 'yes': 1, '0': 0, '1': 1, '-1': -1, '-': -1}, {'-1': 0, '1': 1})
    """
    mapping = {name: i for i, name in enumerate(names)}
    if by_number and not any(_INTEGER.fullmatch(name) for name in names):
        # "-1" and "-" are how the hub and GLUE write a missing label
        mapping |= {str(i): i for i in range(len(names))} | {"-1": -1, "-": -1}
    return mapping


def listed(values: Iterable[str], n: int = 5) -> str:
    """Some values, quoted, for a message.

    >>> listed(["a", "b", "c"], 2)
    "'a', 'b', …"
    """
    values = list(values)
    return ", ".join(repr(value[:60]) for value in values[:n]) + (", …" if len(values) > n else "")
