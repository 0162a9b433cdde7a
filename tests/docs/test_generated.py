"""Tables in the documentation that come from the code are up to date."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_up_to_date(generate):
    stale = [str(path.relative_to(ROOT)) for path in generate.outdated()]
    assert not stale, f"{', '.join(stale)}: run python docs/generate.py"


def test_every_block_is_used(generate):
    text = "".join(path.read_text(encoding="utf-8") for path in generate.PAGES)
    assert all(f"<!-- {name} -->" in text for name in generate.BLOCKS)


def test_a_stale_table_is_noticed(generate):
    stale = "<!-- calibrators -->\n\n| calibrator |\n\n<!-- end -->\n"
    assert "`temperature`" in generate.filled(stale)
