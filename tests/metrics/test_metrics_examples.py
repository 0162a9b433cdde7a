"""The examples in the docstrings of the evaluation half's core run and say what they say."""

import doctest
import importlib
import pkgutil

import pytest

import ebmcal.metrics
import ebmcal.predictions

PACKAGES = (ebmcal.metrics, ebmcal.predictions)
MODULES = [m.name for package in PACKAGES for m in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
