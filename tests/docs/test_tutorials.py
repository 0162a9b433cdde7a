"""The code of the pages runs as it stands, and the outputs beside it are of the code that is there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_site"))

outputs = pytest.importorskip("outputs")

PAGES = sorted(
    p.relative_to(outputs.DOCS).as_posix() for p in outputs.DOCS.rglob("*.md") if outputs.cells(p.read_text("utf-8"))
)
#: Those that do not train; the others take a minute or more.
QUICK = {"decide.md"}


def alone(monkeypatch, folder):
    """Neither the network nor what other runs have left."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("EBMCAL_CACHE", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))


def kept(page):
    return json.loads(outputs.kept_file(page).read_text("utf-8"))


def test_there_are_tutorials():
    assert len([page for page in PAGES if page.startswith("tutorials/")]) >= 6


@pytest.mark.parametrize("page", PAGES)
def test_the_outputs_are_of_this_code(page):
    code = [code for _, _, code in outputs.cells((outputs.DOCS / page).read_text("utf-8"))]
    assert [cell["code"] for cell in kept(page)] == code, f"make docs-outputs PAGES={page}"


@pytest.mark.skipif(os.name == "nt", reason="the pages show a POSIX shell")
@pytest.mark.parametrize("page", [pytest.param(p, marks=() if p in QUICK else pytest.mark.slow) for p in PAGES])
def test_the_code_runs(page, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    alone(monkeypatch, tmp_path)
    (tmp_path / "work").mkdir()
    program = f"import outputs, sys, json; json.dump(outputs.run_page({page!r}, sys.argv[1]), open(sys.argv[2], 'w'))"
    command = [sys.executable, "-c", program, str(tmp_path / "work"), str(tmp_path / "ran.json")]
    done = subprocess.run(command, cwd=ROOT / "docs" / "_site", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    ran = json.loads((tmp_path / "ran.json").read_text("utf-8"))
    for before, now in zip(kept(page), ran, strict=True):
        assert bool(before["output"]) == bool(now["output"]), now["code"]
        assert len(before["pictures"]) == len(now["pictures"]), now["code"]


def test_notebooks_are_their_pages():
    import notebooks

    for page in notebooks.PAGES:
        path = (outputs.DOCS / page).with_suffix(".ipynb")
        assert path.read_text("utf-8") == notebooks.notebook(page), f"make docs-outputs PAGES={page}"
        cells = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
        assert ["".join(c["source"]) for c in cells] == [
            code.rstrip() for _, _, code in outputs.cells((outputs.DOCS / page).read_text("utf-8"))
        ]
        assert all(not line.startswith(("!", "%")) for c in cells for line in c["source"])  # plain Python: it executes


#: Runs the cells of a notebook one after the other, as a kernel would: they are plain Python.
EXECUTE = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["judging", "own-data"])
def test_notebooks_execute(name, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    alone(monkeypatch, tmp_path)
    command = [sys.executable, "-c", EXECUTE, str(outputs.DOCS / "tutorials" / f"{name}.ipynb")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_first_tutorial_uses_what_its_advice_says():
    trained, _, used, from_python = kept("tutorials/first.md")
    advised = re.search(r"^Use ([\w-]+)", trained["output"], re.M)[1]
    assert f"checkpoints/{advised}-seed1/model" in used["code"]
    assert f'model("{advised}")' in from_python["code"]


def test_the_second_tutorial_answers_and_abstains():
    *_, refused, judged, used = kept("tutorials/own-data.md")
    assert "rows would do" in refused["output"]
    answered = float(re.search(r"([\d.]+)% answered", judged["output"])[1])
    assert 10 < answered < 90
    assert used["output"].count("I do not know") == 3
    assert used["output"].count("one of:") == 6
