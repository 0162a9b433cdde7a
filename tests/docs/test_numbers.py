"""Figures in pages come from files of results, through templates: a figure that somebody typed is an error."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: What is not typed prose: code that is run, templates, tables that a command fills, code in the line, links, formulas.
NOT_TYPED = (
    r"^```(?:sh|python|json|yaml|diff|toml)\b.*?^```",
    r"\{[{%].*?[%}]\}",
    r"<!-- table: \w+ -->.*?<!-- end -->",
    r"`[^`\n]*`",
    r"\]\([^)]*\)",
    r"\\\(.*?\\\)",
    r"^\\\[.*?\\\]$",
)
#: A figure with two decimals or more, or a percentage with one.
FIGURE = re.compile(r"(?<![\w.,/])(?:\d*\.\d{2,}|\d+\.\d+%)")
#: Pages that a program writes whole, from its file of results; a test below, or its own, compares the two.
WRITTEN = {"docs/coverage.md"}
#: What is a definition, a goal or an assumption, not a result.
DEFINED = {
    "README.md": {"3.10"},  # Python
    "docs/speed.md": {"0.40", "0.60", "0.65", "0.90"},  # goals
    "docs/intervals.md": {"0.05", "1.000"},  # a level, an interval without width
    "docs/stress.md": {".05", ".25", ".75"},  # strengths
    "docs/scale.md": {"1.12", "1.22", "3.42"},  # products that stand in the line
}


def typed_figures(text):
    """The figures of a page that no template filled."""
    for pattern in NOT_TYPED:
        text = re.sub(pattern, " ", text, flags=re.M | re.S)
    return FIGURE.findall(text)


TYPED = [page for page in PAGES if page.relative_to(ROOT).as_posix() not in WRITTEN]


@pytest.mark.parametrize("page", TYPED, ids=[str(p.relative_to(ROOT)) for p in TYPED])
def test_no_figure_is_typed(page):
    name = str(page.relative_to(ROOT))
    assert not set(typed_figures(page.read_text("utf-8"))) - DEFINED.get(name, set())


def test_the_page_of_the_coverage_is_that_of_its_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setitem(sys.modules, "coverage", None)  # put back afterwards: a library has the same name
    del sys.modules["coverage"]
    coverage = importlib.import_module("coverage")
    found = json.loads((ROOT / "docs" / "results" / "coverage.json").read_text("utf-8"))
    page = (ROOT / "docs" / "coverage.md").read_text("utf-8")
    shown, made = (
        [line for line in text.splitlines() if line.startswith("|")] for text in (page, coverage.table(found))
    )
    assert shown == made


def test_a_typed_figure_is_found():
    assert typed_figures("ECE was .123, and 4.5% of `0.25` {{ cell('0.35') }}.") == [".123", "4.5%"]


@pytest.fixture
def tools(monkeypatch):
    """The modules of docs/_site."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_site"))
    yield importlib.import_module
    for name in ("figures", "outputs", "pictures", "readme", "notebooks", "reference"):
        sys.modules.pop(name, None)


def test_the_readme_shows_what_the_results_have(tools):
    text = (ROOT / "README.md").read_text("utf-8")
    assert tools("readme").filled(text) == text, "python docs/_site/readme.py"


def test_a_figure_that_is_not_there_is_an_error(tools):
    figures = tools("figures")
    with pytest.raises(ValueError, match=r"here.md: LookupError"):
        figures.fill('{{ cell("results/study/cells.csv", "nll", run="none") }}', "here.md")
    with pytest.raises(ValueError, match=r"here.md: UndefinedError"):
        figures.fill("{{ nothing }}", "here.md")


def test_a_figure_is_that_of_the_file(tools):
    demo = '"docs/results/demo-splice.json"'
    page = f'{{{{ run_value({demo}, "nll", "hidden-smoothing") }}}} {{{{ json_value({demo}, "rows.0.n_rows", "d") }}}}'
    assert tools("figures").fill(page, "here.md") == ".571 500"
