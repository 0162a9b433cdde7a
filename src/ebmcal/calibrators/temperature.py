"""Temperature scaling (Guo et al. 2017): one T > 0, P(y|x) = softmax(f(x) / T).

By NLL: the mean NLL is convex in b = 1/T, with derivative E_p[z] - z_y and second derivative Var_p[z] under
p = softmax(b z), so Newton's method inside a bracket finds b in a few passes.
By ECE grid: as in the authors' scripts, the T of 13 with the least top-label ECE in 20 equal-width bins.
"""

import warnings
from typing import ClassVar

import numpy as np

from ebmcal.calibrators.base import Calibrator, blocks, by_label
from ebmcal.errors import unknown_name
from ebmcal.metrics import ece_top_label
from ebmcal.predictions.arrays import softmax

# T from 1/100 to 100: beyond, softmax is a step or flat and the fit says nothing but "the rows are separable"
# or "worse than chance".
MAX_SCALE = 100.0
SAMPLE_ROWS = 8192
MAX_STEPS = 60
# The scripts name 13 temperatures but not which; ours are even in log T around 1, a factor 2^(1/2) apart.
ECE_GRID = tuple(2.0 ** (k / 2) for k in range(-6, 7))
ECE_BINS = 20
METHODS = ("nll", "ece-grid")


class TemperatureScaling(Calibrator):
    """Divide all logits by one learned temperature. Predicted labels stay the same.

    Learned: `temperature_`; `converged_`, False when T stopped at a bound (1/100 or 100) or ran out of steps.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 5000)
    >>> logits = rng.normal(size=(5000, 3)) + 2 * np.eye(3)[y]
    >>> calibrator = TemperatureScaling().fit(3 * logits, y)
    >>> round(calibrator.temperature_, 1), calibrator.converged_
    (1.5, True)
    """

    name = "temperature"
    learned = ("temperature_", "converged_")
    ranges: ClassVar = {"temperature_": (1 / MAX_SCALE, MAX_SCALE)}

    def __init__(self, method: str = "nll"):
        self.method = method

    @property
    def note(self) -> str:
        return f"T = {self.temperature_:.4g}" + ("" if self.converged_ else ", not converged")

    def rows_wanted(self, n_classes: int) -> int:
        return 100

    def _check_settings(self) -> None:
        if self.method not in METHODS:
            raise unknown_name("method of temperature scaling", str(self.method), METHODS)

    def _fit(self, logits: np.ndarray, y: np.ndarray) -> None:
        if self.method == "ece-grid":
            self.temperature_, self.converged_ = _least_ece(logits, y), True
            return
        self.temperature_, self.converged_ = least_nll(logits, y)
        if not self.converged_:
            warnings.warn(_why_at_bound(self.temperature_), stacklevel=4)

    def _predict(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits / self.temperature_)


def _why_at_bound(temperature: float) -> str:
    reason = (
        "the fitting rows are (almost) all predicted right, so more confidence always pays"
        if temperature < 1
        else "the logits say nothing about these labels, so less confidence always pays"
    )
    return (
        f"The temperature did not settle: T = {temperature:.4g}, because {reason}. "
        "Fit on more rows, on rows the model was not trained on, and check the order of the labels."
    )


def least_nll(logits: np.ndarray, y: np.ndarray) -> tuple[float, bool]:
    """T minimising the mean NLL, and whether it lies inside the bounds."""
    z = by_label(logits)
    aim = z[y, np.arange(len(y))]
    if not z.any():
        return 1.0, True  # every row is flat: all T are equally good
    if not aim.any():
        return 1.0 / MAX_SCALE, False  # every row is predicted right: the colder, the better
    b = 1.0
    # A sample first: its passes are nearly free and leave two or three over all rows.
    stride = len(y) // SAMPLE_ROWS
    if stride > 1 and aim[::stride].any():
        b, _ = _solve(np.ascontiguousarray(z[:, ::stride]), aim[::stride].mean(), b, 1e-4)
    b, settled = _solve(z, aim.mean(), b, 1e-6)
    return float(1.0 / b), settled


def _solve(z: np.ndarray, aim: float, b: float, tolerance: float) -> tuple[float, bool]:
    """The root b of the increasing E_p[z] - aim: Newton, or the middle of the bracket where Newton leaves it."""
    low, high = 1.0 / MAX_SCALE, MAX_SCALE
    for _ in range(MAX_STEPS):
        mean, variance = _moments(z, b)
        if (b >= MAX_SCALE and mean <= aim) or (b <= 1.0 / MAX_SCALE and mean >= aim):
            return b, False
        low, high = (low, b) if mean > aim else (b, high)
        new = _next_point(b, mean, variance, aim, low, high)
        if abs(new - b) <= tolerance * b:
            return new, True
        b = new
    return b, False


def _next_point(b: float, mean: float, variance: float, aim: float, low: float, high: float) -> float:
    """Newton's step on log(mean / aim): where rows are nearly separable the mean decays as exp(-b·gap)."""
    if variance > 0 and mean < 0:
        new = b - mean / variance * np.log(mean / aim)
        if low < new < high:
            return new
        # A bound itself is tried before anything near it.
        if new >= high == MAX_SCALE or new <= low == 1.0 / MAX_SCALE:
            return min(max(new, low), high)
    return float(np.sqrt(low * high))


def _moments(z: np.ndarray, b: float) -> tuple[float, float]:
    """Mean over rows of E_p[z] and of Var_p[z] under p = softmax(b z) over labels; `z` is `[C, n]`, at most 0.

    By hand: softmax and both moments in one pass, for "temperature fit" in benchmarks/calibrators.json.
    """
    mean = variance = 0.0
    for block in blocks(z):
        e = np.exp(b * block)
        total = e.sum(axis=0)
        e *= block
        first = e.sum(axis=0) / total
        e *= block
        mean += first.sum()
        variance += (e.sum(axis=0) / total - first * first).sum()
    return mean / z.shape[1], variance / z.shape[1]


def _least_ece(logits: np.ndarray, y: np.ndarray) -> float:
    """The first T of the grid with the least top-label ECE."""
    errors = [ece_top_label(y, logits=logits / t, n_bins=ECE_BINS) for t in ECE_GRID]
    return ECE_GRID[int(np.argmin(errors))]
