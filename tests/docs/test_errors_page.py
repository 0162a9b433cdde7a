"""The page of errors quotes what the code says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
QUOTED = re.findall(r"^\| `([^`]+)` \|", PAGE, re.M)


@pytest.fixture(scope="module")
def sources():
    """All code as one text, strings that go over several lines joined."""
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


def test_there_are_quotations():
    assert len(QUOTED) > 10


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_code_says_so(quoted, sources):
    missing = [part for part in quoted.split(" … ") if part not in sources]
    assert not missing
