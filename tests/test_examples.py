"""The examples in all docstrings run and give what they show."""

import doctest
import importlib

import pytest

from test_imports import MODULES

WITH_EXAMPLES = [name for name, path in MODULES.items() if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
    assert result.attempted > 0


def test_there_are_examples():
    assert len(WITH_EXAMPLES) > 60
