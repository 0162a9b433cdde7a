"""The data audit: a JSON-able record of what was found in files and splits, and messages that say what was done."""

import difflib
import re
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ebmcal.data.columns import N_PLACES, NOT_UTF8, NUL, listed

if TYPE_CHECKING:
    import pandas as pd

FEW_ROWS = 100  # of a split
FEW_LABEL_ROWS = 5
NO_LABEL_NAMES = ("nan", "null", "none", "na", "n/a", "nil", "missing", "unknown", "?")

#: What was done about each reason of the tally; all other reasons are rows that were left out.
_DONE = {
    NOT_UTF8: "replaced by \ufffd; if the file has another encoding, pass it (--encoding latin-1, cp1252, …)",
    NUL: "replaced by spaces",
    "labels with surrounding spaces": "spaces removed",
    "blank lines": "skipped",
    "rows that span several lines": "read as one row each",
    "lines joined by unmatched quotes": "left out",
}

Entry = dict[str, Any]


def audit_split(
    rows: "pd.DataFrame", names: tuple[str, ...], unit: str, earlier: "dict[str, pd.DataFrame]"
) -> dict[str, Any]:
    """Counts for the rows (label, key, place, is_empty) of a split, and for the texts it shares with earlier splits."""
    counts = rows["label"].value_counts()
    is_copy = rows.duplicated("key")
    conflicts = is_copy & (rows["label"] != rows.groupby("key")["label"].transform("first"))
    return {
        "rows": len(rows),
        "unit": unit,
        "label_counts": {name: int(counts.get(i, 0)) for i, name in enumerate(names)},
        "empty_texts": count_places(rows[rows["is_empty"]]),
        "duplicates": count_places(rows[is_copy]),
        "conflicting_duplicates": count_places(rows[conflicts]),
        "shared": {name: count_places(rows[rows["key"].isin(other["key"])]) for name, other in earlier.items()},
    }


def count_places(rows: "pd.DataFrame") -> Entry:
    """{"count", "first"}: the number of rows and where the first of them are."""
    return {"count": len(rows), "first": rows["place"].iloc[:N_PLACES].tolist()}


def audit_messages(audit: dict[str, Any]) -> list[str]:
    """The audit in sentences: what was found and what was done. Lines count from 1, rows from 0.

    >>> entry = {"count": 1, "first": [7]}
    >>> audit_messages({"files": {}, "splits": {"train": {"rows": 200, "unit": "line", "duplicates": entry}}})
    ['train: 1 text occurs more than once: kept, copies stay in the same split (line 7).']
    """
    messages = [m for part, record in audit["files"].items() for m in _file_messages(part, record)]
    messages += [m for name, record in audit["splits"].items() for m in _split_messages(name, record)]
    return messages + list(_label_messages(audit["splits"].get("train", {}).get("label_counts", {})))


def _file_messages(part: str, record: dict[str, Any]) -> Iterator[str]:
    unit = record["unit"]
    yield from left_out_messages(part, record)
    for key, found in (
        ("missing_labels", "without a label: left out"),
        ("repeated_ids", "with the id of an earlier row: kept, but rows cannot be matched by id"),
    ):
        if record[key]["count"]:
            yield f"{part}: {_count(record[key], 'row')} {found}{_where(record[key], unit)}."
    for reason, entry in (record["cleaned"] | record["notes"]).items():
        if reason.startswith("columns separated"):
            yield f"{part}: {reason}: detected from the header."
        else:
            found = f"{_count(entry, 'row')} with" if reason in (NOT_UTF8, NUL) else f"{entry['count']:,}"
            yield f"{part}: {found} {reason}: {_DONE[reason]}{_where(entry, unit)}."


def left_out_messages(name: str, info: dict[str, Any]) -> Iterator[str]:
    """The rows of a table that could not be read; `info` is that of a `StoredTable`."""
    for reason, entry in info["left_out"].items():
        yield f"{name}: {_count(entry, 'row')} with {reason}: left out{_where(entry, info['unit'])}."


def _split_messages(name: str, record: dict[str, Any]) -> Iterator[str]:
    none = {"count": 0}
    findings = [
        ("empty_texts", "is empty", "are empty", "kept; remove empty texts if they carry no information"),
        ("duplicates", "occurs more than once", "occur more than once", "kept, copies stay in the same split"),
        (
            "conflicting_duplicates",
            "has another label than an earlier copy",
            "have another label than an earlier copy",
            "kept; check the labels",
        ),
    ]
    for key, one, many, done in findings:
        yield from _text_message(name, record.get(key, none), one, many, done, record["unit"])
    for other, entry in record.get("shared", {}).items():
        done = f"kept, so results on {name} may be too good"
        yield from _text_message(name, entry, f"is also in {other}", f"are also in {other}", done, record["unit"])
    n, absent = record["rows"], [label for label, count in record.get("label_counts", {}).items() if not count]
    if name != "train" and 0 < n < FEW_ROWS:
        yield f"{name}: only {n} rows: an accuracy measured on them is uncertain by up to ±{98 / n**0.5:.0f} points."
    if absent:
        yield f"{name}: no rows with {'label' if len(absent) == 1 else 'labels'} {listed(absent)}: not evaluated there."


def _text_message(name: str, entry: Entry, one: str, many: str, done: str, unit: str) -> Iterator[str]:
    if entry["count"]:
        found = f"{_count(entry, 'text')} {one if entry['count'] == 1 else many}"
        yield f"{name}: {found}: {done}{_where(entry, unit)}."


def _label_messages(counts: dict[str, int]) -> Iterator[str]:
    """Labels that may be another label, no label, or too rare."""
    for names in _same_spelling(counts):
        shown = " and ".join(_label(name, counts) for name in names)
        yield f"labels: {shown} differ only in spelling: kept as separate classes. If they are one, spell them alike."
    for name, other in _likely_misspelt(counts):
        yield (
            f"labels: {_label(name, counts)} may be a misspelt {_label(other, counts)}: kept as a separate class. "
            "If so, correct it."
        )
    for name in counts:
        if name.casefold() in NO_LABEL_NAMES:
            yield f"labels: {_label(name, counts)} is kept as a class. If it means no label, leave the field empty."
    rare = [name for name, n in counts.items() if 0 < n < FEW_LABEL_ROWS]
    if rare:
        shown = ", ".join(_label(name, counts) for name in rare[:5]) + (", …" if len(rare) > 5 else "")
        yield (
            f"labels: {len(rare)} with fewer than {FEW_LABEL_ROWS} training rows, {shown}: kept, but too rare to learn "
            "or evaluate. Add rows, or merge or remove them."
        )


def _same_spelling(counts: dict[str, int]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in counts:
        plain = re.sub(r"[\W_]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()
        groups.setdefault(plain, []).append(name)
    return [names for plain, names in groups.items() if plain and len(names) > 1]


def _likely_misspelt(counts: dict[str, int]) -> Iterator[tuple[str, str]]:
    """(rare label, similar label with at least ten times as many rows), by edit similarity."""
    for name, n in counts.items():
        frequent = [
            other
            for other, m in counts.items()
            if m >= 10 * max(n, 1)
            and name.casefold() != other.casefold()
            and re.sub(r"\d", "", name) != re.sub(r"\d", "", other)  # "type 1" and "type 2" are not misspelt
        ]
        yield from ((name, other) for other in difflib.get_close_matches(name, frequent, n=1, cutoff=0.85) if n)


def _label(name: str, counts: dict[str, int]) -> str:
    return f"{name!r} ({_count({'count': counts[name]}, 'row')})"


def _count(entry: Entry, noun: str) -> str:
    return f"{entry['count']:,} {noun}{'' if entry['count'] == 1 else 's'}"


def _where(entry: Entry, unit: str) -> str:
    places = [str(place) for place in entry["first"]]
    more = ", …" if entry["count"] > len(places) else ""
    return f" ({unit if len(places) == 1 and not more else unit + 's'} {', '.join(places)}{more})"
