"""Temperature that follows the energy: P(y|x) = softmax(f(x) / T(x)), T(x) = softplus(a + b · Ê(x)).

Ê is the energy in deviations from the mean of the fitting rows. b > 0 says: the less a text is like the data, the less
its confidence is worth, which one T for all texts cannot say. Only predictions with energies can have it.

Minimised by L-BFGS: the NLL of all rows plus penalty/2 · b², starting from b = 0 at the temperature of
`TemperatureScaling`, so that few rows fall back to that. T(x) is never below the lowest of the fitting rows: however
far the energy of a new text lies outside of theirs, it is not trusted more than the most trusted of them.
"""

import warnings
from typing import Any, ClassVar

import numpy as np

from ebmcal.calibrators.base import Calibrator, by_label, require_positive
from ebmcal.calibrators.temperature import MAX_SCALE, least_nll
from ebmcal.predictions.arrays import softmax


class EnergyTemperature(Calibrator):
    """A temperature for each row, by its energy. Predicted labels stay the same.

    Learned: `a_`, `b_`; `mean_` and `deviation_` of the energies; `lowest_`, the least temperature; `converged_`.

    >>> rng = np.random.default_rng(0)
    >>> y, strange = rng.integers(0, 2, 4000), rng.random(4000)
    >>> logits = rng.normal(size=(4000, 2)) + 2 * np.eye(2)[y] * (1 - strange)[:, None]
    >>> calibrator = EnergyTemperature().fit(logits, y, energies=strange)
    >>> calibrator.predict_proba([[0.0, 2.0]] * 2, energies=[0.1, 0.9])[:, 1].round(1).tolist()
    [1.0, 0.7]
    """

    name = "energy-temperature"
    learned = ("a_", "b_", "mean_", "deviation_", "lowest_", "converged_")
    ranges: ClassVar = {"lowest_": (1 / MAX_SCALE, MAX_SCALE), "deviation_": (np.finfo(float).tiny, np.inf)}
    needs_energies = True

    def __init__(self, penalty: float = 1.0):
        self.penalty = penalty

    @property
    def note(self) -> str:
        middle = float(self._temperatures(np.array([self.mean_]))[0])
        return f"T = {middle:.4g} at the mean energy, b = {self.b_:.3g}" + (
            "" if self.converged_ else ", not converged"
        )

    def rows_wanted(self, n_classes: int) -> int:
        return 200

    def _check_settings(self) -> None:
        require_positive("penalty", self.penalty, 1.0)

    def _fit(self, logits: np.ndarray, y: np.ndarray, energies: Any = None) -> None:
        from scipy.optimize import minimize

        start, settled = least_nll(logits, y)
        self.mean_, self.deviation_ = float(energies.mean()), float(energies.std()) or 1.0
        unit = (energies - self.mean_) / self.deviation_  # [n]
        found = minimize(
            _objective, [_inverse_softplus(start), 0.0], (by_label(logits), y, unit, self.penalty), jac=True,
            method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9},
        )  # fmt: skip
        self.a_, self.b_ = (float(value) for value in found.x)
        self.lowest_ = float(_held(softplus(self.a_ + self.b_ * unit)).min())
        self.converged_ = settled
        if not settled:
            warnings.warn(f"The temperature did not settle: {self.note}. Fit on more rows.", stacklevel=4)

    def _predict(self, logits: np.ndarray, energies: Any = None) -> np.ndarray:
        return softmax(by_label(logits).T / self._temperatures(energies)[:, None])

    def _temperatures(self, energies: np.ndarray) -> np.ndarray:
        unit = (energies - self.mean_) / self.deviation_
        return np.maximum(_held(softplus(self.a_ + self.b_ * unit)), self.lowest_)


def softplus(x: Any) -> np.ndarray:
    """log(1 + exp(x)) without overflow.

    >>> softplus(np.array([0.0, 1000.0])).round(3).tolist()
    [0.693, 1000.0]
    """
    return np.logaddexp(0.0, x)


def _inverse_softplus(t: float) -> float:
    return float(t + np.log(-np.expm1(-t)))


def _held(temperatures: np.ndarray) -> np.ndarray:
    return np.clip(temperatures, 1 / MAX_SCALE, MAX_SCALE)


def _objective(
    theta: np.ndarray, z: np.ndarray, y: np.ndarray, unit: np.ndarray, penalty: float
) -> tuple[float, np.ndarray]:
    """Penalised NLL per row and its gradient in (a, b); `z` is `[C, n]`, at most 0."""
    s = theta[0] + theta[1] * unit
    raw, rows = softplus(s), np.arange(len(y))
    t = _held(raw)
    q = z / t  # [C, n]
    e = np.exp(q)
    total = e.sum(axis=0)
    loss = np.log(total) - q[y, rows]
    by_t = ((e / total * q).sum(axis=0) - q[y, rows]) / -t  # dNLL/dT = -(E_p[z/T] - z_y/T) / T
    by_s = np.where(raw == t, by_t / (1.0 + np.exp(-np.clip(s, -700, 700))), 0.0)
    gradient = np.array([by_s.mean(), (by_s * unit).mean() + penalty * theta[1] / len(y)])
    return float(loss.mean() + penalty / 2 * theta[1] ** 2 / len(y)), gradient
