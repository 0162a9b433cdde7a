"""What is odd about the data, counted: a JSON-able record for the run folder and sentences for a person."""

import re
import unicodedata
from typing import Any

import numpy as np

from ebmcal.data.texts import Texts
from ebmcal.data.values import FIRST, NOT_UTF8

#: Fewer rows than these are said to be few.
FEW_ROWS = 100

#: Spellings of "there is no label" that are labels here.
NO_LABEL = ("nan", "null", "none", "na", "n/a", "nil", "missing", "unknown", "?")


def audit_split(split: Texts, names: tuple[str, ...], earlier: dict[str, Texts]) -> dict[str, Any]:
    """Counts of one split, and of the texts it shares with the splits before it (training, calibration)."""
    counts = np.bincount(split.labels[split.labels >= 0], minlength=len(names))
    record = {
        "rows": len(split),
        "label_counts": {name: int(n) for name, n in zip(names, counts, strict=True)},
        "empty_texts": _counted(split, split.empty),
        **_duplicates(split),
    }
    for name, other in earlier.items():
        record[f"also_in_{name}"] = _counted(split, np.isin(split.keys, other.keys))
    return record


def _counted(split: Texts, chosen: np.ndarray) -> dict[str, Any]:
    return {"count": int(chosen.sum()), "first_rows": split.ids[chosen][:FIRST].tolist()}


def _duplicates(split: Texts) -> dict[str, Any]:
    """Rows whose text came before in the split, and texts that came with more than one label."""
    order = np.argsort(split.keys, kind="stable")  # equal texts side by side, the first of them first
    new = np.ones(len(split), dtype=bool)
    new[1:] = split.keys[order[1:]] != split.keys[order[:-1]]
    again, differing = np.zeros(len(split), dtype=bool), np.zeros(len(split), dtype=bool)
    repeats = np.flatnonzero(~new)
    firsts = np.flatnonzero(new)[np.cumsum(new)[repeats] - 1]
    again[order[repeats]] = True
    differing[order[repeats]] = split.labels[order[repeats]] != split.labels[order[firsts]]
    return {"duplicates": _counted(split, again), "duplicates_with_another_label": _counted(split, differing)}


def audit_sentences(audit: dict[str, Any]) -> list[str]:
    """The audit as short sentences, only what a person should know; rows count from 0, lines from 1.

    >>> audit_sentences({"files": {}, "splits": {"train": {"rows": 2, "duplicates": {"count": 1, "first_rows": [1]}}}})
    ['train: 1 duplicates (first rows 1)']
    """
    lines = []
    for part, record in audit["files"].items():
        flat = {"rows without a label, set aside": record["missing_labels"]}
        flat |= {f"rows set aside: {reason}": entry for reason, entry in record["set_aside"].items()}
        flat |= record["cleaned"] | record["met"]
        lines += [_sentence(part, what, entry) for what, entry in flat.items() if entry["count"]]
    for name, record in audit["splits"].items():
        odd = {what.replace("_", " "): entry for what, entry in record.items() if what not in ("rows", "label_counts")}
        lines += [_sentence(name, what, entry) for what, entry in odd.items() if entry["count"]]
    return lines + _few(audit["splits"]) + odd_labels(audit["splits"].get("train", {}).get("label_counts", {}))


def label_sentence(counts: dict[str, int]) -> str:
    """Labels with their counts, the most frequent first; of many only the first and the last.

    >>> label_sentence({"bad": 5, "good": 20})
    'good 20, bad 5'
    """
    shown = [f"{name} {n:,}" for name, n in sorted(counts.items(), key=lambda item: -item[1])]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:6], f"… ({len(shown)} labels)", *shown[-3:]])


def odd_labels(counts: dict[str, int]) -> list[str]:
    """Labels that may be one in two spellings, or none at all.

    >>> odd_labels({"pos": 9, "Pos": 1, "neg": 8})
    ["labels: 'pos' (9 rows) and 'Pos' (1 rows) are two classes; if they are one, spell them alike"]
    """
    alike: dict[str, list[str]] = {}
    for name in counts:
        alike.setdefault(re.sub(r"[\W_]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip(), []).append(
            name
        )
    lines = []
    for names in (group for key, group in alike.items() if len(group) > 1 and key):
        listed = " and ".join(f"{name!r} ({counts[name]:,} rows)" for name in names)
        lines.append(f"labels: {listed} are {_number(len(names))} classes; if they are one, spell them alike")
    for name in (name for name in counts if name.casefold() in NO_LABEL):
        lines.append(
            f"labels: {name!r} ({counts[name]:,} rows) is a class like the others; where it means that there is no "
            "label, leave the field empty"
        )
    return lines


def _number(n: int) -> str:
    return {2: "two", 3: "three"}.get(n, str(n))


def _few(splits: dict[str, Any]) -> list[str]:
    """Splits that are too small to say much, and labels that they lack."""
    lines = []
    for name, record in splits.items():
        n, absent = record["rows"], [label for label, count in record.get("label_counts", {}).items() if not count]
        if name != "train" and n < FEW_ROWS:
            lines.append(
                f"{name}: {n} rows only: an accuracy over them is uncertain by up to ±{98 / n**0.5:.0f} points"
            )
        if absent:
            shown = ", ".join(map(repr, absent[:5])) + (", …" if len(absent) > 5 else "")
            lines.append(f"{name}: no row of {len(absent):,} of the labels ({shown})")
    return lines


def _sentence(where: str, what: str, entry: dict[str, Any]) -> str:
    what += " (its encoding may be another: --encoding latin-1, cp1252, …)" if what == NOT_UTF8 else ""
    unit = "lines" if "first_lines" in entry else "rows"
    places = ", ".join(str(place) for place in entry[f"first_{unit}"])
    return f"{where}: {entry['count']:,} {what} (first {unit} {places})"
