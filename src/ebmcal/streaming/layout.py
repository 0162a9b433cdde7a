"""The columns of an output of `ebmcal predict`: the user's own, then ours. No torch."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebmcal.data.values import Columns
from ebmcal.decisions import Rule
from ebmcal.predictions import Predictions
from ebmcal.streaming.reading import MOST_COLUMNS, Input


@dataclass(frozen=True)
class Layout:
    """The columns of the output: the user's, then ours; one of the user's that is named like ours is `input_…`."""

    read: Columns
    label_names: tuple[str, ...]
    users: list[str]
    ours: list[str]
    has_other: bool  # whether keys that no column is known for go, as JSON, into a column of their own
    types: dict[str, Any]  # of columns of Parquet, where they are known
    note: dict[str, Any]  # what a Parquet file says about itself: class names and meta

    @classmethod
    def of(cls, given: Input, read: Columns, ours: list[str], form: str, trial: Predictions) -> "Layout":
        is_open = not given.is_whole or len(given.columns) == MOST_COLUMNS
        has_other = given.kind == "jsonl" and form != "jsonl" and is_open
        note = {"label_names": list(trial.label_names), "meta": trial.meta}
        layout = cls(read, trial.label_names, given.columns, ours, has_other, {}, note)
        if given.types is not None:
            layout.types.update({layout.shown(field.name): field.type for field in given.types})
        texts = [] if given.kind in ("jsonl", "json", "parquet") else [layout.shown(name) for name in given.columns]
        texts += [name for name in ("predicted", "decision", "reason", "error", "other") if name in layout.columns]
        texts += ["label"] if layout.has_label else []
        layout.types.update(dict.fromkeys(texts, _string()))
        return layout

    @property
    def columns(self) -> list[str]:
        shown = [self.shown(name) for name in self.users]
        first = [name for name in ("id", "label") if name not in shown]
        return [*first, *shown, *(["other"] if self.has_other else []), *self.ours]

    @property
    def has_label(self) -> bool:
        """Whether the column `label` is ours: a class of the model, or empty."""
        return self.read.label is not None or "label" not in self.users

    def shown(self, name: str) -> str:
        return f"input_{name}" if name in self.ours else name

    def given(self, values: dict[str, Any]) -> dict[str, Any]:
        """The user's values as they come back."""
        if not self.has_other:
            return {self.shown(name): value for name, value in values.items()}
        columns = {*self.users, "id", "label"}
        known = {self.shown(name): value for name, value in values.items() if name in columns}
        other = {name: value for name, value in values.items() if name not in columns}
        return {**known, "other": json.dumps(other, ensure_ascii=False) if other else None}


def figures_of(
    p: Predictions, disagreement: np.ndarray | None, rule: Rule | None, calibrated: bool
) -> dict[str, list[Any]]:
    """Our columns of the output, for predictions."""
    is_logits = not calibrated and p.logits is not None
    matrix = p.logits if is_logits and p.logits is not None else p.probabilities()
    prefix = "logit_" if is_logits else "prob_"
    found: dict[str, list[Any]] = {"predicted": p.labels_.tolist()}
    found |= {prefix + name: matrix[:, c].tolist() for c, name in enumerate(p.label_names)}
    found["confidence"] = p.confidences().tolist()
    found |= {} if p.energies is None else {"energy": p.energies.tolist()}
    found |= {f"distance_{name}": values.tolist() for name, values in (p.distances or {}).items()}
    found |= {} if disagreement is None else {"disagreement": disagreement.tolist()}
    return found | ({} if rule is None else rule.decide(p).columns())


def _string() -> Any:
    import pyarrow as pa

    return pa.string()
