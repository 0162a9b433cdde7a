"""Example texts as data: those of lowest and highest energy with both posteriors, and noise beside its source.

Low energy = looks like data. `report` shows them as HTML; `energy_example_table` and `noise_example_table` turn them
into a `Table`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.predictions import Predictions
from ebmcal.tables.table import Column, Entry, Table, TableRow

MASK = re.compile(r"(<M>|\[M\]|<mask>|\[MASK\])")
SEPARATOR = "<SEP>"
SHOWN_LABELS = 4
LONGEST = 300  # characters of a text in a `Table`


@dataclass(frozen=True)
class LabelShift:
    """P(label|x) of the baseline (None where unknown) and of the model."""

    label: str
    before: float | None
    after: float


@dataclass(frozen=True)
class EnergyExample:
    """A text at one end of the energies."""

    end: str  # "lowest" or "highest"
    text: str
    text_pair: str | None
    label: str | None
    energy: float
    shifts: tuple[LabelShift, ...]


@dataclass(frozen=True)
class NoiseExample:
    """A generated text. `pieces` are the masked input in order: (words, False) kept, (words, True) hidden by a mask."""

    pieces: tuple[tuple[str, bool], ...]
    noise: str
    noise_pair: str | None


def energy_examples(predictions: Predictions, baseline: Predictions | None = None, n: int = 5) -> list[EnergyExample]:
    """The n texts of lowest energy, then the n of highest (highest last); none without energies or texts.

    No text comes twice, so fewer than 2n rows give fewer examples. Baseline rows are found by id.
    """
    energies, texts, pairs = predictions.energies, predictions.texts, predictions.text_pairs
    if energies is None or texts is None:
        return []
    order = np.argsort(energies, kind="stable")
    order = order[np.isfinite(np.asarray(energies, dtype=np.float64)[order])]
    n_low = min(n, (len(order) + 1) // 2)
    ends = [("lowest", i) for i in order[:n_low]] + [("highest", i) for i in order[max(n_low, len(order) - n) :]]
    before = matching_rows(predictions, baseline)
    names = (*predictions.label_names, None)  # the last place is for -1, unknown
    return [
        EnergyExample(
            end,
            texts[i],
            None if pairs is None else pairs[i],
            names[predictions.labels[i]],
            float(energies[i]),
            _label_shifts(predictions, i, None if before is None else before[i]),
        )
        for end, i in ends
    ]


def matching_rows(predictions: Predictions, baseline: Predictions | None) -> np.ndarray | None:
    """The baseline's probabilities [n, C] in the order of `predictions`; NaN for rows it lacks."""
    if baseline is None or baseline.label_names != predictions.label_names:
        return None
    probs = baseline.probabilities()
    places = {str(name): i for i, name in enumerate(baseline.ids)}
    rows = np.array([places.get(str(name), -1) for name in predictions.ids])
    return np.where((rows >= 0)[:, None], probs[rows], np.nan)


def noise_examples(records: Iterable[Mapping[str, Any]], n: int = 10) -> list[NoiseExample]:
    """The first n records of `noise_examples.json`, the hidden words put back beside their masks.

    >>> noise_examples([{"masked": "so [M] ly", "hidden": ["fun"], "noise": "so oddly"}])[0].pieces
    (('so ', False), ('fun', True), (' ly', False))
    """
    chosen = [record for record in records if isinstance(record, Mapping)][:n]
    return [
        NoiseExample(_pieces(record), str(record.get("noise") or ""), _optional(record.get("noise_pair")))
        for record in chosen
    ]


def energy_example_table(examples: Sequence[EnergyExample], name: str = "") -> Table:
    """The paper's example table: text, label, energy, baseline → model posterior."""
    columns = (
        Column("end", "Energy"),
        Column("energy", "Ê(x)", digits=2),
        Column("label", "Label"),
        Column("text", "Text"),
        Column("posterior", "Posterior, baseline → model"),
    )
    rows = [
        TableRow(
            (
                Entry(e.end),
                Entry(e.energy),
                Entry(e.label),
                Entry(_joined(e.text, e.text_pair)),
                Entry(_shifts(e.shifts)),
            ),
            e.end,
        )
        for e in examples
    ]
    title = "Texts of lowest and highest energy"
    return Table(f"{title}: {name}" if name else title, columns, tuple(rows))


def noise_example_table(examples: Sequence[NoiseExample]) -> Table:
    """Masked input with the hidden words in brackets, and what was generated."""
    columns = (Column("masked", "Masked input (hidden words)"), Column("noise", "Generated"))
    rows = [TableRow((Entry(_cut(masked_text(e))), Entry(_joined(e.noise, e.noise_pair)))) for e in examples]
    return Table("Noise", columns, tuple(rows))


def masked_text(example: NoiseExample) -> str:
    """The masked input as the paper prints it.

    >>> masked_text(NoiseExample((("so ", False), ("fun", True)), "so odd", None))
    'so <M> (fun)'
    """
    return "".join(f"<M> ({words})" if hidden else words for words, hidden in example.pieces)


def _label_shifts(predictions: Predictions, row: int, before: np.ndarray | None) -> tuple[LabelShift, ...]:
    """From the baseline's probabilities [C], NaN where it lacks the row, to those of a row of `predictions`."""
    after = predictions.probs[row].astype(np.float64)
    if before is not None and np.isnan(before).any():
        before = None
    return tuple(
        LabelShift(predictions.label_names[c], None if before is None else float(before[c]), float(after[c]))
        for c in _interesting(int(predictions.labels[row]), after, before)
    )


def _interesting(label: int, after: np.ndarray, before: np.ndarray | None) -> list[int]:
    """All labels where there are few; else the true one and those either model favours, in label order."""
    if len(after) <= SHOWN_LABELS:
        return list(range(len(after)))
    favoured = np.argsort(-np.maximum(after, after if before is None else before), kind="stable")
    wanted = dict.fromkeys([*([label] if label >= 0 else []), *map(int, favoured)])
    return sorted(list(wanted)[:SHOWN_LABELS])


def _pieces(record: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    """Where masks and hidden words do not match in number, the words follow at the end."""
    masked, hidden = str(record.get("masked") or ""), [str(words) for words in record.get("hidden") or []]
    parts = MASK.split(masked.replace(SEPARATOR, " ‖ "))
    if len(hidden) != len(parts) // 2:
        return tuple((text, False) for text in [masked] if text) + tuple((words, True) for words in hidden)
    kept = [(text, False) for text in parts[::2]]
    mixed = [kept[0]] + [piece for words, text in zip(hidden, kept[1:], strict=True) for piece in ((words, True), text)]
    return tuple((text, is_hidden) for text, is_hidden in mixed if text or is_hidden)


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)


def _joined(text: str, pair: str | None) -> str:
    return _cut(text) if pair is None else f"{_cut(text)} ‖ {_cut(pair)}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _shifts(shifts: Sequence[LabelShift]) -> str:
    after = ", ".join(f"{shift.label} {shift.after:.3f}" for shift in shifts)
    if any(shift.before is None for shift in shifts):
        return after
    before = ", ".join(f"{shift.label} {shift.before:.3f}" for shift in shifts)
    return f"({before}) → ({after})"
