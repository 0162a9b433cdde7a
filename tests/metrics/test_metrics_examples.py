"""The examples in the docstrings of the evaluation half's core run and say what they say."""

import doctest
import importlib
import pkgutil

import pytest

import ebmcal.metrics

MODULES = [f"ebmcal.metrics.{m.name}" for m in pkgutil.iter_modules(ebmcal.metrics.__path__)]
MODULES += [f"ebmcal.{name}" for name in ("checks", "predictions", "prediction_columns", "prediction_files")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
