"""What every calibrator does: `fit(logits, y)`, `predict_proba(logits)`, JSON, and the guard on its fitting rows.

A calibrator gives its `name`, its settings in the constructor, the `learned` attributes that JSON keeps, and two
methods on checked arrays: `_fit(logits [n, C], y [n])` and `_predict(logits [n, C]) -> [n, C]`; one that
`needs_energies` gets them `[n]` as the last argument of both.
Adding one is one class, one entry in `CALIBRATORS`, and the contract tests run over it.

Logits may be shifted by any number per row, so log-probabilities serve as well; `logits_of` makes them.
Inside `calibrators/` arrays are laid out `[C, n]`, one contiguous line per label: with two or three labels a
reduction over labels is then a handful of vector additions, several times faster than over rows of three.
"""

import inspect
import warnings
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ebmcal.calibrators.fitting_rows import FittingRows, warn_if_fitted_on
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import as_labels, as_logits, as_probs, as_scores
from ebmcal.storage.atomic import write_json

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = 1
# Below this a probability read from a file is taken to be rounded to zero; its logarithm has to stay finite.
PROB_FLOOR = 1e-12
# A label this far behind has probability 0 at every temperature; a larger gap would only lose digits of the others.
MAX_GAP = 1e6


class FewRows(UserWarning):
    """A calibrator was fitted on fewer rows than it needs.

    For example:

        warnings.simplefilter("ignore", FewRows)
    """


class Calibrator:
    """Common part of all calibrators; see the module's first lines.

    Learned by all: `n_classes_`, `classes_` (0..C-1), `n_rows_`, `label_names_` (None unless fitted on `Predictions`)
    and `fitted_on_`, hashes of the fitting rows.

        calibrator = TemperatureScaling().fit(logits, y)  # [n, C], [n]
        calibrator.predict_proba(others)  # [m, C] -> [m, C]
    """

    name: ClassVar[str]
    learned: ClassVar[tuple[str, ...]]
    ranges: ClassVar[dict[str, tuple[float, float]]] = {}  # of what is learned: beyond, a file is damaged
    needs_energies: ClassVar[bool] = False

    def fit(self, logits: Any, y: Any, energies: Any = None) -> "Self":
        """Learn from logits `[n, C]` (any float type) and labels `[n]` in 0..C-1; returns itself.

        `energies` `[n]` are for those that need them; the others leave them alone.
        """
        return self._fit_rows(logits, y, energies, ids=None, label_names=None)

    def predict_proba(self, logits: Any, energies: Any = None) -> np.ndarray:
        """Calibrated probabilities `[n, C]`, float64; rows sum to one."""
        self._require_fitted()
        logits = _checked_logits(logits)
        if logits.shape[1] != self.n_classes_:
            raise EbmcalError(
                f"This {self.name} calibrator was fitted on {self.n_classes_} classes, but the logits have "
                f"{logits.shape[1]} columns. Give the columns it was fitted on, in the same order, or fit another one."
            )
        return self._predict(logits, *self._energies(energies, len(logits)))

    def fit_predictions(self, predictions: Predictions) -> "Self":
        """Learn from the labelled rows of `Predictions`; also remembers their ids and the label names."""
        rows = predictions.labelled()
        return self._fit_rows(
            logits_in(rows), rows.labels, rows.energies, ids=rows.ids, label_names=list(rows.label_names)
        )

    def apply(self, predictions: Predictions) -> Predictions:
        """The same rows with calibrated probabilities; `meta["calibrator"]` says by what.

        Warns with `FittedOnJudgedRows` when labelled rows among them were used in the fit.
        """
        self._require_fitted()
        self._require_labels(predictions.label_names)
        logits = logits_in(predictions)
        known = predictions.labels >= 0
        if known.any():
            warn_if_fitted_on(self.fitted_on_, logits[known], predictions.ids[known])
        return predictions.with_probs(self.predict_proba(logits, predictions.energies), calibrator=self.description)

    @property
    def description(self) -> dict[str, Any]:
        """What goes into `meta["calibrator"]`: name, settings, number of fitting rows and a note."""
        return {"name": self.name, "settings": self._settings(), "n_rows": self.n_rows_, "note": self.note}

    @property
    def note(self) -> str:
        """What was learned, in a few words, where a few words can say it."""
        return ""

    def rows_wanted(self, n_classes: int) -> int:
        """The least number of fitting rows at which this calibrator can be expected to help."""
        raise NotImplementedError

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's settings, as scikit-learn's `clone` and grid searches expect them."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> "Self":
        """Change settings; fit again for them to matter."""
        for name, value in params.items():
            if name not in self.get_params():
                raise unknown_name(f"setting of {type(self).__name__}", name, self.get_params())
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of an estimator; nobody else calls this, so that it stays an optional package."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({settings})"

    def to_json(self) -> dict[str, Any]:
        """Everything needed to predict again, to the bit, as JSON values."""
        self._require_fitted()
        return {
            "calibrator": self.name,
            "format": FORMAT,
            "settings": self._settings(),
            "n_classes": self.n_classes_,
            "label_names": self.label_names_,
            "learned": {name: self._learned_to_json(name) for name in self.learned},
            "fitted_on": self.fitted_on_.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Self":
        """The calibrator that `to_json` wrote down; a ValueError where a value cannot have been learned."""
        self = cls(**value["settings"])
        self._check_settings()
        self._remember(value["n_classes"], value["label_names"], FittingRows.from_json(value["fitted_on"]))
        for name in cls.learned:
            _require_learnable(name, value["learned"][name], cls.ranges.get(name))
            setattr(self, name, cls._learned_from_json(name, value["learned"][name]))
        self._try_out()
        return self

    def save(self, path: str | Path) -> None:
        """Write as JSON with a checksum; `load_calibrator` reads it back."""
        write_json(path, self.to_json(), checked=True)

    def _settings(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in self.get_params().items()}

    def _check_settings(self) -> None:
        """Raise for settings that make no sense; the constructor only stores them."""

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        raise NotImplementedError

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _learned_to_json(self, name: str) -> Any:
        return plain(getattr(self, name))

    @classmethod
    def _learned_from_json(cls, name: str, value: Any) -> Any:
        return np.asarray(value, dtype=np.float64) if isinstance(value, list) else value

    def _fit_rows(self, logits: Any, y: Any, energies: Any, ids: Any, label_names: list[str] | None) -> "Self":
        logits = _checked_logits(logits)
        self._check_settings()
        y = as_labels(y, n_classes=logits.shape[1], n_rows=len(logits))
        wanted = self._energies(energies, len(y))
        if len(y) < self.rows_wanted(logits.shape[1]):
            warnings.warn(advice(self, len(y), logits.shape[1]), FewRows, stacklevel=3)
        self._fit(logits, y, *wanted)
        self._remember(logits.shape[1], label_names, FittingRows.of(logits, ids))
        return self

    def _remember(self, n_classes: int, label_names: list[str] | None, fitted_on: FittingRows) -> None:
        self.n_classes_, self.classes_ = n_classes, np.arange(n_classes)
        self.n_features_in_ = n_classes  # as scikit-learn calls the columns
        self.label_names_, self.fitted_on_, self.n_rows_ = label_names, fitted_on, fitted_on.n_rows

    def _energies(self, energies: Any, n_rows: int) -> tuple[np.ndarray, ...]:
        """The energies `[n]`, checked, for `_fit` and `_predict` of those that need them."""
        if not self.needs_energies:
            return ()
        if energies is None:
            raise EbmcalError(
                f"{self.name} needs an energy for each row, and these predictions have none. Take a model of ebmcal, "
                "give the column energy, or use temperature."
            )
        return (as_scores(energies, "energies", n_rows),)

    def _try_out(self) -> None:
        """Raise unless what was read from a file fits together and gives probabilities."""
        n, names = self.n_classes_, self.label_names_
        require_whole_number("n_classes", n, least=2)
        require_whole_number("n_rows", self.n_rows_)
        if names is not None and (not isinstance(names, list) or len(names) != n):
            raise ValueError(f"label_names are not {n} names")
        as_probs(probs=self.predict_proba(np.vstack([np.zeros(n), 9 * np.eye(n)[:2]]), np.zeros(3)))

    def _require_fitted(self) -> None:
        if not hasattr(self, "n_classes_"):
            raise EbmcalError(f"This {type(self).__name__} is not fitted yet. Call fit(logits, y) first.")

    def _require_labels(self, label_names: Any) -> None:
        if self.label_names_ is not None and list(label_names) != self.label_names_:
            raise EbmcalError(
                f"The {self.name} calibrator was fitted for the labels {self.label_names_}, but these rows have "
                f"{list(label_names)}. Fit one on rows with the same labels in the same order."
            )


def advice(calibrator: Calibrator, n_rows: int, n_classes: int) -> str:
    """Whether so many fitting rows are enough, in a sentence.

    >>> from ebmcal.calibrators import make_calibrator
    >>> advice(make_calibrator("temperature"), n_rows=500, n_classes=2)
    '500 rows are enough for temperature with 2 classes (at least 100).'
    """
    wanted = calibrator.rows_wanted(n_classes)
    if n_rows >= wanted:
        return f"{n_rows} rows are enough for {calibrator.name} with {n_classes} classes (at least {wanted})."
    hint = "" if calibrator.name == "temperature" else ", or use temperature scaling, which needs the fewest"
    return (
        f"{n_rows} rows are few for {calibrator.name} with {n_classes} classes: at least {wanted} are wanted, "
        f"and what is learned from fewer may make the probabilities worse. Fit on more rows{hint}."
    )


def require_positive(name: str, value: Any, default: float) -> None:
    """Refuse a setting that is not a finite number above 0."""
    if not (isinstance(value, Real) and 0 < float(value) < np.inf):
        raise EbmcalError(f"{name} must be a number above 0; {value!r} came. {default} is the default.")


def require_whole_number(name: str, value: Any, least: int = 1) -> None:
    """Refuse a setting that is not a whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise EbmcalError(f"{name} must be a whole number, {least} or more; {value!r} came.")


def plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's, for JSON."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _require_learnable(name: str, value: Any, allowed: tuple[float, float] | None) -> None:
    """Refuse what no fit could have learned: anything but finite numbers, and numbers beyond their range."""
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _require_learnable(name, part, allowed)
    elif isinstance(value, str) or value is None or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}")
    elif allowed is not None and (isinstance(value, bool) or not allowed[0] <= value <= allowed[1]):
        raise ValueError(f"{name} is {value!r}; a fit stays within {allowed[0]:g} and {allowed[1]:g}")


def _checked_logits(logits: Any) -> np.ndarray:
    """Logits `[n, C]` in float64, whatever they came in: half precision is for storing, not for computing."""
    logits = as_logits(logits).astype(np.float64, copy=False)
    if logits.shape[1] < 2:
        raise EbmcalError(
            "Calibrators need a column for each of at least two classes; one column came. "
            "For the single logit z of a binary classifier give two columns: 0 and z."
        )
    return logits


def logits_in(predictions: Predictions) -> np.ndarray:
    """The logits `[n, C]` of `Predictions`, or its log-probabilities where it has probabilities only."""
    return logits_of(predictions.probs) if predictions.logits is None else predictions.logits


def logits_of(probs: np.ndarray, floor: float = PROB_FLOOR) -> np.ndarray:
    """Log-probabilities `[n, C]`, which serve as logits: softmax gives the probabilities back.

    >>> logits_of(np.array([[1.0, 0.0]])).round(2).tolist()
    [[0.0, -27.63]]
    """
    return np.log(np.maximum(np.asarray(probs, dtype=np.float64), floor))


def by_label(logits: np.ndarray) -> np.ndarray:
    """`[n, C]` logits as contiguous `[C, n]`, each row shifted so that its largest is 0.

    >>> by_label(np.array([[3.0, 1.0], [0.0, 5.0]])).tolist()
    [[0.0, -5.0], [-2.0, 0.0]]
    """
    z = np.array(logits.T, dtype=np.float64, order="C")
    with np.errstate(over="ignore"):  # 1e308 - -1e308: the limit below makes it finite again
        z -= z.max(axis=0)
    return np.maximum(z, -MAX_GAP, out=z)


def rows_of(scores: np.ndarray) -> np.ndarray:
    """Non-negative scores `[C, n]` as rows `[n, C]` that sum to one; a row of zeros becomes uniform."""
    total = scores.sum(axis=0)
    if not total.all():
        scores = np.where(total == 0, 1.0, scores)
        total = scores.sum(axis=0)
    return np.ascontiguousarray((scores / total).T)


def log_odds(logits: np.ndarray) -> np.ndarray:
    """One-vs-rest log-odds log p/(1-p) of each label, `[C, n]`, finite however saturated the row is.

    >>> log_odds(np.array([[2.0, 0.0], [-900.0, 900.0]])).tolist()
    [[2.0, -1800.0], [-2.0, 1800.0]]
    """
    z = by_label(logits)
    if len(z) == 2:
        return np.stack([z[0] - z[1], z[1] - z[0]])
    for block in blocks(z):
        block -= _log_sum_of_others(block)
    return z


def blocks(z: np.ndarray, n_values: int = 1 << 14) -> Iterator[np.ndarray]:
    """Views of `[C, n]` of some columns each, small enough for their temporaries to stay in the processor's cache."""
    width = max(1, n_values // len(z))
    for start in range(0, z.shape[1], width):
        yield z[:, start : start + width]


def _log_sum_of_others(z: np.ndarray) -> np.ndarray:
    """For each label the log of the sum of exp(z) over the other labels, `[C, n]`; each column's largest z is 0.

    By hand: all labels at once from one exponential each, for "scaling-binning fit" in benchmarks/calibrators.json.
    """
    is_below = z < 0
    e = np.exp(z) * is_below
    below, n_top = e.sum(axis=0), len(z) - is_below.sum(axis=0)
    # Nothing cancels: where a label is not the largest, the sum over the others contains exp(0) = 1.
    rest = np.where(is_below, (below + n_top) - e, below + (n_top - 1))
    lost = np.flatnonzero((rest < 1e-290).any(axis=0))
    rest[:, lost] = 1.0
    log_rest = np.log(rest, out=rest)
    if lost.size:
        log_rest[:, lost] = np.where(is_below[:, lost], 0.0, _log_sum_from_second(z[:, lost]))
    return log_rest


def _log_sum_from_second(z: np.ndarray) -> np.ndarray:
    """log of the sum over all but the single largest label, where even exp of the second largest underflows."""
    from scipy.special import logsumexp

    return logsumexp(np.where(z == 0, -np.inf, z), axis=0)
