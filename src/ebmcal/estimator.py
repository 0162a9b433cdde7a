"""A scikit-learn estimator: `fit` on texts trains one model of a run, `predict_proba` asks it.

It clones, pickles (with the files of its model inside), and sits in pipelines, grid searches and scikit-learn's own
calibrators. Texts are what scikit-learn calls raw documents: a list, an array or a Series of strings, or of pairs.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ebmcal.data.labels import infer_names
from ebmcal.data.values import Tally, as_label
from ebmcal.errors import EbmcalError
from ebmcal.model import Model, load
from ebmcal.runs import train
from ebmcal.storage.atomic import inside
from ebmcal.storage.temporary import TemporaryFolder

#: Rows that stand in for the calibration and test splits of a run: nothing is measured on them here.
STAND_IN = 50

#: More steps than any training has: no evaluation and no checkpoint on the way.
NEVER = 10**8


class EnergyTextClassifier(ClassifierMixin, BaseEstimator):
    """An encoder finetuned by one of ebmcal's methods, with the constructor's settings.

    `encoder`, `method` and what follows are the settings of `ebmcal.run`, None = decide by the data; `settings` has
    any other of them by name. Learned: `classes_` and `model_`, the `ebmcal.Model`.

        classifier = EnergyTextClassifier(epochs=3).fit(texts, labels)
        classifier.predict_proba(["a text"]), classifier.energy(["a text"])
    """

    def __init__(
        self,
        encoder: str = "minilm",
        method: str = "hidden-smoothing",
        *,
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        max_length: int = 128,
        energy_weight: float | None = None,
        noise_ratio: int | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 1,
        progress: bool = False,
    ) -> None:
        self.encoder = encoder
        self.method = method
        self.epochs = epochs
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.energy_weight = energy_weight
        self.noise_ratio = noise_ratio
        self.settings = settings
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any) -> "EnergyTextClassifier":
        """Train on texts [n] (or pairs [n, 2]) and labels [n] of any type; all rows are trained on."""
        if y is None:
            raise EbmcalError("EnergyTextClassifier requires y to be passed, but the target y is None.")
        texts, y = as_texts(X), column_or_1d(y, warn=True)
        check_consistent_length(texts, y)
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise EbmcalError(f"All labels are of one class, {classes[0]}; training needs two classes at least.")
        names = _names_of(classes)
        labels = [names[code] for code in codes]
        some = texts[:STAND_IN], labels[:STAND_IN]
        run = train(train=(texts, labels), calibration=some, test=some, **self._settings(len(texts)))
        self.classes_, self.model_ = classes, run.model()
        self._columns = [self.model_.label_names.index(name) for name in names]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each text [n]."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(y|x) of each text [n, C], columns in the order of `classes_`."""
        check_is_fitted(self)
        return self.model_.predict_proba(as_texts(X))[:, self._columns]

    def energy(self, X: Any) -> np.ndarray:
        """The energy of each text [n]: low = like the training texts."""
        check_is_fitted(self)
        return self.model_.energy(as_texts(X))

    def _settings(self, n_rows: int) -> dict[str, Any]:
        """The settings of the run; a batch is never larger than the data."""
        own = ("encoder", "epochs", "steps", "learning_rate", "max_length", "energy_weight", "noise_ratio", "progress")
        seed = self.random_state
        seed = int(check_random_state(seed).randint(2**31)) if not isinstance(seed, int | np.integer) else int(seed)
        batch_size = self.batch_size or (min(n_rows, 16) if n_rows < 32 else None)
        return {
            "methods": [self.method],
            "seeds": [seed],
            "batch_size": batch_size,
            "eval_steps": NEVER,
            "save_steps": NEVER,
            **{name: getattr(self, name) for name in own},
            **(self.settings or {}),
        }

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
            self.model_ = _model_of(files)


def as_texts(X: Any) -> list[Any]:
    """Texts, or pairs of texts, of what scikit-learn hands on: lists, arrays, Series and frames of one or two columns.

    >>> as_texts(np.array([["a"], ["b"]])), as_texts([("a", "b")])
    (['a', 'b'], [('a', 'b')])
    """
    if isinstance(X, str):
        raise EbmcalError("Iterable over texts expected, a string came. For one text give a list: [text].")
    X = X.to_numpy() if hasattr(X, "to_numpy") else X
    rows = X.tolist() if isinstance(X, np.ndarray) else list(X)
    rows = [row[0] if isinstance(row, list | tuple) and len(row) == 1 else row for row in rows]
    return [tuple(row) if isinstance(row, list) else row for row in rows]


def _names_of(classes: np.ndarray) -> list[str]:
    """A name for each class: as files would have it, or its number where such names would not do.

    >>> _names_of(np.array([3.0, 5.0])), _names_of(np.array(["b", "b "]))
    (['3', '5'], ['class 0', 'class 1'])
    """
    names = [as_label(str(value), "y", 0, Tally()) or "" for value in classes]
    try:
        infer_names(names, "y")
        fine = len(set(names)) == len(names) and all(names)
    except EbmcalError:  # numbers and words
        fine = False
    return names if fine else [f"class {i}" for i in range(len(names))]


def _model_of(files: dict[str, bytes]) -> Model:
    """The model of these files, which it keeps in a temporary folder."""
    owner = TemporaryFolder()
    for name, content in files.items():
        inside(owner.path, name).write_bytes(content)
    return replace(load(owner.path), owner=owner)
