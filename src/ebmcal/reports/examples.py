"""Tables of labels and texts: accuracy per label, confusions, confident errors, label issues, energies, noise."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ebmcal.metrics import reliability_bins
from ebmcal.predictions import Predictions
from ebmcal.reports.table import Table

#: Labels and examples shown at most.
MOST_LABELS = 20
MOST_EXAMPLES = 10

#: Noise with a held-out AUROC outside this range is too difficult or too easy to learn much from.
USEFUL_AUROC = (0.6, 0.97)

CLASS_NOTE = (
    "Recall: share of the texts with this label that are found. Precision: share of the predictions of this label that "
    "are right. Confidence: mean confidence of these predictions; if the model is calibrated, it equals the precision. "
    "ECE: calibration error of P(label | text), 20 bins."
)
SOURCE_NOTE = (
    "Unknown words: share of words that no training text has. Copies: share of noise texts that equal a training text. "
    "Kept words: share of the unmasked words that the language model repeated. Probe AUROC: how well a linear "
    "classifier on the untrained encoder separates noise from data; 0.5 is guessing."
)
AUROC_NOTE = (
    "How often a data text has a lower energy than a noise text: in the last tenth of training, and on texts that were "
    "not used in training. A gap means memorised noise; 0.5 is guessing."
)
_SOURCE_COLUMNS = {
    "words": "Words", "words_of_data": "Words of data", "unknown_words": "Unknown words",
    "unknown_words_of_data": "Unknown in data", "copies": "Copies", "kept_words": "Kept words",
    "probe_auroc": "Probe AUROC",
}  # fmt: skip


def class_table(predictions: Predictions) -> Table:
    """Recall, precision, confidence and calibration error of each label; of many labels those with lowest recall.

    >>> p = Predictions([0, 1, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> class_table(p).frame["Recall"].tolist()
    [1.0, 0.5]
    """
    rows = predictions.labelled()
    right, records = rows.predicted == rows.labels, []
    for index, label in enumerate(rows.label_names):
        true, predicted = rows.labels == index, rows.predicted == index
        bins = reliability_bins(rows.labels, probs=rows.probs, n_bins=20, kind="class", class_index=index)
        ece = np.nansum(np.abs(bins.accuracy - bins.confidence) * bins.counts) / rows.n_rows
        means = [v.mean() if len(v) else None for v in (right[true], right[predicted], rows.confidence[predicted])]
        records.append([label, true.sum(), means[0], predicted.sum(), *means[1:], ece])
    columns = ["Label", "Texts", "Recall", "Predicted", "Precision", "Confidence", "ECE"]
    frame, notes = pd.DataFrame(records, columns=columns), [CLASS_NOTE]
    if len(frame) > MOST_LABELS:
        frame = frame.sort_values("Recall", kind="stable", ignore_index=True).head(MOST_LABELS)
        notes.insert(0, f"The {MOST_LABELS} labels with the lowest recall of {rows.n_classes}.")
    return Table(frame, "Accuracy and calibration per label", tuple(notes))


def confident_errors(predictions: Predictions, n: int = MOST_EXAMPLES) -> Table:
    """The wrong predictions with the highest confidence, most confident first.

    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.1, 0.9], [0.2, 0.8]], texts=["good", "fine"])
    >>> confident_errors(p).frame["Text"].tolist()
    ['good']
    """
    errors = _errors(predictions).sort_values("Confidence", ascending=False, kind="stable", ignore_index=True)
    note = f"{len(errors):,} of {predictions.labelled().n_rows:,} predictions are wrong; these are the most confident."
    return Table(errors.head(n), "Most confident errors", (note,))


def confusion_table(predictions: Predictions) -> Table:
    """The most frequent confusions: true label, predicted label, number of texts and their mean confidence."""
    pairs = _errors(predictions).groupby(["True label", "Predicted label"])["Confidence"]
    found = pairs.agg(Texts="size", Confidence="mean").sort_values("Texts", ascending=False, kind="stable")
    return Table(found.head(MOST_EXAMPLES).reset_index(), "Most frequent confusions")


def _errors(predictions: Predictions) -> pd.DataFrame:
    rows = predictions.labelled()
    wrong = np.flatnonzero(rows.predicted != rows.labels)
    return pd.DataFrame(
        {
            "Text": [_text(rows, i) for i in wrong],
            "True label": np.array(rows.label_names)[rows.labels[wrong]],
            "Predicted label": rows.predicted_labels[wrong],
            "Confidence": rows.confidence[wrong],
        }
    )


def _text(rows: Predictions, index: Any) -> str:
    """The text of a row (both texts of a pair), or its id if texts are unknown."""
    if rows.texts is None:
        return f"id {rows.ids[index]}"
    return rows.texts[index] if rows.text_pairs is None else f"{rows.texts[index]} ‖ {rows.text_pairs[index]}"


def label_issue_table(issues: Iterable[Mapping[str, Any]], n: int = MOST_EXAMPLES) -> Table:
    """Training rows with labels that contradict out-of-fold predictions: `label_issues` of a run's results."""
    found = list(issues)
    columns = ["Text", "Given label", "Suggested label", "Score"]
    records = [[str(i.get("text") or i.get("id")), i.get("given"), i.get("suggested"), i.get("score")] for i in found]
    more = f" The first {n} of {len(found):,}; `label_issues` in results.json lists all." if len(found) > n else ""
    note = (
        "Training texts with a label that the models trained without them contradict. Check them first: wrong labels "
        f"limit accuracy and calibration.{more}"
    )
    return Table(pd.DataFrame(records[:n], columns=columns), "Possible label errors", (note,))


def energy_examples(predictions: Predictions, baseline: Predictions | None = None, n: int = 5) -> Table:
    """The n texts of lowest and of highest energy: text, label, Ê, baseline posterior → model posterior.

    Rows of the baseline are matched by id. No text appears twice. Empty without energies.
    """
    title, columns = "Texts of lowest and highest energy", ["Energy", "Ê(x)", "Text", "Label", "Posterior"]
    energies = predictions.energies
    if energies is None or predictions.texts is None:
        return Table(pd.DataFrame(columns=columns), title)
    order = np.argsort(np.asarray(energies, dtype=np.float64), kind="stable")
    n_low = min(n, (len(order) + 1) // 2)
    ends = [("lowest", i) for i in order[:n_low]] + [("highest", i) for i in order[max(n_low, len(order) - n) :]]
    before: dict[str, np.ndarray] = {}
    if baseline is not None and baseline.label_names == predictions.label_names:
        before = dict(zip(map(str, baseline.ids), baseline.probs, strict=True))
    names = (*predictions.label_names, None)  # −1: no label
    records = [
        [
            end, float(energies[i]), _text(predictions, i), names[predictions.labels[i]],
            _posterior(predictions, i, before.get(str(predictions.ids[i]))),
        ]
        for end, i in ends
    ]  # fmt: skip
    note = "Low energy: looks like data." + (
        " Posterior: P(label | text) of the baseline → of this model." if before else ""
    )
    frame = pd.DataFrame(records, columns=columns)
    return Table(frame, title, (note,), digits={"Ê(x)": 2}, sections=[end for end, _ in ends])


def _posterior(predictions: Predictions, row: int, before: np.ndarray | None) -> str:
    """A line for each of three labels: the true one, and those that a model prefers."""
    after, true = predictions.probs[row], predictions.labels[row]
    preferred = np.argsort(-(after if before is None else np.maximum(after, before)), kind="stable")
    shown = list(dict.fromkeys([*([true] if true >= 0 else []), *preferred]))[:3]
    return "\n".join(
        f"{predictions.label_names[c]} {'' if before is None else f'{before[c]:.3f} → '}{after[c]:.3f}" for c in shown
    )


def noise_examples(records: Iterable[Mapping[str, Any]], n: int = MOST_EXAMPLES) -> Table:
    """Masked input with the hidden words in brackets, and the generated text; from `noise_examples.json`.

    >>> noise_examples([{"masked": "so <M> ly", "hidden": ["fun"], "text": "so oddly"}]).frame.iloc[0].tolist()
    ['so <M> (fun) ly', 'so oddly']
    """
    chosen = [record for record in records if isinstance(record, Mapping)][:n]
    columns = {
        "Source": [str(record.get("source") or "") for record in chosen],
        "Made from (hidden words)": [_masked_text(record) for record in chosen],
        "Noise text": [
            " ‖ ".join(str(record[key]) for key in ("text", "text_pair") if record.get(key) is not None)
            for record in chosen
        ],
    }
    # Language models may write half of a surrogate pair, which is not UTF-8.
    clean = {name: [v.encode("utf-8", "replace").decode() for v in values] for name, values in columns.items()}
    return Table(pd.DataFrame({name: values for name, values in clean.items() if any(values)}), "Noise examples")


def _masked_text(record: Mapping[str, Any]) -> str:
    """The masked input with the hidden words after each mask; words that match no mask follow at the end."""
    masked = str(record.get("masked") or record.get("made_from") or "").replace("<SEP>", "‖")
    hidden = [f"({words})" for words in record.get("hidden") or []]
    parts = re.split(r"<M>|\[M\]|<mask>|\[MASK\]", masked)
    if len(hidden) != len(parts) - 1:
        return " ".join([masked, *hidden]).strip()
    return parts[0] + "".join(f"<M> {words}{part}" for words, part in zip(hidden, parts[1:], strict=True))


def noise_source_table(noise: Mapping[str, Any]) -> Table:
    """One row per noise source, from the part "noise" of results.json."""
    found = noise.get("sources")
    known = {str(k): v for k, v in found.items() if isinstance(v, Mapping)} if isinstance(found, Mapping) else {}
    frame = pd.DataFrame([[facts.get(key) for key in _SOURCE_COLUMNS] for facts in known.values()])
    frame = frame.set_axis(list(_SOURCE_COLUMNS.values())[: frame.shape[1]], axis="columns").dropna(axis=1, how="all")
    frame.insert(0, "Source", list(known))
    digits = {"Words": 1, "Words of data": 1}
    return Table(frame, "Noise sources", (SOURCE_NOTE,) if known else (), digits=digits)


def noise_auroc_table(
    histories: Iterable[tuple[str, Sequence[Mapping[str, Any]]]], detection: pd.DataFrame, reuse: Any = None
) -> Table:
    """Noise AUROC of each method, means over seeds; `histories` are (method, history) pairs.

    Sources of a mixture have columns of their own. Notes warn of noise that is too easy, too difficult or reused.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for method, history in histories:
        for key in dict.fromkeys(key for entry in history for key in entry if key.startswith("noise_auroc")):
            values = [entry[key] for entry in history if isinstance(entry.get(key), int | float)]
            name = "Training" + key.removeprefix("noise_auroc").replace("_", ", ", 1)
            last = values[-max(1, len(values) // 10) :]
            found.setdefault(method, {}).setdefault(name, []).append(float(np.mean(last)))
    held_out = detection[(detection["texts"] == "noise") & (detection["score"] == "energy")]
    for method, value in held_out.groupby("method")["auroc"].mean().items():
        if method in found:
            found[str(method)]["Held-out"] = [float(value)]
    rows: list[dict[str, Any]] = [
        {"Method": m} | {name: np.mean(values) for name, values in v.items()} for m, v in found.items()
    ]
    notes = [AUROC_NOTE] if rows else []
    for row in rows:
        auroc = row.get("Held-out", np.nan)
        if auroc > USEFUL_AUROC[1]:
            notes.append(f"{row['Method']}: the noise is too easy (held-out AUROC {auroc:.2f}) to learn much from.")
        elif auroc < USEFUL_AUROC[0]:
            notes.append(f"{row['Method']}: the noise is hardly separable from data (held-out AUROC {auroc:.2f}).")
    if isinstance(reuse, int | float) and reuse > 2 and rows:
        notes.append(f"Each noise text was used {reuse:.1f} times: it may be memorised.")
    return Table(pd.DataFrame(rows), "Noise AUROC", tuple(notes))
