"""The interface of all calibrators: `fit(logits, y)`, `predict_proba(logits)`, `apply(predictions)`, JSON.

A calibrator has a `name`, under which it is listed in `CALIBRATORS`, its settings in the constructor, the names of its
`learned` attributes (stored as JSON), and two methods on validated arrays: `_fit(logits [n, C], y [n])` and
`_predict(logits [n, C]) -> [n, C]`. Adding one takes a class; tests cover all.
"""

import inspect
import warnings
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import yaml

from ebmcal.calibration.leakage import FittingRows, LeakageWarning, distinct_rows, logits_in
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions import Predictions, as_labels, as_logits
from ebmcal.storage import PathLike, fingerprint, read_json, write_json

if TYPE_CHECKING:
    from typing import Self

#: All calibrators by the name that files and the command line use.
CALIBRATORS: dict[str, type["Calibrator"]] = {}


class FewRowsWarning(UserWarning):
    """There are fewer rows than a calibrator or the bins of a metric need."""


class Calibrator:
    """Base class of all calibrators.

    Learned by all: `n_classes_`, `classes_` (0..C-1), `n_rows_`, `label_names_` (None unless fitted on `Predictions`)
    and `fitted_on_`, a sketch of the fitting rows for the leakage check.

        calibrator = TemperatureScaling().fit(logits, y)  # [n, C], [n]
        calibrator.predict_proba(others)  # [m, C] -> [m, C]
    """

    name: ClassVar[str]
    learned: ClassVar[tuple[str, ...]]
    curve: ClassVar[Any] = None  # a learned dataclass
    label_names_: list[str] | None

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            CALIBRATORS[cls.name] = cls

    def fit(self, logits: Any, y: Any) -> "Self":
        """Learn from logits `[n, C]` (any float type) and labels `[n]` in 0..C-1; returns self."""
        logits = _checked_logits(logits)
        y = as_labels(y, n_classes=logits.shape[1], n_rows=len(logits))
        self._fit_rows(logits, y, len(y))
        self.label_names_, self.fitted_on_ = None, FittingRows.of_arrays(logits, y)
        self.applied_after_: str | None = None
        return self

    def fit_predictions(self, predictions: Predictions) -> "Self":
        """Learn from the labelled rows of `Predictions`; also remembers the label names and a sketch of the texts.

        Exact duplicates count once when the number of rows is compared with `min_rows`.
        """
        rows = predictions.labelled()
        self._check_settings()
        is_plenty = rows.n_rows > 100 * self.min_rows(rows.n_classes)  # even if most are duplicates
        n_distinct = rows.n_rows if is_plenty else int(distinct_rows(rows).max()) + 1
        self._fit_rows(_checked_logits(logits_in(rows)), rows.labels, n_distinct)
        self.label_names_, self.fitted_on_ = list(rows.label_names), FittingRows.of(rows)
        self.applied_after_ = applied_calibrator(rows)
        return self

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
        before, expected = applied_calibrator(predictions), self.applied_after_
        if before != expected:
            states = [f"calibrated by {name}" if name else "not calibrated" for name in (expected, before)]
            raise EbmcalError(
                f"The {self.name} calibrator was fitted on rows that are {states[0]}, these are {states[1]}. "
                "Fit and apply it on rows in the same state."
            )
        share = self.fitted_on_.share_among(predictions.labelled()) if (predictions.labels >= 0).any() else 0.0
        if share:
            warnings.warn(
                f"About {share:.0%} of these rows were used to fit the calibrator, so metrics on them are too "
                "optimistic. Evaluate it on other rows.",
                LeakageWarning,
                stacklevel=2,
            )
        return predictions.with_probs(self.predict_proba(logits_in(predictions)), calibrator=self.description)

    @property
    def description(self) -> dict[str, Any]:
        """The entry `meta["calibrator"]`: name, settings, number of fitting rows and a note."""
        settings = _as_json(self.get_params())
        return {"name": self.name, "settings": settings, "n_rows": self.n_rows_, "note": self.note}

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

    def save(self, path: PathLike) -> None:
        """Write as JSON; `load_calibrator` reads it."""
        write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Everything needed to predict the same numbers again, as JSON values, with a checksum."""
        self._require_fitted()
        value = {
            "calibrator": self.name,
            "settings": _as_json(self.get_params()),
            "n_classes": self.n_classes_,
            "n_rows": self.n_rows_,
            "label_names": self.label_names_,
            "learned": {name: _as_json(getattr(self, name)) for name in self.learned},
            "fitted_on": self.fitted_on_.to_json(),
            "applied_after": self.applied_after_,
        }
        return value | {"checksum": fingerprint(value)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Self":
        """The calibrator that `to_json` described; an error if a value was changed."""
        if value["checksum"] != fingerprint({name: part for name, part in value.items() if name != "checksum"}):
            raise ValueError("the checksum differs")
        self = cls(**value["settings"])
        self._set_size(value["n_classes"], value["n_rows"])
        self.label_names_, self.fitted_on_ = value["label_names"], FittingRows.from_json(value["fitted_on"])
        self.applied_after_ = value["applied_after"]
        for name in cls.learned:
            setattr(self, name, cls._from_json(value["learned"][name]))
        return self

    @classmethod
    def _from_json(cls, value: Any) -> Any:
        """A learned value: a number, an array, a curve or a list of curves."""
        if isinstance(value, dict):
            return cls.curve(**{name: cls._from_json(part) for name, part in value.items()})
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return [cls._from_json(part) for part in value]
        return np.asarray(value, dtype=np.float64) if isinstance(value, list) else value

    def _check_settings(self) -> None:
        """Raise for invalid settings; the constructor only stores them."""

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        raise NotImplementedError

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _fit_rows(self, logits: np.ndarray, y: np.ndarray, n_distinct: int) -> None:
        self._check_settings()
        n_classes = logits.shape[1]
        if n_distinct < (least := self.min_rows(n_classes)):
            hint = "" if self.name == "temperature" else ", or use temperature scaling, which needs the fewest"
            rows = f"{n_distinct}{'' if n_distinct == len(y) else ' different'} rows"
            warnings.warn(
                f"{rows} are few for {self.name} with {n_classes} classes (at least {least} recommended): "
                f"the probabilities may become worse. Fit on more rows{hint}.",
                FewRowsWarning,
                stacklevel=3,
            )
        self._fit(logits, y)
        self._set_size(n_classes, len(y))

    def _set_size(self, n_classes: int, n_rows: int) -> None:
        self.n_classes_, self.classes_, self.n_rows_ = n_classes, np.arange(n_classes), n_rows
        self.n_features_in_ = n_classes  # scikit-learn's name for the number of columns

    def _require_fitted(self) -> None:
        if not hasattr(self, "n_classes_"):
            raise EbmcalError(f"This {type(self).__name__} is not fitted yet. Call fit(logits, y) first.")


def applied_calibrator(rows: Predictions) -> str | None:
    """The calibrator that probabilities have been through, as far as their metadata say; None with logits."""
    return None if rows.logits is not None else (rows.meta.get("calibrator") or {}).get("name")


def make_calibrator(spec: str, **settings: Any) -> Calibrator:
    """An unfitted calibrator by its name in `CALIBRATORS`; settings may follow the name, as on the command line.

    >>> make_calibrator("temperature")
    TemperatureScaling()
    >>> make_calibrator("histogram-binning:n_bins=15,binning=width", pseudo_rows=0)
    HistogramBinning(n_bins=15, binning='width', pseudo_rows=0)
    """
    name, _, text = spec.partition(":")
    if name not in CALIBRATORS:
        raise unknown_name("calibrator", name, CALIBRATORS)
    for part in filter(None, text.split(",")):
        setting, equals, value = part.partition("=")
        if not equals:
            raise EbmcalError(f"{spec!r}: expected name:setting=value,setting=value, got no value for {part!r}.")
        settings.setdefault(setting.strip(), yaml.safe_load(value))
    return CALIBRATORS[name]().set_params(**settings)


def load_calibrator(path: PathLike) -> Calibrator:
    """The calibrator that `save` wrote; it predicts the same numbers to the bit.

    For example:

        calibrator.save("calibrator.json")
        load_calibrator("calibrator.json").predict_proba(logits)
    """
    return calibrator_from_json(read_json(path), path)


def calibrator_from_json(value: Any, where: object) -> Calibrator:
    """The calibrator of a JSON value; errors name `where` it was read from."""
    if not isinstance(value, dict) or "calibrator" not in value:
        raise EbmcalError(f"{where} does not contain a calibrator. Write one with save() or `ebmcal calibrate`.")
    name = str(value["calibrator"])
    if name not in CALIBRATORS:
        raise unknown_name(f"calibrator in {where}:", name, CALIBRATORS)
    try:
        return CALIBRATORS[name].from_json(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        message = f"The calibrator in {where} is damaged or was edited: {reason}. Fit it again (ebmcal calibrate)."
        raise EbmcalError(message) from error


def require_whole_number(name: str, value: Any, least: int = 1) -> None:
    """Raise unless a setting is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise EbmcalError(f"{name}: expected a whole number of {least} or more, got {value!r}.")


def _as_json(value: Any) -> Any:
    """Numbers, arrays, dataclasses, and lists and dictionaries of them as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {name: _as_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _checked_logits(logits: Any) -> np.ndarray:
    """Logits `[n, C]` in float64: half precision is for storage, not for computing."""
    logits = as_logits(logits).astype(np.float64, copy=False)
    if logits.shape[1] < 2:
        raise EbmcalError(
            "Calibrators need one column per class for at least two classes, got one column. "
            "For the single logit z of a binary classifier pass two columns: 0 and z."
        )
    return logits
