"""`EnergyTextClassifier`: a scikit-learn estimator. `fit` trains one model on texts, `predict_proba` applies it.

It clones, pickles (with the files of its model) and works in pipelines, grid searches and scikit-learn's calibrators.
Texts are a list, an array or a Series of strings, or of pairs of strings.
"""

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ebmcal.data import as_dataset
from ebmcal.data.files import Tally, as_label, is_empty
from ebmcal.errors import EbmcalError, plural
from ebmcal.model import Model, load
from ebmcal.progress import Reporter
from ebmcal.runs import run
from ebmcal.storage import TemporaryDirectory

if TYPE_CHECKING:
    from datasets import Dataset

#: More steps than any training has: no evaluation and no checkpoints.
NEVER = 10**8


class EnergyTextClassifier(ClassifierMixin, BaseEstimator):
    """A finetuned encoder with calibrated probabilities.

    `encoder`, `method` and the following parameters are settings of `ebmcal.run` (None: from the data); `settings`
    holds any other setting by name. `calibration="cross-fit"` calibrates on out-of-fold predictions of the training
    rows, at the cost of the fold trainings. Fitted attributes: `classes_` and `model_`, the `ebmcal.Model`, whose
    labels are the classes as strings, in the same order.

        classifier = EnergyTextClassifier(calibration="cross-fit").fit(texts, labels)
        classifier.predict_proba(["a text"]), classifier.energy(["a text"])
    """

    def __init__(
        self,
        encoder: str = "minilm",
        method: str = "hidden",
        *,
        calibration: str | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        max_length: int | None = None,
        energy_weight: float | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 1,
        progress: bool | None = False,
    ) -> None:
        self.encoder = encoder
        self.method = method
        self.calibration = calibration
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.energy_weight = energy_weight
        self.settings = settings
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any) -> "EnergyTextClassifier":
        """Train on texts [n] (or pairs [n, 2]) and labels [n] of any type; rows with an empty text are left out."""
        if y is None:
            raise EbmcalError("EnergyTextClassifier requires y to be passed, but the target y is None.")
        if self.calibration not in (None, "cross-fit"):
            raise EbmcalError(f"calibration must be None or 'cross-fit', got {self.calibration!r}.")
        if (self.settings or {}).get("merge_labels"):
            raise EbmcalError("settings: merge_labels is for files. Replace the labels in y.")
        texts, y = as_texts(X), column_or_1d(y, warn=True)
        check_consistent_length(texts, y)
        check_classification_targets(y)
        texts, y = _without_empty(texts, y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise EbmcalError(f"All labels belong to one class, {classes[0]}; training needs at least two classes.")
        rows, seed = labelled_rows(texts, codes, class_names(classes)), self.random_state
        seed = int(seed) if isinstance(seed, int | np.integer) else int(check_random_state(seed).randint(2**31))
        settings = {"eval_steps": NEVER, "save_steps": NEVER, "only": None if self.calibration else "train"}
        batch_size = self.batch_size or (min(len(texts), 16) if len(texts) < 32 else None)
        finished = run(
            rows, test=rows, calibration=self.calibration or rows,
            text_pair_column="text_pair" if "text_pair" in rows.column_names else None,
            encoder=self.encoder, methods=[self.method],
            seeds=seed, epochs=self.epochs, batch_size=batch_size, learning_rate=self.learning_rate,
            max_length=self.max_length, energy_weight=self.energy_weight, progress=self.progress,
            settings=settings | {"posthoc": ["temperature"]} | dict(self.settings or {}),
        )  # fmt: skip
        self.classes_, self.model_ = classes, finished.model(self.method)
        if self.calibration:
            self.model_ = self.model_.calibrate(finished.predictions(self.method, "out_of_fold"))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each text [n]."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(y|x) of each text [n, C], columns in the order of `classes_`."""
        check_is_fitted(self)
        return self.model_.predict_proba(as_texts(X))

    def energy(self, X: Any) -> np.ndarray:
        """The energy of each text [n]: low = like the training texts."""
        check_is_fitted(self)
        return self.model_.energy(as_texts(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        model: Model | None = state.pop("model_", None)
        if model is not None:
            with tempfile.TemporaryDirectory() as folder:
                saved = model.save(Path(folder) / "model")
                state["model_files"] = {path.name: path.read_bytes() for path in sorted(saved.iterdir())}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("model_files", None)
        super().__setstate__(state)
        if files is not None:
            owner = TemporaryDirectory()
            for name, content in files.items():
                (owner.path / Path(name).name).write_bytes(content)
            self.model_ = replace(load(owner.path), owner=owner)


def class_names(classes: np.ndarray) -> list[str]:
    """The labels of `model_`, in the order of `classes_`: as a file would have them, if that is unambiguous.

    >>> class_names(np.array(["bad", "good"])), class_names(np.array([2.0, 10.0])), class_names(np.array(["a", "a "]))
    (['bad', 'good'], ['2', '10'], ['class_000000', 'class_000001'])
    """
    names = [as_label(label, "y", i, Tally()) for i, label in enumerate(classes.tolist())]
    if len(set(names)) == len(names) and None not in names:
        return [str(name) for name in names]
    return [f"class_{code:06d}" for code in range(len(classes))]


def labelled_rows(texts: list[Any], codes: np.ndarray, names: list[str]) -> "Dataset":
    """Texts or pairs with class numbers [n] as a Dataset whose classes have these names, in this order."""
    import pyarrow as pa
    from datasets import ClassLabel, Dataset, DatasetInfo, Features, concatenate_datasets

    rows = as_dataset(texts, reporter=Reporter()).remove_columns("label")
    info = DatasetInfo(features=Features({"label": ClassLabel(names=names)}))
    labels = Dataset(pa.table({"label": codes.astype(np.int64)}), info)  # casting a column would draw a progress bar
    return concatenate_datasets([rows, labels], axis=1)


def as_texts(X: Any) -> list[Any]:
    """Texts, or pairs of texts, from lists, arrays, Series and frames with one or two columns."""
    if isinstance(X, str):
        raise EbmcalError("Expected an iterable of texts, got a string. For one text pass a list: [text].")
    X = X.to_numpy() if hasattr(X, "to_numpy") else X
    rows = X.tolist() if isinstance(X, np.ndarray) else list(X)
    rows = [row[0] if isinstance(row, list | tuple) and len(row) == 1 else row for row in rows]
    return [tuple(map(_filled, row)) if isinstance(row, list | tuple) else _filled(row) for row in rows]


def _filled(text: Any) -> Any:
    """A missing text (None, NaN), as pandas reads an empty cell of a file, is an empty text."""
    import pandas as pd

    return "" if not isinstance(text, str) and pd.isna(text) is True else text


def _without_empty(texts: list[Any], y: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """The rows whose texts are not empty; warns if there are others."""
    if empty := [i for i, row in enumerate(texts) if is_empty(row)]:
        first = f"{plural(len(empty), 'row')} with an empty text, the first is row {empty[0]} (counting from 0)"
        warnings.warn(f"{first}: left out.", stacklevel=3)
    left_out = set(empty)
    return [row for i, row in enumerate(texts) if i not in left_out], np.delete(y, empty)
