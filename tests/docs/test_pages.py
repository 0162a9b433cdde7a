"""The documentation: links resolve, options exist, no templates, no old vocabulary, within its length."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml

from ebmcal.cli import COMMANDS, build_app

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem not in ("tiny_model", "onnx_alone"))

pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def prose(page):
    """The text of a page without code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def headings(page):
    """The anchors of a page, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pages
def test_relative_links_resolve(page):
    text = prose(page)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for link in links:
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{link} does not exist"
        assert not anchor or anchor in headings(target), f"{link}: no such heading"


@pages
def test_pages_are_plain_markdown(page):
    text = page.read_text(encoding="utf-8")
    assert "{{" not in text
    assert "{%" not in text


@pages
def test_the_vocabulary_is_that_of_the_field(page):
    old = r"\b(judg(e|es|ing)|mend(s|ed)?|hardness|told apart|unusual|beside|promise[sd]?|the house)\b"
    assert not re.search(old, prose(page).lower())


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = [path for section in nav for entries in section.values() for entry in entries for path in entry.values()]
    assert sorted(listed) == [path.relative_to(ROOT / "docs").as_posix() for path in DOCS]


def test_the_documentation_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90
    pages = [page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *DOCS]]
    written = [re.sub(r"<!-- [\w-]+ -->\n.*?<!-- end -->", "", page, flags=re.S) for page in pages]
    assert sum(bool(re.search(r"\w", word)) for page in written for word in page.split()) <= 12_000


@cache
def options_of(command):
    found = typer.main.get_command(build_app(command))
    for word in command.split():
        found = found.commands[word]
    return {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def mentioned_commands(page):
    """(command, option) for every `ebmcal …` in the code blocks and the inline code of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(ebmcal [^`\n]+)`", prose(page))
    for line in [*(line for block in blocks for line in block.splitlines()), *inline]:
        for part in re.findall(r"(?:^|\s)ebmcal ([a-z][^|#>]*)", line):
            words = shlex.split(part.replace("…", ""))
            command = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
            if command is None:
                assert words[0] == "noise", f"there is no command ebmcal {words[0]}"
                continue
            yield command, [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]


@pages
def test_mentioned_options_exist(page):
    for command, options in mentioned_commands(page):
        assert not set(options) - options_of(command), f"ebmcal {command} has no such option"


def test_options_are_checked_at_all():
    found = [command for page in PAGES for command, options in mentioned_commands(page) if options]
    assert len(set(found)) > 10


@pages
def test_settings_that_are_mentioned_exist(page):
    from ebmcal import RunConfig

    for name in re.findall(r"--set ([a-z_]+)=", page.read_text(encoding="utf-8")):
        assert name in RunConfig.model_fields


@pages
def test_source_files_that_are_mentioned_exist(page):
    for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|yaml|json|csv))`", prose(page)):
        if not name.startswith("runs/"):
            assert any((base / name).is_file() for base in (ROOT, ROOT / "src" / "ebmcal")), name


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(script, tmp_path):
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout
