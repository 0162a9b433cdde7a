"""The scripts in examples/ run offline, say something, and stay short."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

#: Script -> what it prints.
SCRIPTS = {
    "abstention.py": "% answered: ",
    "judge_probabilities.py": "with a temperature: ece_top_label",
    "own_data.py": "hidden + temperature (dev)",
    "scikit_learn.py": "calibrated by scikit-learn: log-loss",
}

#: Those that finetune MiniLM, for half a minute or so.
TRAIN = {"abstention.py", "own_data.py", "scikit_learn.py"}


def test_every_script_is_run():
    elsewhere = {"own_trainer.py", "onnx_alone.py"}  # by tests/training, tests/sharing
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SCRIPTS) | elsewhere


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_is_short_and_says_what_it_shows(name):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in TRAIN else ()) for n in SCRIPTS])
def test_it_runs_and_leaves_nothing(name, tmp_path):
    pytest.importorskip("torch")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("EBMCAL_CACHE", None)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SCRIPTS[name] in done.stdout
    assert not list((tmp_path / "tmp").glob("ebmcal-*"))  # torch keeps a folder of its own there
    assert not {path.name for path in tmp_path.iterdir()} - {"tmp", "matplotlib"}
