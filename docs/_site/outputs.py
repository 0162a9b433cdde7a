"""Code in pages that is run: fences marked `run`, in the order of the page, in one folder.

    python docs/_site/outputs.py tutorials/judging.md      # run a page, keep what its code printed (make docs-outputs)

What was printed goes to docs/outputs/ and from there into the site, under the code that printed it; a page whose code
has changed since is an error. `run fails` expects the command to fail and shows what it said, `run quiet` shows
no output, `run hide` not even the code. SVG files that code leaves behind are its pictures.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

DOCS = Path(__file__).parents[1]
FENCE = re.compile(r"^```(sh|python) (run[\w -]*)\n(.*?)^```$", re.M | re.S)
NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def cells(markdown):
    """(language, flags, code) of every fence that is run."""
    return [(m[1], m[2].split()[1:], m[3]) for m in FENCE.finditer(markdown)]


def kept_file(page):
    """Where the outputs of a page lie: `tutorials/first.md` -> docs/outputs/tutorials-first.json."""
    return DOCS / "outputs" / (page.removesuffix(".md").replace("/", "-") + ".json")


def show(markdown, page):
    """The page with the kept output under each fence that is run."""
    wanted = cells(markdown)
    if not wanted:
        return markdown
    kept = json.loads(kept_file(page).read_text("utf-8"))
    if [cell["code"] for cell in kept] != [code for _, _, code in wanted]:
        raise ValueError(f"{page}: its code has changed since it was run; python docs/_site/outputs.py {page}")
    left = iter(kept)

    def under(match):
        cell, shown = next(left), f"```{match[1]}\n{match[3]}```"
        if "hide" in match[2]:
            return ""
        if cell["output"] and "quiet" not in match[2]:
            form = "output" if "─" in cell["output"] else "output wrap"  # tables keep their lines
            shown += f'\n\n<div class="{form}" markdown>\n\n```text\n{cell["output"].rstrip()}\n```\n\n</div>'
        return shown + "".join(f'\n\n<figure class="picture">{svg}</figure>' for svg in cell["pictures"])

    return FENCE.sub(under, markdown)


def run_page(page, folder):
    """Run the code of a page in a folder: what `kept_file` keeps. Code that fails, or fails to fail, is an error."""
    ran, names, before = [], {"__name__": "__main__"}, set()
    with _inside(folder):
        for language, flags, code in cells((DOCS / page).read_text("utf-8")):
            output = _python(code, names) if language == "python" else _shell(code, "fails" in flags)
            left = sorted(set(Path().glob("*.svg")) - before)
            before |= set(left)
            pictures = [path.read_text("utf-8") for path in left]
            ran.append({"code": code, "output": _tidy(output, folder), "pictures": pictures})
    return ran


@contextlib.contextmanager
def _inside(folder):
    there = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(there)


def _python(code, names):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(code, "<page>", "exec"), names)
    except Exception as error:
        raise RuntimeError(f"This code of the page failed:\n{code}\n{traceback.format_exc()}") from error
    return said.getvalue()


def _shell(code, fails):
    place = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PATH": place, "COLUMNS": "130", "NO_COLOR": "1"}
    environment["EBMCAL_REPOSITORY"] = str(DOCS.parent)
    done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, env=environment)
    if fails != bool(done.returncode):
        raise RuntimeError(f"Exit code {done.returncode}:\n{code}\n{done.stdout}\n{done.stderr}")
    return done.stderr if fails else done.stdout


def _tidy(text, folder):
    lines = NOISE.sub("", text).replace(str(folder) + os.sep, "").replace(str(folder), ".").splitlines()
    return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in lines).strip("\n")


def main(pages):
    """Run these pages, or all that have code to run, and keep what they print."""
    import notebooks

    for page in pages or sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if cells(p.read_text("utf-8"))):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder).resolve() / "texts"  # a task without a name is called like its folder
            place.mkdir()
            ran = run_page(page, place)
        kept_file(page).parent.mkdir(exist_ok=True)
        kept_file(page).write_text(json.dumps(ran, indent=1, ensure_ascii=False) + "\n", "utf-8")
        if page in notebooks.PAGES:
            notebooks.write(page)
        print(f"{page}: {len(ran)} pieces of code")


if __name__ == "__main__":
    import outputs  # the module that `notebooks` knows

    outputs.main(sys.argv[1:])
