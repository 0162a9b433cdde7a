"""The examples in the docstrings of the training half run and give what they show."""

import doctest
import importlib

import numpy as np
import pytest
import torch

from test_imports import EVALUATION, MODULES, TOP, family

TRAINING_HALF = [m for m in MODULES if family(m) not in EVALUATION | TOP]
GROUND = ["ebmcal.errors", "ebmcal.tasks", "ebmcal.runfolder"]


@pytest.mark.parametrize("name", [*TRAINING_HALF, *GROUND])
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch, "np": np})
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(name) for name in TRAINING_HALF]
    assert sum(bool(test.examples) for module in modules for test in finder.find(module)) >= 12
