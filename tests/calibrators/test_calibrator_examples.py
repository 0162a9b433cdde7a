"""The examples in the docstrings run and are right."""

import doctest
import importlib
import pkgutil

import pytest

import ebmcal.calibrators

MODULES = [m.name for m in pkgutil.iter_modules(ebmcal.calibrators.__path__, "ebmcal.calibrators.")]


@pytest.mark.parametrize("name", [*MODULES, "ebmcal.evaluation"])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
