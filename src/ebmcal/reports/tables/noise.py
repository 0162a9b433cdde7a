"""How difficult the noise of a run was: facts about each source, and how well energies separate it from data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.reports.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

#: Noise with a held-out AUROC outside this range is too difficult or too easy to learn much from.
USEFUL_AUROC = (0.6, 0.97)

SOURCE_NOTE = (
    "Unknown words: share of words that no training text has. Copies: share of noise texts that equal a training text. "
    "Kept words: share of the unmasked words that the language model repeated. Probe AUROC: how well a linear "
    "classifier on the untrained encoder separates noise from data; 0.5 is guessing."
)
AUROC_NOTE = (
    "How often a data text has a lower energy than a noise text: in the last tenth of training, and on texts that were "
    "not used in training. A gap means memorised noise; 0.5 is guessing."
)
_COLUMNS = {
    "words": "Words",
    "words_of_data": "Words of data",
    "unknown_words": "Unknown words",
    "unknown_words_of_data": "Unknown in data",
    "copies": "Copies",
    "kept_words": "Kept words",
    "probe_auroc": "Probe AUROC",
}


def noise_source_table(noise: Mapping[str, Any]) -> Table:
    """One row per noise source, from the part "noise" of results.json."""
    import pandas as pd

    found = noise.get("sources")
    facts_of = found.items() if isinstance(found, Mapping) else ()
    sources = {str(name): facts for name, facts in facts_of if isinstance(facts, Mapping)}
    shown = [key for key in _COLUMNS if any(facts.get(key) is not None for facts in sources.values())]
    rows = [[name, *(facts.get(key) for key in shown)] for name, facts in sources.items()]
    frame = pd.DataFrame(rows, columns=["Source", *(_COLUMNS[key] for key in shown)])
    digits = {"Words": 1, "Words of data": 1}
    return Table(frame, "Noise sources", (SOURCE_NOTE,) if rows else (), digits=digits)


def noise_auroc_table(
    histories: Iterable[tuple[str, Sequence[Mapping[str, Any]]]], detection: "pd.DataFrame", reuse: Any = None
) -> Table:
    """Noise AUROC of each method, means over seeds; `histories` are (method, history) pairs.

    Sources of a mixture have columns of their own. Notes warn of noise that is too easy, too difficult or reused.
    """
    import pandas as pd

    found: dict[str, dict[str, list[float]]] = {}
    for method, history in histories:
        for key in dict.fromkeys(key for entry in history for key in entry if key.startswith("noise_auroc")):
            values = [entry[key] for entry in history if isinstance(entry.get(key), int | float)]
            name = "Training" + key.removeprefix("noise_auroc").replace("_", ", ", 1)
            last = values[-max(1, len(values) // 10) :]
            found.setdefault(method, {}).setdefault(name, []).append(float(np.mean(last)))
    for record in detection.to_dict("records") if len(detection) else []:
        method = str(record["model"]).rpartition("-seed")[0]
        if record["texts"] == "noise" and record["score"] == "energy" and method in found:
            found[method].setdefault("Held-out", []).append(float(record["auroc"]))
    rows = [{"Method": method} | {name: np.mean(values) for name, values in v.items()} for method, v in found.items()]
    notes = [AUROC_NOTE] if rows else []
    for row in rows:
        notes += _verdicts(str(row["Method"]), row.get("Held-out"))
    if isinstance(reuse, int | float) and reuse > 2 and rows:
        notes.append(f"Each noise text was used {reuse:.1f} times: it may be memorised.")
    return Table(pd.DataFrame(rows), "Noise AUROC", tuple(notes))


def _verdicts(method: str, held_out: Any) -> list[str]:
    if held_out is None or USEFUL_AUROC[0] <= held_out <= USEFUL_AUROC[1]:
        return []
    if held_out > USEFUL_AUROC[1]:
        return [f"{method}: the noise is too easy (held-out AUROC {held_out:.2f}); the energy learns little from it."]
    return [f"{method}: the noise is hardly separable from data (held-out AUROC {held_out:.2f})."]
