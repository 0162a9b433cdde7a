"""Corrupt and hostile files with any suffix: read or refused with an `EbmcalError`, never another exception."""

import contextlib
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebmcal.data import DataConfig, load_task
from ebmcal.errors import EbmcalError

pytest.importorskip("datasets")

LABELS = ["good", "bad", "so-so"]
TEXTS = ["a fine film", 'he said "no"', "naïve café 🎬", "tab\there", "<script>alert(1)</script>", "line\nbreak", ""]
HOSTILE = [
    b'"', b'""', b"'", b",", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\xc3\x28",
    b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"[" * 3000, b"{" * 50, b"9" * 5000, b"NaN", b"null", b"1e999", b"-1",
    b"\xe2\x80\xa8", b"\x1a", b"\\", b"{}", b"[]", b"true", b"a" * 100_000, b"PAR1", b"text", b"label",
]  # fmt: skip


def samples() -> dict[str, bytes]:
    """One valid file of each format, as bytes, by suffix."""
    rows = [{"text": f"{TEXTS[i % len(TEXTS)]} {i}", "label": LABELS[i % 3]} for i in range(40)]
    cells = [('"' + row["text"].replace('"', '""') + '"', row["label"]) for row in rows]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=16)
    return {
        ".csv": ("text,label\n" + "".join(f"{text},{label}\n" for text, label in cells)).encode(),
        ".tsv": ("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in cells)).encode(),
        ".jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        ".json": json.dumps(rows).encode(),
        ".parquet": sink.getvalue().to_pybytes(),
    }


def corrupted(data: bytes, rng: random.Random) -> bytes:
    """The file after one to eight random changes."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(content) + 1)
        to = min(len(content), at + rng.randint(1, 60))
        kind = rng.randrange(7)
        if kind == 0:
            content[at:at] = rng.choice(HOSTILE)
        elif kind == 1:
            content[at:to] = b""
        elif kind == 2:
            content[at:to] = rng.randbytes(to - at)
        elif kind == 3 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 4:
            content[at:at] = content[at:to]
        elif kind == 5 and rng.random() < 0.3:
            content = content[:at]
        elif kind == 6 and rng.random() < 0.05:
            content = bytearray(rng.randbytes(rng.randrange(400)))
    return bytes(content)


def read_all(path, cache):
    """Load a file as training data and read every text; the number of rows."""
    task = load_task(DataConfig(train=path), cache)
    json.dumps(task.audit, allow_nan=False)
    return len([text.encode() for split in task.splits.values() for text in split["text"]])


def test_intact_files_are_read(tmp_path):
    for suffix, content in samples().items():
        (tmp_path / f"a{suffix}").write_bytes(content)
        assert read_all(tmp_path / f"a{suffix}", tmp_path / "cache") == 40


@pytest.mark.parametrize("count", [120, pytest.param(10_000, marks=pytest.mark.slow)])
def test_corrupted_files(count, tmp_path):
    rng, valid, n_read = random.Random(count), samples(), 0
    for i in range(count):
        suffix = list(valid)[i % len(valid)]
        path = tmp_path / f"{i}{suffix}"
        path.write_bytes(corrupted(valid[suffix], rng))
        with contextlib.suppress(EbmcalError):
            n_read += read_all(path, tmp_path / "cache") > 0
    assert count / 6 < n_read < count * 5 / 6
