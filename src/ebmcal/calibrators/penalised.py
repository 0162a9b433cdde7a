"""What vector and matrix scaling share: a mean NLL with a penalty that holds it near temperature, by L-BFGS.

The penalty lets few rows, or a label that never occurs, fall back to temperature scaling instead of running away.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ebmcal.calibrators.base import Calibrator, blocks, require_positive


class Penalised(Calibrator):
    """A calibrator with a `penalty` that learns by `_minimise`, which sets `converged_`."""

    title: ClassVar[str]
    penalty: float
    converged_: bool

    @property
    def note(self) -> str:
        return "" if self.converged_ else "not converged"

    def rows_wanted(self, n_classes: int) -> int:
        return 100 * n_classes

    def _check_settings(self) -> None:
        require_positive("penalty", self.penalty, inspect.signature(type(self)).parameters["penalty"].default)

    def _minimise(self, objective: Callable[..., Any], start: np.ndarray, arguments: Any, **limits: int) -> np.ndarray:
        from scipy.optimize import minimize

        options: Any = {"ftol": 1e-15, "gtol": 1e-8, **limits}
        found = minimize(objective, start, arguments, jac=True, method="L-BFGS-B", options=options)
        self.converged_ = bool(found.success)
        if not self.converged_:
            warnings.warn(f"{self.title} did not converge: {found.message}. Try a larger penalty.", stacklevel=5)
        return np.asarray(found.x)


def nll_and_gradient(
    z: np.ndarray,
    y: np.ndarray,
    scores: Callable[[np.ndarray], np.ndarray],
    by_parameter: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[float, np.ndarray]:
    """NLL of softmax(scores(z)), summed over the columns of `z` `[C, n]`, and its gradient in the parameters.

    `by_parameter` makes of a block of `z` and dNLL/dscores there, both `[C, m]`, the gradient of that block.

    >>> z, y = np.zeros((2, 3)), np.array([0, 0, 1])
    >>> loss, gradient = nll_and_gradient(z, y, lambda z: z, lambda z, error: error.sum(axis=1))
    >>> round(loss, 3), gradient.tolist()
    (2.079, [-0.5, 0.5])
    """
    loss, gradient, start = 0.0, np.zeros(()), 0
    for block in blocks(z):
        columns = np.arange(block.shape[1])
        labels = y[start : start + len(columns)]
        start += len(columns)
        p = scores(block)
        p -= p.max(axis=0)
        aim = p[labels, columns]
        np.exp(p, out=p)
        total = p.sum(axis=0)
        loss += (np.log(total) - aim).sum()
        p /= total
        p[labels, columns] -= 1.0  # dNLL/dscore = p - onehot
        gradient = gradient + by_parameter(block, p)
    return float(loss), gradient
