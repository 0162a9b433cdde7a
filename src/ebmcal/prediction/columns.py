"""A chunk of input rows → output rows: `id`, `label`, the user's own columns, then the results.

`OutputColumns` arranges the columns, `ChunkPredictor` fills them. The same for every engine.
"""

import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.data.columns import Columns, Tally, as_label, as_text, class_map, is_blank
from ebmcal.data.files import RawRow, find_value
from ebmcal.errors import EbmcalError
from ebmcal.prediction.reading import Chunk, Input
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from ebmcal.model import Ensemble, Model
    from ebmcal.selective import AbstentionRule

#: Names that readers of prediction files understand; a user's column with such a name becomes `input_…`.
RESERVED_PREFIXES = ("prob_", "logit_", "distance_", "human_")

_STRINGS = ("predicted", "decision", "reason", "error", "label", "other")


@dataclass(frozen=True)
class OutputColumns:
    """Which columns are read and which are written."""

    read: Columns
    label_names: tuple[str, ...]
    users: dict[str, str]  # the user's column → its name in the output
    results: list[str]
    unit: str  # what `RawRow.place` counts
    writes_id: bool  # the id is not simply the user's column `id`
    has_other: bool  # later JSON objects may have further keys, which go as JSON into the column `other`

    @classmethod
    def arrange(
        cls, given: Input, read: Columns, results: list[str], label_names: tuple[str, ...], format: str
    ) -> "OutputColumns":
        writes_id = "id" not in given.columns or read.id not in (None, "id")
        ours = {*results, "error", *(["id"] if writes_id else []), *(["label"] if read.label else [])}
        kept = [name for name in given.columns if not (name == read.label == "label")]
        users: dict[str, str] = {}
        for name in kept:
            users[name] = _free_name(name, ours | set(users.values()) | (set(kept) - {name}))
        has_other = format != "jsonl" and not given.is_complete
        return cls(read, label_names, users, [*results, "error"], given.tally.unit, writes_id, has_other)

    @property
    def names(self) -> list[str]:
        first = [*(["id"] if self.writes_id else []), *(["label"] if self.read.label else [])]
        return [*first, *self.users.values(), *(["other"] if self.has_other else []), *self.results]

    def arrow_types(self, given: Input) -> dict[str, Any]:
        """The Arrow types that are known before any row is read, by column."""
        import pyarrow as pa

        types = dict.fromkeys(_STRINGS, pa.string()) | {"label_set": pa.list_(pa.string())}
        if given.schema is not None:
            return types | {self.users[entry.name]: entry.type for entry in given.schema if entry.name in self.users}
        known = pa.string() if given.format in ("csv", "tsv", "lines") else None
        return types | dict.fromkeys(self.users.values(), known)

    def start_row(self, row: RawRow, number: int) -> dict[str, Any]:
        """The output row with its id and the user's values."""
        out: dict[str, Any] = {}
        if self.writes_id:
            out["id"] = str(number) if self.read.id is None else find_value(row.values, self.read.id)
        if self.read.label:
            out["label"] = None
        values = {name: value for name, value in row.values.items() if not (name == self.read.label == "label")}
        out |= {self.users[name]: value for name, value in values.items() if name in self.users}
        other = {name: value for name, value in values.items() if name not in self.users}
        if self.has_other:
            return out | {"other": json.dumps(other, ensure_ascii=False, default=str) if other else None}
        return out | {_free_name(name, {*self.names, *out}): value for name, value in other.items()}

    def text_and_label(self, row: RawRow) -> tuple[str | tuple[str, str], str | None]:
        """The text (or pair) of a row and the class name of its label; an `EbmcalError` if it has no usable text."""
        try:
            if row.error is not None:
                raise EbmcalError(row.error)
            texts = [self._text(row, name) for name in self.read.texts()]
            label = None if self.read.label is None else self._label(row, self.read.label)
            return (texts[0] if len(texts) == 1 else (texts[0], texts[1])), label
        except EbmcalError as error:
            raise EbmcalError(f"{self.unit} {row.place}: {error}") from None

    def _text(self, row: RawRow, name: str) -> str:
        value = find_value(row.values, name)
        text = as_text(value, name, row.place, Tally(self.unit))
        if is_blank(text):
            raise EbmcalError(f"{name!r} is {'missing' if value is None else 'empty'}")
        return text

    def _label(self, row: RawRow, name: str) -> str | None:
        label = as_label(find_value(row.values, name), name, row.place, Tally(self.unit))
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


@dataclass(frozen=True)
class OutputChunk:
    """The output rows of a chunk, their counts, and the first error."""

    number: int
    hash: str  # of the input rows
    rows: list[dict[str, Any]]
    counts: dict[str, int] = field(default_factory=dict)  # rows, errors, abstained, ood
    first_error: str | None = None


@dataclass(frozen=True)
class ChunkPredictor:
    """A model, or an ensemble, with the columns and the abstention rule of a job."""

    model: "Model | Ensemble"
    rule: "AbstentionRule | None"
    calibrated: bool
    columns: OutputColumns

    def __call__(self, chunk: Chunk) -> OutputChunk:
        rows = [self.columns.start_row(row, chunk.start + i) for i, row in enumerate(chunk.rows)]
        texts, places, errors = [], [], list[str]()
        for row, out in zip(chunk.rows, rows, strict=True):
            try:
                text, label = self.columns.text_and_label(row)
            except EbmcalError as error:
                out["error"] = str(error)
                errors.append(str(error))
                continue
            texts.append(text)
            places.append(out)
            if self.columns.read.label is not None:
                out["label"] = label
        results = predict_texts(self.model, texts, self.rule, self.calibrated)[1] if texts else {}
        for i, out in enumerate(places):
            out |= {name: values[i] for name, values in results.items()}
        counts = {
            "rows": len(rows), "errors": len(errors),
            "abstained": sum(row.get("decision") == "abstain" for row in places),
            "ood": sum(row.get("is_ood") is True for row in places),
        }  # fmt: skip
        return OutputChunk(chunk.number, chunk.hash, rows, counts, errors[0] if errors else None)


def predict_texts(
    model: "Model | Ensemble", texts: list[Any], rule: "AbstentionRule | None", calibrated: bool
) -> tuple[Predictions, dict[str, list[Any]]]:
    """Predictions of texts, and the columns that they and the rule add; logits instead of probabilities if raw."""
    from ebmcal.model import Ensemble, disagreement

    if not isinstance(model, Ensemble):
        found = _predict_list(model, texts, calibrated, features=rule is not None and rule.needs_features)
        return found, result_columns(found, None, rule, calibrated)
    passes = (_predict_list(member, texts, calibrated, dropout_seed=seed) for member, seed in model.passes())
    members = [predictions.reorder(model.label_names) for predictions in passes]
    found = model.average(members)
    return found, result_columns(found, disagreement(members), rule, calibrated)


def _predict_list(model: "Model", texts: list[Any], calibrated: bool, **options: Any) -> Predictions:
    """`Model.predict` of checked texts without the conversion to a dataset, which would cost as much as a batch."""
    return model.finish(model.predictor(texts, **options), texts, calibrated=calibrated)


def result_columns(
    predictions: Predictions, disagreement: np.ndarray | None, rule: "AbstentionRule | None", calibrated: bool
) -> dict[str, list[Any]]:
    """The columns that predictions and an abstention rule add; logits instead of probabilities if not `calibrated`."""
    is_raw = not calibrated and predictions.logits is not None
    prefix, matrix = ("logit_", predictions.logits) if is_raw else ("prob_", predictions.probs)
    found: dict[str, Any] = {"predicted": predictions.predicted_labels}
    found |= {prefix + name: matrix[:, c] for c, name in enumerate(predictions.label_names)}  # type: ignore[index]
    found |= {"confidence": predictions.confidence, "energy": predictions.require_energies()}
    found |= {f"distance_{name}": values for name, values in (predictions.distances or {}).items()}
    found |= {} if disagreement is None else {"disagreement": disagreement}
    columns = {name: values.tolist() for name, values in found.items()}
    return columns | ({} if rule is None else rule.apply(predictions).columns())
