"""The public names: importable, documented, the same for type checkers and at run time."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import ebmcal


@pytest.mark.parametrize("name", [n for n in ebmcal.__all__ if n != "__version__"])
def test_public_names_exist_and_are_documented(name):
    value = getattr(ebmcal, name)
    assert value.__doc__
    assert name in dir(ebmcal)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ebmcal.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == set(ebmcal.__all__) - {"__version__"}


def test_run_has_an_explicit_signature_that_matches_its_config():
    parameters = inspect.signature(ebmcal.run).parameters
    assert all(p.kind is not p.VAR_KEYWORD for p in parameters.values())
    own = {"config", "settings", "progress"}
    assert set(parameters) - own <= set(ebmcal.RunConfig.model_fields)
    documented = set(re.findall(r"^        (\w+):", ebmcal.run.__doc__, re.MULTILINE))
    assert documented == set(parameters)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        _ = ebmcal.evalute


def test_run_stays_a_function_after_its_module_was_imported():
    import ebmcal.runs

    assert callable(ebmcal.run)
    assert ebmcal.run is ebmcal.runs.run
