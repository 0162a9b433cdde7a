"""What is odd about the data, counted: a JSON-able record for the run folder and sentences for a person."""

from typing import Any

import numpy as np

from ebmcal.data.texts import Texts
from ebmcal.data.values import FIRST


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
    return lines


def _sentence(where: str, what: str, entry: dict[str, Any]) -> str:
    unit = "lines" if "first_lines" in entry else "rows"
    places = ", ".join(str(place) for place in entry[f"first_{unit}"])
    return f"{where}: {entry['count']:,} {what} (first {unit} {places})"
