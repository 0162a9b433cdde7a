"""Robustness of a classifier to perturbed texts: random tokens, typos, case, word order, truncation, negation.

    ebmcal.test_robustness("model", "test.csv", baseline="other").report("robustness.html")

`perturbations` change texts, `suite` reads tests that are data (YAML), `scoring` evaluates models on both, `runner`
puts it together and `page` shows the result.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebmcal.robustness.perturbations import PERTURBATIONS
    from ebmcal.robustness.runner import Robustness, test_robustness
    from ebmcal.robustness.suite import builtin_suites, read_suite

_HOME = {
    "PERTURBATIONS": "perturbations",
    "Robustness": "runner",
    "builtin_suites": "suite",
    "read_suite": "suite",
    "test_robustness": "runner",
}

__all__ = ["PERTURBATIONS", "Robustness", "builtin_suites", "read_suite", "test_robustness"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
