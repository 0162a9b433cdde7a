"""Imports point one way, without cycles; the evaluation half needs neither torch nor the training half."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ebmcal

ROOT = Path(ebmcal.__file__).parent
TRAINING_LIBRARIES = {"torch", "transformers", "accelerate", "datasets", "safetensors", "tokenizers", "ray", "fastapi"}

#: The layers, lowest first. A module imports from its own layer (its own package only) or from lower layers.
LAYERS = [
    {"errors"},
    {"storage", "cluster"},
    {"progress", "run_dir"},
    {"predictions"},
    {"metrics"},
    {"calibration"},
    {"selective"},
    {"methods", "data", "noise", "modeling", "training", "config", "evaluation", "advice", "reports", "monitoring"},
    {"model", "pipeline"},
    {"bulk_prediction", "runs", "serving", "robustness", "export", "benchmark", "sklearn"},
    {"cli", "__main__"},
]
EVALUATION_HALF = [
    "errors", "storage", "progress", "run_dir", "predictions", "metrics", "calibration", "selective", "evaluation",
    "advice", "reports", "monitoring", "config", "data.tasks", "noise", "training.recipe", "methods",
]  # fmt: skip


def module_name(path):
    parts = ["ebmcal", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(name, *, at_import_time):
    """Modules of ebmcal that a module imports; only those that run when it is imported, if asked for."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        is_lazy = at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if is_typing or is_lazy:
            skipped |= {id(child) for child in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports hide their target"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def layer(module):
    part = module.split(".")[1]
    return next(i for i, names in enumerate(LAYERS) if part in names)


def test_every_module_has_a_layer():
    for name in MODULES:
        if name != "ebmcal":
            layer(name)


@pytest.mark.parametrize("name", [m for m in MODULES if m != "ebmcal"])
def test_modules_import_from_lower_layers_only(name):
    for target in imports(name, at_import_time=True):
        if target.startswith("ebmcal.") and target.split(".")[1] != name.split(".")[1]:
            base = ".".join(target.split(".")[:2])
            if base in MODULES or any(m.startswith(base + ".") for m in MODULES):
                assert layer(target) <= layer(name), f"{name} imports {target}"


def test_there_are_no_import_cycles():
    graph = {}
    for name in MODULES:
        targets = imports(name, at_import_time=True)
        graph[name] = {t for t in targets if t in MODULES and t != name and t != "ebmcal"}
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            path.append(name)
            for target in sorted(graph[name]):
                if not name.startswith(target + "."):  # a package may import its own modules
                    visit(target)
            path.pop()
            done.add(name)

    for name in MODULES:
        visit(name)


def test_the_evaluation_half_works_without_the_training_libraries():
    script = f"""
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {TRAINING_LIBRARIES!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
for name in {EVALUATION_HALF!r}:
    importlib.import_module("ebmcal." + name)
import numpy as np
import ebmcal
logits = np.random.default_rng(0).normal(size=(80, 2))
p = ebmcal.Predictions(labels=[0, 1, 1, 0] * 20, label_names=("no", "yes"), logits=logits)
print(ebmcal.evaluate(p).table())
ebmcal.TemperatureScaling().fit_predictions(p).apply(p)
"""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


METRICS = """
import numpy as np
from types import SimpleNamespace
from ebmcal import metrics
metrics.compute_metrics(SimpleNamespace(predictions=np.zeros((300, 2)), label_ids=np.zeros(300, int)))
metrics.bootstrap("aurc", np.zeros(300, int), logits=np.zeros((300, 2)), n_resamples=5)
"""
PLOTS = """
from ebmcal import Predictions
from ebmcal.reports import plots
p = Predictions([0, 1], ("a", "b"), logits=[[1, 0], [0, 2.]], energies=[0, 1])
plots.to_svg(plots.reliability_diagram(p).figure, "k")
plots.entropy_against_energy(p)
"""
OVERVIEW = """
import contextlib
from ebmcal.cli import main
with contextlib.suppress(SystemExit):
    main(["--help"])
"""


@pytest.mark.parametrize(
    ("script", "heavy"),
    [
        ("import ebmcal.cli", ("torch", "pandas", "numpy", "sklearn")),
        (OVERVIEW, ("rich", "pydantic", "numpy", "pandas", "torch")),
        ("import ebmcal.data, ebmcal.cli.run", (*TRAINING_LIBRARIES, "pandas", "pyarrow", "sklearn")),
        ("import ebmcal.noise as n; n.parse_noise('splice'); n.NoiseConfig()", ("torch",)),
        ("import ebmcal, os; assert os.environ['ONEDNN_PRIMITIVE_CACHE_CAPACITY'] == '8'", ("torch",)),
        (METRICS, ("torch", "transformers", "datasets", "pandas", "sklearn", "matplotlib")),
        (PLOTS, ("matplotlib.pyplot", "torch", "transformers", "datasets")),
    ],
    ids=["package", "overview", "data", "noise", "threads", "metrics", "plots"],
)
def test_nothing_heavy_is_imported(script, heavy):
    script += f"\nimport sys; print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"
