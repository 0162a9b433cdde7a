"""Error analysis of one model: accuracy and calibration per label, confusions, confident errors, label issues."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ebmcal.metrics import reliability_bins
from ebmcal.predictions import Predictions
from ebmcal.reports.tables.table import Table

#: Labels, confusions and examples shown at most.
MOST_LABELS = 20
MOST_EXAMPLES = 10

CLASS_NOTE = (
    "Recall: share of the texts with this label that are found. Precision: share of the predictions of this label that "
    "are right. Confidence: mean confidence of these predictions; if the model is calibrated, it equals the precision. "
    "ECE: calibration error of P(label | text), 20 bins."
)


def class_table(predictions: Predictions) -> Table:
    """Recall, precision, confidence and calibration error of each label; of many labels those with lowest recall.

    >>> p = Predictions([0, 1, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> class_table(p).frame["Recall"].tolist()
    [1.0, 0.5]
    """
    import pandas as pd

    rows = predictions.labelled()
    right = rows.predicted == rows.labels
    records = []
    for index, label in enumerate(rows.label_names):
        true, predicted = rows.labels == index, rows.predicted == index
        bins = reliability_bins(rows.labels, probs=rows.probs, n_bins=20, kind="class", class_index=index)
        gaps = np.abs(bins.accuracy - bins.confidence)[bins.counts > 0]
        records.append(
            {
                "Label": label,
                "Texts": int(true.sum()),
                "Recall": _mean(right[true]),
                "Predicted": int(predicted.sum()),
                "Precision": _mean(right[predicted]),
                "Confidence": _mean(rows.confidence[predicted]),
                "ECE": float((gaps * bins.counts[bins.counts > 0]).sum() / rows.n_rows),
            }
        )
    frame, notes = pd.DataFrame(records), [CLASS_NOTE]
    if len(frame) > MOST_LABELS:
        frame = frame.sort_values("Recall", kind="stable").head(MOST_LABELS)
        notes.insert(0, f"The {MOST_LABELS} labels with the lowest recall of {rows.n_classes}.")
    return Table(frame.reset_index(drop=True), "Accuracy and calibration per label", tuple(notes))


def confusion_table(predictions: Predictions) -> Table:
    """The most frequent confusions: true label, predicted label, number of texts and their mean confidence."""
    import pandas as pd

    rows = predictions.labelled()
    wrong = np.flatnonzero(rows.predicted != rows.labels)
    frame = pd.DataFrame(
        {
            "True label": np.array(rows.label_names)[rows.labels[wrong]],
            "Predicted label": rows.predicted_labels[wrong],
            "Confidence": rows.confidence[wrong],
        }
    )
    found = frame.groupby(["True label", "Predicted label"])["Confidence"].agg(Texts="size", Confidence="mean")
    found = found.sort_values("Texts", ascending=False, kind="stable").head(MOST_EXAMPLES).reset_index()
    return Table(found, "Most frequent confusions")


def confident_errors(predictions: Predictions, n: int = MOST_EXAMPLES) -> Table:
    """The wrong predictions with the highest confidence, most confident first.

    >>> p = Predictions([0, 1], ("no", "yes"), probs=[[0.1, 0.9], [0.2, 0.8]], texts=["good", "fine"])
    >>> confident_errors(p).frame["Text"].tolist()
    ['good']
    """
    import pandas as pd

    rows = predictions.labelled()
    wrong = np.flatnonzero(rows.predicted != rows.labels)
    worst = wrong[np.argsort(-rows.confidence[wrong], kind="stable")][:n]
    frame = pd.DataFrame(
        {
            "Text": [joined_text(rows, i) for i in worst],
            "True label": [rows.label_names[rows.labels[i]] for i in worst],
            "Predicted label": rows.predicted_labels[worst].tolist(),
            "Confidence": rows.confidence[worst],
        }
    )
    note = f"{len(wrong):,} of {rows.n_rows:,} predictions are wrong; these are the most confident ones."
    return Table(frame, "Most confident errors", (note,))


def label_issue_table(issues: Iterable[Mapping[str, Any]], n: int = MOST_EXAMPLES) -> Table:
    """Training rows with labels that contradict out-of-fold predictions: `label_issues` of a run's results."""
    import pandas as pd

    found = list(issues)
    columns = ["Text", "Given label", "Suggested label", "Score"]
    records = [[str(issue.get("text") or issue.get("id") or ""), *_issue(issue)] for issue in found[:n]]
    more = f" The first {n} of {len(found):,}; `label_issues` in results.json lists all." if len(found) > n else ""
    note = (
        "Training texts with a label that the models trained without them contradict. Check them first: wrong labels "
        f"limit accuracy and calibration.{more}"
    )
    return Table(pd.DataFrame(records, columns=columns), "Possible label errors", (note,))


def joined_text(rows: Predictions, index: int) -> str:
    """The text of a row (both texts of a pair), or its id if texts are unknown."""
    if rows.texts is None:
        return f"id {rows.ids[index]}"
    return rows.texts[index] if rows.text_pairs is None else f"{rows.texts[index]} ‖ {rows.text_pairs[index]}"


def _issue(issue: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return issue.get("given"), issue.get("suggested"), issue.get("score")


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
