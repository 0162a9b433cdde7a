"""`ChunkPredictor`: a chunk of input rows → a chunk of output rows. The same function for every engine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.prediction.chunks import Chunk, OutputChunk
from ebmcal.prediction.columns import OutputColumns, result_columns
from ebmcal.prediction.ensemble import Ensemble, disagreement
from ebmcal.predictions import Predictions

if TYPE_CHECKING:
    from ebmcal.model import Model
    from ebmcal.selective import AbstentionRule


@dataclass(frozen=True)
class ChunkPredictor:
    """A model, or an ensemble, with the columns and the abstention rule of a job."""

    model: "Model | Ensemble"
    columns: OutputColumns
    rule: "AbstentionRule | None"
    calibrated: bool

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
            out |= {} if self.columns.read.label is None else {"label": label}
        for out, values in zip(places, self.results(texts), strict=True):
            out |= values
        counts = {
            "rows": len(rows), "errors": len(errors),
            "abstained": sum(row.get("decision") == "abstain" for row in places),
            "ood": sum(row.get("ood") is True for row in places),
        }  # fmt: skip
        return OutputChunk(chunk.number, chunk.hash, rows, counts, errors[0] if errors else None)

    def results(self, texts: list[Any]) -> list[dict[str, Any]]:
        """The result columns of texts, row by row."""
        if not texts:
            return []
        found = result_columns(
            *predict_texts(self.model, texts, self.rule, self.calibrated), self.rule, self.calibrated
        )
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def predict_texts(
    model: "Model | Ensemble", texts: list[Any], rule: "AbstentionRule | None", calibrated: bool
) -> tuple[Predictions, np.ndarray | None]:
    """Predictions of texts, with the distances that the rule needs, and the disagreement of an ensemble's members."""
    if not isinstance(model, Ensemble):
        return _predict_list(model, texts, calibrated, features=rule is not None and rule.needs_features), None
    found = (_predict_list(member, texts, calibrated, dropout_seed=seed) for member, seed in model.passes())
    members = [predictions.reorder(model.label_names) for predictions in found]
    return model.average(members), disagreement(members)


def _predict_list(model: "Model", texts: list[Any], calibrated: bool, **options: Any) -> Predictions:
    """`Model.predict` of checked texts without the conversion to a dataset, which would cost as much as a batch."""
    return model.finish(model.predictor(texts, **options), texts, calibrated=calibrated)
