"""Arbitrary bytes with any suffix: read or refused with an `EbmcalError`, never another exception."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmcal.errors import EbmcalError

pytest.importorskip("datasets")
from fuzz_files import fuzz_files, read_all, samples


def test_intact_files_are_read(tmp_path):
    for suffix, content in samples().items():
        path = tmp_path / f"a{suffix}"
        path.write_bytes(content)
        assert read_all(path, tmp_path / "cache") == 40


def test_corrupted_files():
    result = fuzz_files(120, seed=7)
    assert result["failed"] == []
    assert result["read"] > 20
    assert result["refused"] > 20


@pytest.mark.slow
def test_many_corrupted_files():
    assert fuzz_files(10_000, seed=11)["failed"] == []


@settings(max_examples=80)
@given(st.binary(max_size=300), st.sampled_from([".csv", ".tsv", ".jsonl", ".json", ".parquet"]), st.booleans())
def test_arbitrary_bytes(content, suffix, with_header):
    header = {".csv": b"text,label\n", ".tsv": b"text\tlabel\n", ".jsonl": b'{"text": "a", "label": "b"}\n'}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"a{suffix}"
        path.write_bytes((header.get(suffix, b"PAR1") if with_header else b"") + content)
        with contextlib.suppress(EbmcalError):
            read_all(path, Path(name) / "cache")
