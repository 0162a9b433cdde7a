"""The interface of all calibrators: `fit(logits, y)`, `predict_proba(logits)`, `apply(predictions)`, JSON.

A calibrator has a `name`, its settings in the constructor, the names of its `learned` attributes (stored as JSON), and
two methods on validated arrays: `_fit(logits [n, C], y [n])` and `_predict(logits [n, C]) -> [n, C]`.
Adding one takes a class, an entry in `CALIBRATORS`, and the contract tests cover it.
"""

import inspect
import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ebmcal.calibration.layout import logits_in
from ebmcal.calibration.leakage import count_distinct, warn_if_leaked
from ebmcal.calibration.sketch import FittingRows
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import as_labels, as_logits, as_probs
from ebmcal.storage import PathLike, write_json

if TYPE_CHECKING:
    from typing_extensions import Self


class FewRowsWarning(UserWarning):
    """A calibrator was fitted on fewer rows than it needs."""


class Calibrator:
    """Base class of all calibrators.

    Learned by all: `n_classes_`, `classes_` (0..C-1), `n_rows_`, `label_names_` (None unless fitted on `Predictions`)
    and `fitted_on_`, a sketch of the fitting rows for the leakage check.

        calibrator = TemperatureScaling().fit(logits, y)  # [n, C], [n]
        calibrator.predict_proba(others)  # [m, C] -> [m, C]
    """

    name: ClassVar[str]
    learned: ClassVar[tuple[str, ...]]
    ranges: ClassVar[dict[str, tuple[float, float]]] = {}  # of learned values: a file with others is refused

    def fit(self, logits: Any, y: Any) -> "Self":
        """Learn from logits `[n, C]` (any float type) and labels `[n]` in 0..C-1; returns self."""
        logits = _checked_logits(logits)
        y = as_labels(y, n_classes=logits.shape[1], n_rows=len(logits))
        return self._fit_rows(logits, y, None, len(y), FittingRows.of_arrays(logits, y))

    def fit_predictions(self, predictions: Predictions) -> "Self":
        """Learn from the labelled rows of `Predictions`; also remembers the label names and a sketch of the texts.

        Exact duplicates count once when the number of rows is compared with `min_rows`.
        """
        rows = predictions.labelled()
        logits = _checked_logits(logits_in(rows))
        self._check_settings()
        is_plenty = rows.n_rows > 100 * self.min_rows(rows.n_classes)  # even if most are duplicates
        n_distinct = rows.n_rows if is_plenty else count_distinct(rows)
        return self._fit_rows(logits, rows.labels, list(rows.label_names), n_distinct, FittingRows.of(rows))

    def predict_proba(self, logits: Any) -> np.ndarray:
        """Calibrated probabilities `[n, C]`, float64; rows sum to one."""
        self._require_fitted()
        logits = _checked_logits(logits)
        if logits.shape[1] != self.n_classes_:
            raise EbmcalError(
                f"This {self.name} calibrator was fitted on {self.n_classes_} classes; the logits have "
                f"{logits.shape[1]} columns. Pass the columns it was fitted on, in the same order, or fit another one."
            )
        return self._predict(logits)

    def apply(self, predictions: Predictions) -> Predictions:
        """The same rows with calibrated probabilities; `meta["calibrator"]` describes the calibrator.

        Warns with `LeakageWarning` if labelled rows among them were used in the fit.
        """
        self._require_fitted()
        if self.label_names_ is not None and list(predictions.label_names) != self.label_names_:
            raise EbmcalError(
                f"The {self.name} calibrator was fitted for the labels {self.label_names_}, these rows have "
                f"{list(predictions.label_names)}. Fit one on rows with the same labels in the same order."
            )
        if (predictions.labels >= 0).any():
            warn_if_leaked(self.fitted_on_, predictions.labelled())
        return predictions.with_probs(self.predict_proba(logits_in(predictions)), calibrator=self.description)

    @property
    def description(self) -> dict[str, Any]:
        """The entry `meta["calibrator"]`: name, settings, number of fitting rows and a note."""
        return {"name": self.name, "settings": self._settings(), "n_rows": self.n_rows_, "note": self.note}

    @property
    def note(self) -> str:
        """What was learned, in a few words; may be empty."""
        return ""

    def min_rows(self, n_classes: int) -> int:
        """The smallest number of fitting rows with which this calibrator can be expected to help."""
        raise NotImplementedError

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's settings, as scikit-learn's `clone` and grid searches expect them."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> "Self":
        """Change settings; they take effect at the next fit."""
        for name, value in params.items():
            if name not in self.get_params():
                raise unknown_name(f"setting of {type(self).__name__}", name, self.get_params())
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({settings})"

    def to_json(self) -> dict[str, Any]:
        """Everything needed to predict the same numbers again, as JSON values."""
        self._require_fitted()
        return {
            "calibrator": self.name,
            "settings": self._settings(),
            "n_classes": self.n_classes_,
            "n_rows": self.n_rows_,
            "label_names": self.label_names_,
            "learned": {name: self._learned_to_json(name) for name in self.learned},
            "fitted_on": self.fitted_on_.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Self":
        """The calibrator that `to_json` described; a ValueError if a value cannot have been learned."""
        self = cls(**value["settings"])
        self._check_settings()
        fitted_on = FittingRows.from_json(value["fitted_on"])
        self._remember(value["n_classes"], value["n_rows"], value["label_names"], fitted_on)
        for name in cls.learned:
            _check_learned(name, value["learned"][name], cls.ranges.get(name))
            setattr(self, name, cls._learned_from_json(name, value["learned"][name]))
        self._check_consistent()
        return self

    def save(self, path: PathLike) -> None:
        """Write as JSON; `load_calibrator` reads it."""
        write_json(path, self.to_json())

    def _settings(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in self.get_params().items()}

    def _check_settings(self) -> None:
        """Raise for invalid settings; the constructor only stores them."""

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        raise NotImplementedError

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _learned_to_json(self, name: str) -> Any:
        return plain(getattr(self, name))

    @classmethod
    def _learned_from_json(cls, name: str, value: Any) -> Any:
        return np.asarray(value, dtype=np.float64) if isinstance(value, list) else value

    def _fit_rows(
        self, logits: np.ndarray, y: np.ndarray, names: list[str] | None, n_distinct: int, fitted_on: FittingRows
    ) -> "Self":
        self._check_settings()
        if n_distinct < self.min_rows(logits.shape[1]):
            warnings.warn(rows_advice(self, n_distinct, logits.shape[1]), FewRowsWarning, stacklevel=3)
        self._fit(logits, y)
        self._remember(logits.shape[1], len(y), names, fitted_on)
        return self

    def _remember(self, n_classes: int, n_rows: int, label_names: list[str] | None, fitted_on: FittingRows) -> None:
        self.n_classes_, self.classes_, self.n_rows_ = n_classes, np.arange(n_classes), n_rows
        self.n_features_in_ = n_classes  # scikit-learn's name for the number of columns
        self.label_names_, self.fitted_on_ = label_names, fitted_on

    def _check_consistent(self) -> None:
        """Raise unless the values read from a file fit together and give probabilities."""
        n, names = self.n_classes_, self.label_names_
        require_whole_number("n_classes", n, least=2)
        require_whole_number("n_rows", self.n_rows_)
        if names is not None and (not isinstance(names, list) or len(names) != n):
            raise ValueError(f"label_names are not {n} names")
        as_probs(probs=self.predict_proba(np.vstack([np.zeros(n), 9 * np.eye(n)[:2]])))

    def _require_fitted(self) -> None:
        if not hasattr(self, "n_classes_"):
            raise EbmcalError(f"This {type(self).__name__} is not fitted yet. Call fit(logits, y) first.")


def rows_advice(calibrator: Calibrator, n_rows: int, n_classes: int) -> str:
    """Whether this many fitting rows are enough, in a sentence.

    >>> from ebmcal.calibration import make_calibrator
    >>> rows_advice(make_calibrator("temperature"), n_rows=500, n_classes=2)
    '500 rows are enough for temperature with 2 classes (at least 100).'
    """
    least = calibrator.min_rows(n_classes)
    if n_rows >= least:
        return f"{n_rows} rows are enough for {calibrator.name} with {n_classes} classes (at least {least})."
    hint = "" if calibrator.name == "temperature" else ", or use temperature scaling, which needs the fewest"
    return (
        f"{n_rows} rows are few for {calibrator.name} with {n_classes} classes (at least {least} recommended): the "
        f"probabilities may become worse. Fit on more rows{hint}."
    )


def require_positive(name: str, value: Any, default: float) -> None:
    """Raise unless a setting is a finite number above 0."""
    if not (isinstance(value, Real) and 0 < float(value) < np.inf):
        raise EbmcalError(f"{name}: expected a number above 0 (default {default}), got {value!r}.")


def require_whole_number(name: str, value: Any, least: int = 1) -> None:
    """Raise unless a setting is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise EbmcalError(f"{name}: expected a whole number of {least} or more, got {value!r}.")


def plain(value: Any) -> Any:
    """numpy numbers and arrays as Python's, for JSON."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _check_learned(name: str, value: Any, allowed: tuple[float, float] | None) -> None:
    """Raise for values that no fit can have learned: anything but finite numbers, and numbers out of range."""
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _check_learned(name, part, allowed)
    elif isinstance(value, str) or value is None or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}")
    elif allowed is not None and (isinstance(value, bool) or not allowed[0] <= value <= allowed[1]):
        raise ValueError(f"{name} is {value!r}; expected a number from {allowed[0]:g} to {allowed[1]:g}")


def _checked_logits(logits: Any) -> np.ndarray:
    """Logits `[n, C]` in float64: half precision is for storage, not for computing."""
    logits = as_logits(logits).astype(np.float64, copy=False)
    if logits.shape[1] < 2:
        raise EbmcalError(
            "Calibrators need one column per class for at least two classes, got one column. "
            "For the single logit z of a binary classifier pass two columns: 0 and z."
        )
    return logits
