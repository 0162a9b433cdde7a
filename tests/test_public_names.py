"""What `import ebmcal` shows: one list of names, loaded when they are asked for, known to editors and type checkers."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import ebmcal
from ebmcal.config import RunConfig

NAMES = sorted(set(ebmcal.__all__) - {"__version__"})


def test_dir_shows_the_list_and_nothing_else():
    importlib.import_module("ebmcal.metrics")
    assert dir(ebmcal) == sorted(ebmcal.__all__)
    assert len(ebmcal.__all__) == len(set(ebmcal.__all__))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists_and_says_what_it_is(name):
    assert inspect.getdoc(getattr(ebmcal, name))


def names_in(module):
    """The functions and classes that a package offers, with where they are."""
    package = importlib.import_module(f"ebmcal.{module}")
    return [
        (f"{module}.{name}", getattr(package, name)) for name in package.__all__ if callable(getattr(package, name))
    ]


OFFERED = [(name, None) for name in NAMES]
OFFERED += [
    entry for module in ("metrics", "calibrators", "predictions", "decisions", "plots") for entry in names_in(module)
]


@pytest.mark.parametrize(("name", "thing"), OFFERED, ids=[name for name, _ in OFFERED])
def test_every_name_has_an_example(name, thing):
    """One that runs (`>>>`), or of what needs a model or a file, indented code."""
    text = inspect.getdoc(thing or getattr(ebmcal, name)) or ""
    blocks = re.findall(r"(?:^    .*(?:\n|$))+", text, re.M)
    assert ">>> " in text or any(ast.parse(textwrap.dedent(block)).body for block in blocks), text


@pytest.mark.parametrize(("name", "thing"), [entry for entry in names_in("metrics") if inspect.isfunction(entry[1])])
def test_functions_of_arrays_say_their_shapes(name, thing):
    arrays = {"labels", "logits", "probs", "scores", "energies"} & set(inspect.signature(thing).parameters)
    assert not arrays or "[n" in inspect.getdoc(thing)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ebmcal.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == ebmcal._HOMES
    assert (Path(ebmcal.__file__).parent / "py.typed").exists()


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="lode"):
        _ = ebmcal.lode


def test_the_settings_of_a_run_are_in_its_signature():
    for function in (ebmcal.run, ebmcal.train):
        parameters = inspect.signature(function).parameters
        assert set(parameters) == {"config", "progress", "shared_cache", *RunConfig.model_fields}
        assert parameters["max_length"].default == 128
