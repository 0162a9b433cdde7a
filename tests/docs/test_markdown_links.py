"""Links of the Markdown as it lies in the repository lead to files that are there: it is read without the site too."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.ipynb"))]
CODE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<(?:img|source|a)[^>]*(?:src|srcset|href)=\"([^\"]+)\"")


def text_of(page):
    """What a reader sees of a page: of a notebook, its cells of text."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        text = "\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")
    return CODE.sub("", text)


def dead_links(text, folder):
    """Links to files that are not there."""
    links = ["".join(found) for found in LINK.findall(text)]
    files = [link.split("#")[0] for link in links if not re.match(r"\w+:|#", link)]
    return [file for file in files if not (folder / file).exists()]


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_lead_to_files(page):
    assert not dead_links(text_of(page), page.parent)


def test_a_dead_link_is_found():
    text = '[a](README.md#b) [c](https://d) [e](#f) [g](none.md) <img src="no.svg">'
    assert dead_links(text, ROOT) == ["none.md", "no.svg"]
