"""The columns of the output: `id`, `label`, the user's own columns, then the results. No torch."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.data.labels import class_map
from ebmcal.data.text_files import find_value
from ebmcal.data.values import Columns, Tally, as_label, as_text, is_blank
from ebmcal.errors import EbmcalError
from ebmcal.prediction.reading import Input, InputRow
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from ebmcal.selective import AbstentionRule

#: Names that readers of prediction files understand; a user's column with such a name becomes `input_…`.
RESERVED_PREFIXES = ("prob_", "logit_", "distance_", "human_")

#: Columns of decisions are named as in the answers and the log of the server.
_SERVED_NAMES = {"is_ood": "ood", "ood_p_value": "ood_p"}

_STRINGS = ("predicted", "decision", "reason", "error", "label", "other")


@dataclass(frozen=True)
class OutputColumns:
    """Which columns are read and which are written."""

    read: Columns
    label_names: tuple[str, ...]
    users: dict[str, str]  # the user's column → its name in the output
    results: list[str]
    unit: str  # what `InputRow.line` counts
    writes_id: bool  # the id is not simply the user's column `id`
    has_other: bool  # later JSON objects may have further keys, which go as JSON into the column `other`

    @classmethod
    def arrange(
        cls, given: Input, read: Columns, results: Sequence[str], label_names: tuple[str, ...], format: str
    ) -> "OutputColumns":
        writes_id = "id" not in given.columns or read.id not in (None, "id")
        ours = [*results, "error", *(["id"] if writes_id else []), *(["label"] if read.label else [])]
        kept = [name for name in given.columns if not (name == read.label == "label")]
        users: dict[str, str] = {}
        for name in kept:
            users[name] = _free_name(name, {*ours, *users.values(), *(set(kept) - {name})})
        has_other = format != "jsonl" and not given.is_complete
        return cls(read, label_names, users, [*results, "error"], given.tally.unit, writes_id, has_other)

    @property
    def names(self) -> list[str]:
        first = [*(["id"] if self.writes_id else []), *(["label"] if self.read.label else [])]
        return [*first, *self.users.values(), *(["other"] if self.has_other else []), *self.results]

    def arrow_types(self, given: Input) -> dict[str, Any]:
        """The Arrow types that are known before any row is read, by column."""
        import pyarrow as pa

        types = {name: pa.string() for name in _STRINGS if name in self.names and name not in self.users.values()}
        if given.schema is not None:
            return types | {self.users[entry.name]: entry.type for entry in given.schema if entry.name in self.users}
        is_text = given.format in ("csv", "tsv", "lines")
        return types | ({name: pa.string() for name in self.users.values()} if is_text else {})

    def start_row(self, row: InputRow, number: int) -> dict[str, Any]:
        """The output row with its id and the user's values."""
        out: dict[str, Any] = {}
        if self.writes_id:
            out["id"] = str(number) if self.read.id is None else find_value(row.values, self.read.id)
        if self.read.label:
            out["label"] = None
        other: dict[str, Any] = {}
        for name, value in row.values.items():
            if name in self.users:
                out[self.users[name]] = value
            elif not (name == self.read.label == "label"):
                other[name] = value
        if self.has_other:
            return out | {"other": json.dumps(other, ensure_ascii=False, default=str) if other else None}
        return out | {_free_name(name, {*self.names, *out}): value for name, value in other.items()}

    def text_and_label(self, row: InputRow) -> tuple[str | tuple[str, str], str | None]:
        """The text (or pair) of a row and the class name of its label; an `EbmcalError` if it has no usable text."""
        if row.error is not None:
            raise EbmcalError(row.error)
        try:
            text = self._text(row, str(self.read.text))
            found: str | tuple[str, str] = text if self.read.pair is None else (text, self._text(row, self.read.pair))
            return found, None if self.read.label is None else self._label(row, self.read.label)
        except EbmcalError as error:
            raise EbmcalError(f"{self.unit} {row.line}: {error}") from None

    def _text(self, row: InputRow, name: str) -> str:
        value = find_value(row.values, name)
        if value is None:
            raise EbmcalError(f"{name!r} is missing")
        text = as_text(value, name, row.line, Tally(self.unit))
        if is_blank(text):
            raise EbmcalError(f"{name!r} is empty")
        return text

    def _label(self, row: InputRow, name: str) -> str | None:
        label = as_label(find_value(row.values, name), name, row.line, Tally(self.unit))
        if label is None or self._classes.get(label, 0) < 0:
            return None
        if label not in self._classes:
            raise EbmcalError(f"the label {label!r:.60} is not one of {', '.join(self.label_names[:20])}")
        return self.label_names[self._classes[label]]

    @functools.cached_property
    def _classes(self) -> dict[str, int]:
        return class_map(self.label_names, by_number=True)


def _free_name(name: str, taken: set[str]) -> str:
    """The name of a user's column in the output: `input_…` if it is reserved or taken."""
    while name in taken or name.startswith(RESERVED_PREFIXES):
        name = f"input_{name}"
    return name


def result_columns(
    predictions: Predictions, disagreement: np.ndarray | None, rule: "AbstentionRule | None", calibrated: bool
) -> dict[str, list[Any]]:
    """The columns that predictions and an abstention rule add; logits instead of probabilities if not `calibrated`."""
    is_raw = not calibrated and predictions.logits is not None
    prefix, matrix = ("logit_", predictions.logits) if is_raw else ("prob_", predictions.probs)
    found: dict[str, Any] = {"predicted": predictions.predicted_labels}
    found |= {prefix + name: matrix[:, c] for c, name in enumerate(predictions.label_names)}  # type: ignore[index]
    found["confidence"] = predictions.confidence
    found |= {} if predictions.energies is None else {"energy": predictions.energies}
    found |= {f"distance_{name}": values for name, values in (predictions.distances or {}).items()}
    found |= {} if disagreement is None else {"disagreement": disagreement}
    columns = {name: values.tolist() for name, values in found.items()}
    decisions = {} if rule is None else rule.apply(predictions).columns()
    return columns | {_SERVED_NAMES.get(name, name): values for name, values in decisions.items()}
