"""The worked examples of CONTRIBUTING.md run as they stand, and each adds the entry it says it adds."""

import re
from pathlib import Path

import pytest

from ebmcal.calibrators import CALIBRATORS
from ebmcal.metrics import METRICS

pytest.importorskip("torch", reason="a method is among the examples")
from ebmcal.noise.masking import MODES
from ebmcal.noise.sources import FROM_TEXTS
from ebmcal.training.methods import METHODS

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
TABLES = {
    "metric": METRICS, "calibrator": CALIBRATORS, "training method": METHODS, "source of noise": FROM_TEXTS,
    "noise of a language model": MODES,
}  # fmt: skip
SECTIONS = re.findall(r"^## Adding (?:a )?(.+?)$.*?```python\n(.*?)```", PAGE.read_text("utf-8"), re.M | re.S)


def test_every_table_has_an_example():
    assert [title for title, _ in SECTIONS] == list(TABLES)


@pytest.mark.parametrize(("title", "code"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_the_example_adds_an_entry(title, code, monkeypatch):
    table, before = TABLES[title], dict(TABLES[title])
    for name in before:
        monkeypatch.setitem(table, name, before[name])  # so that the table is as it was afterwards
    try:
        exec(compile(code, f"CONTRIBUTING.md, {title}", "exec"), {"__name__": "contributing"})
        assert len(table) == len(before) + 1
    finally:
        for name in set(table) - set(before):
            del table[name]
