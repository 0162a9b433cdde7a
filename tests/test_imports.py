"""Which way imports point: downwards, without cycles, and never from the evaluation half to torch or to training."""

import ast
import functools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ebmcal

ROOT = Path(ebmcal.__file__).parent
HEAVY = {
    "torch", "transformers", "accelerate", "datasets", "safetensors", "tokenizers", "ray", "pandas", "sklearn",
    "fastapi", "starlette", "uvicorn", "prometheus_client",
}  # fmt: skip

#: The evaluation half and the ground that both halves stand on: packages with all their modules.
EVALUATION = {
    "storage", "predictions", "metrics", "calibrators", "runfolder", "plots", "tables", "report", "judging",
    "evaluation", "tasks", "data", "errors", "progress", "config", "recipe", "advice", "mixing", "decisions",
    "ensembles", "multilabel",
    "watching",
    "histograms",
    "noise_setting",
}  # fmt: skip
#: What stands above both halves.
TOP = {"cli", "benchmark", "__main__", ""}


def name_of(path):
    parts = ["ebmcal", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def family(module):
    """The name below ebmcal: `data` for `ebmcal.data.parts`."""
    return [*module.split("."), ""][1]


def imported_names(path):
    """(name, whether it is imported when the module is) of every import in a file; `if TYPE_CHECKING` is never run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = set()
    for node in ast.walk(tree):
        skipped = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if skipped or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            lazy |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        at_once = id(node) not in lazy
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they point"
            yield from ((f"{node.module}.{alias.name}", at_once) for alias in node.names)


@functools.cache
def imports_of(module, lazily=True):
    """Modules of ebmcal that a module imports, at its top or (lazily) anywhere."""
    found = set()
    for name, at_once in imported_names(MODULES[module]):
        while name and name not in MODULES:
            name = name.rpartition(".")[0]  # a name in a module: the module
        if name and (lazily or at_once):
            found.add(name)
    return found - {"ebmcal", module}


def find_cycle(start):
    """A path of imports from a module back to itself, or None."""
    paths, seen = [[start]], set()
    while paths:
        path = paths.pop()
        for following in imports_of(path[-1]):
            if following == start:
                return [*path, start]
            if following not in seen:
                seen.add(following)
                paths.append([*path, following])
    return None


@pytest.mark.parametrize("module", MODULES)
def test_no_cycles(module):
    cycle = find_cycle(module)
    assert cycle is None, " -> ".join(cycle)


@pytest.mark.parametrize("module", [m for m in MODULES if family(m) in EVALUATION])
def test_the_evaluation_half_stands_alone(module):
    heavy = {n for n, at_once in imported_names(MODULES[module]) if at_once and n.split(".")[0] in HEAVY}
    assert not heavy
    others = {m for m in imports_of(module) if family(m) not in EVALUATION}
    assert not others


@pytest.mark.parametrize("module", [m for m in MODULES if family(m) not in TOP])
def test_nothing_below_imports_the_top(module):
    assert not {m for m in imports_of(module) if family(m) in TOP}


@pytest.mark.parametrize("module", [m for m in MODULES if family(m) in {"cli", ""}])
def test_the_command_line_imports_nothing_heavy_at_once(module):
    """`--help` answers at once: of ebmcal, commands import at their top what is light itself."""
    reached, waiting = set(), [module]
    while waiting:
        current = waiting.pop()
        heavy = {n for n, at_once in imported_names(MODULES[current]) if at_once and n.split(".")[0] in HEAVY}
        assert not heavy, current
        new = imports_of(current, lazily=False) - reached
        reached |= new
        waiting += new


def test_every_name_of_the_evaluation_half_exists():
    assert {family(m) for m in MODULES} >= EVALUATION


def test_there_is_no_utils_module():
    assert not {m for m in MODULES if m.rpartition(".")[2] in {"utils", "helpers", "common", "misc"}}


WITHOUT_TORCH = """
    import importlib, sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {heavy!r}:
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Blocker())
    for name in {modules!r}:
        importlib.import_module(name)
    import ebmcal
    assert ebmcal.summarize and ebmcal.Predictions and ebmcal.evaluate and ebmcal.write_report
    print(len([name for name in sys.modules if name.startswith("ebmcal")]))
"""


def test_the_evaluation_half_imports_where_there_is_no_torch():
    modules = [m for m in MODULES if family(m) in EVALUATION]
    script = textwrap.dedent(WITHOUT_TORCH).format(heavy=HEAVY, modules=modules)
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(modules)
