"""`Evaluation`: everything that was measured, as tidy data frames. Tables, reports and JSON are views of it."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    import pandas as pd

    from ebmcal.predictions import Predictions
    from ebmcal.reports.tables import Table

_TEXT, _COUNT, _NUMBER = "object", "Int64", "float64"

RESULTS = {
    "model": _TEXT, "method": _TEXT, "seed": _COUNT, "n_seeds": _COUNT, "calibrator": _TEXT, "test_set": _TEXT,
    "metric": _TEXT, "value": _NUMBER, "low": _NUMBER, "high": _NUMBER, "noise_floor": _NUMBER, "n_rows": _COUNT,
    "note": _TEXT,
}  # fmt: skip
COMPARISONS = {
    "model": _TEXT, "calibrator": _TEXT, "reference": _TEXT, "test_set": _TEXT, "n_seeds": _COUNT, "metric": _TEXT,
    "difference": _NUMBER, "low": _NUMBER, "high": _NUMBER, "p_value": _NUMBER, "p_adjusted": _NUMBER,
    "standard_error": _NUMBER, "df": _NUMBER, "rows_needed": _COUNT, "seeds_needed": _COUNT,
}  # fmt: skip
DETECTION = {
    "model": _TEXT, "method": _TEXT, "seed": _COUNT, "texts": _TEXT, "score": _TEXT, "auroc": _NUMBER, "low": _NUMBER,
    "high": _NUMBER, "aupr": _NUMBER, "fpr95": _NUMBER,
}  # fmt: skip

_FRAMES = {"results": RESULTS, "comparisons": COMPARISONS, "detection": DETECTION}


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics, paired tests and OOD detection of one or more models.

    `results`: one row per model, calibrator (None: as it is), test set and metric, with value, 95% interval, noise
    floor and number of rows. For the trials of a run, `model` is `<method>-seed<N>`; rows over seeds have the method as
    the model, no seed, and `n_seeds`; the ensemble of the seeds is the method `<method> ensemble`.
    `comparisons`: paired tests of a model against a reference on the same rows; `p_adjusted` is Holm's.
    `detection`: how well a score separates test texts from other `texts`; the interval is that of `auroc`.
    `meta`: settings, label names, verdicts, and for runs the other parts of `results.json`.
    `predictions`: what was evaluated, by name; empty if read from JSON.
    """

    results: "pd.DataFrame"
    comparisons: "pd.DataFrame"
    detection: "pd.DataFrame"
    meta: dict[str, Any] = field(default_factory=dict)
    predictions: Mapping[str, "Predictions"] = field(default_factory=dict)

    def table(self, *, verbose: bool = False) -> "Table":
        """Models × metrics; `verbose` adds intervals. `reports.tables` has tables of the tests and the detection."""
        from ebmcal.reports.tables import summary_table

        return summary_table(self, verbose=verbose, metrics=self.meta.get("shown_metrics"))

    def verdicts(self) -> list[str]:
        """One sentence per model: over- or underconfident or not, by how much, and what to do."""
        return list(self.meta.get("verdicts") or ())

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained HTML report; returns its path."""
        from ebmcal.reports import write_evaluation_report

        return write_evaluation_report(self, path)

    def to_json(self) -> dict[str, Any]:
        """Everything but the predictions as JSON values: the frames as lists of objects, next to `meta`."""
        return {**self.meta, **{name: _records(getattr(self, name)) for name in _FRAMES}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Evaluation":
        """The evaluation that `to_json` described; other entries of the document are kept in `meta`."""
        if not isinstance(document, Mapping) or not isinstance(document.get("results"), list):
            raise EbmcalError("Not an evaluation: expected a JSON object with a list 'results'.")
        frames = {}
        for name, columns in _FRAMES.items():
            try:
                frames[name] = make_frame(document.get(name) or [], columns)
            except (TypeError, ValueError, AttributeError) as error:
                raise EbmcalError(f"{name!r} of the evaluation is damaged: {error}.") from error
        return cls(**frames, meta={name: value for name, value in document.items() if name not in _FRAMES})

    def __repr__(self) -> str:
        return str(self.table())


def make_frame(records: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> "pd.DataFrame":
    """Records as a data frame with these columns and types; missing entries are None, NA or NaN."""
    import pandas as pd

    records = list(records)
    data = {
        name: pd.Series([record.get(name) for record in records], dtype=kind, name=name)
        for name, kind in columns.items()
    }
    return pd.DataFrame(data)


def _records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in record.items()} for record in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    """A JSON value: missing numbers are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) else None
