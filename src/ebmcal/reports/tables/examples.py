"""Example texts: those of lowest and highest energy with both posteriors, and noise next to its masked input."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ebmcal.predictions import Predictions
from ebmcal.reports.tables.errors import joined_text
from ebmcal.reports.tables.table import Table

_MASK = re.compile(r"(<M>|\[M\]|<mask>|\[MASK\])")
_SHOWN_LABELS = 3


def energy_examples(predictions: Predictions, baseline: Predictions | None = None, n: int = 5) -> Table:
    """The n texts of lowest and of highest energy: text, label, Ê, baseline posterior → model posterior.

    Rows of the baseline are matched by id. No text appears twice. Empty without energies.
    """
    import pandas as pd

    columns = ["Energy", "Ê(x)", "Text", "Label", "Posterior"]
    energies = predictions.energies
    if energies is None or predictions.texts is None:
        return Table(pd.DataFrame(columns=columns), "Texts of lowest and highest energy")
    order = np.argsort(np.asarray(energies, dtype=np.float64), kind="stable")
    n_low = min(n, (len(order) + 1) // 2)
    ends = [("lowest", i) for i in order[:n_low]] + [("highest", i) for i in order[max(n_low, len(order) - n) :]]
    before, names = _matching_probs(predictions, baseline), (*predictions.label_names, None)  # −1: no label
    records = [
        [
            end,
            float(energies[i]),
            joined_text(predictions, i),
            names[predictions.labels[i]],
            _posterior(predictions, i, None if before is None else before[i]),
        ]
        for end, i in ends
    ]
    title = "Texts of lowest and highest energy"
    notes = ("Low energy: looks like data.",)
    if before is not None:
        notes = ("Low energy: looks like data. Posterior: P(label | text) of the baseline → of this model.",)
    return Table(
        pd.DataFrame(records, columns=columns), title, notes, digits={"Ê(x)": 2}, sections=[end for end, _ in ends]
    )


def noise_examples(records: Iterable[Mapping[str, Any]], n: int = 10) -> Table:
    """Masked input with the hidden words in brackets, and the generated text; from `noise_examples.json`.

    >>> noise_examples([{"masked": "so <M> ly", "hidden": ["fun"], "text": "so oddly"}]).frame.iloc[0].tolist()
    ['so <M> (fun) ly', 'so oddly']
    """
    import pandas as pd

    chosen = [record for record in records if isinstance(record, Mapping)][:n]
    columns = {
        "Source": [str(record.get("source") or "") for record in chosen],
        "Made from (hidden words)": [_clean(_masked_text(record)) for record in chosen],
        "Noise text": [_clean(_pair(record, "text")) for record in chosen],
    }
    frame = pd.DataFrame({name: values for name, values in columns.items() if any(values)})
    return Table(frame, "Noise examples")


def _matching_probs(predictions: Predictions, baseline: Predictions | None) -> np.ndarray | None:
    """Probabilities of the baseline [n, C] in the order of `predictions`; NaN for rows it does not have."""
    if baseline is None or baseline.label_names != predictions.label_names:
        return None
    places = {str(name): i for i, name in enumerate(baseline.ids)}
    rows = np.array([places.get(str(name), -1) for name in predictions.ids])
    return np.where((rows >= 0)[:, None], baseline.probs[rows], np.nan)


def _posterior(predictions: Predictions, row: int, before: np.ndarray | None) -> str:
    """A line per label: all of a few, otherwise the true label and those that a model prefers."""
    after = predictions.probs[row]
    before = None if before is None or np.isnan(before).any() else before
    preferred = np.argsort(-(after if before is None else np.maximum(after, before)), kind="stable")
    true = int(predictions.labels[row])
    shown = list(dict.fromkeys([*([true] if true >= 0 else []), *map(int, preferred)]))[:_SHOWN_LABELS]
    start = ["" if before is None else f"{before[c]:.3f} → " for c in shown]
    names = predictions.label_names
    return "\n".join(f"{names[c]} {first}{after[c]:.3f}" for c, first in zip(shown, start, strict=True))


def _masked_text(record: Mapping[str, Any]) -> str:
    """The masked input with the hidden words after each mask; words that match no mask follow at the end."""
    masked = str(record.get("masked") or record.get("made_from") or "").replace("<SEP>", "‖")
    hidden = [str(words) for words in record.get("hidden") or []]
    parts = _MASK.split(masked)
    if len(hidden) != len(parts) // 2:
        return " ".join([masked, *(f"({words})" for words in hidden)]).strip()
    return "".join(f"<M> ({hidden[i // 2]})" if i % 2 else part for i, part in enumerate(parts))


def _clean(text: str) -> str:
    """Text that can be written as UTF-8: language models may write half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _pair(record: Mapping[str, Any], key: str) -> str:
    """A text, or both texts of a pair."""
    found: Sequence[str] = [str(record[k]) for k in (key, f"{key}_pair") if record.get(k) is not None]
    return " ‖ ".join(found)
