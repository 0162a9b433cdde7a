"""Fuzzing of the readers: corrupt and hostile files are read or refused with an `EbmcalError`, nothing else.

`fuzz_files(count)` is deterministic for a seed. Run alone: python tests/data/fuzz_files.py --count 10000
"""

import argparse
import json
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ebmcal.data import DataConfig, load_task
from ebmcal.errors import EbmcalError

LABELS = ["good", "bad", "so-so"]
TEXTS = ["a fine film", 'he said "no"', "naïve café 🎬", "tab\there", "<script>alert(1)</script>", "line\nbreak", ""]
HOSTILE = [
    b'"', b'""', b"'", b",", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\xc3\x28",
    b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"[" * 3000, b"{" * 50, b"9" * 5000, b"NaN", b"null", b"1e999", b"-1",
    b"\xe2\x80\xa8", b"\x1a", b"\\", b"{}", b"[]", b"true", b"a" * 100_000, b"PAR1", b"text", b"label",
]  # fmt: skip


def samples() -> dict[str, bytes]:
    """One valid file of each format, as bytes, by suffix."""
    rows = [(TEXTS[i % len(TEXTS)] + f" {i}", LABELS[i % 3]) for i in range(40)]
    quoted = [(f'"{text}"'.replace('"no"', '""no""'), label) for text, label in rows]
    csv = "text,label\n" + "".join(f"{text},{label}\n" for text, label in quoted)
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    sink = pa.BufferOutputStream()
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    pq.write_table(table, sink, row_group_size=16)
    return {
        ".csv": csv.encode(),
        ".tsv": csv.replace('",', '"\t').replace("text,label", "text\tlabel").encode(),
        ".jsonl": lines.encode(),
        ".json": json.dumps([{"text": text, "label": label} for text, label in rows]).encode(),
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


def read_all(path: Path, cache_dir: Path) -> int:
    """Load a file as training data and read every text; the number of rows."""
    task = load_task(DataConfig(train=path), cache_dir)
    json.dumps(task.audit, allow_nan=False)
    texts = [text for split in task.splits.values() for text in split["text"]]
    return len([text.encode("utf-8") for text in texts])


def fuzz_files(count: int, seed: int = 0, folder: Path | None = None) -> dict:
    """Read `count` corrupted files: {"read", "refused", "failed": [reasons], "by_format"}; failed must be empty."""
    rng, outcome, failed = random.Random(seed), Counter(), []
    valid = samples()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for i in range(count):
            suffix = list(valid)[i % len(valid)]
            path = Path(name) / f"fuzz{suffix}"
            path.write_bytes(corrupted(valid[suffix], rng))
            what = f"seed {seed}, file {i} ({suffix})"
            result = attempt(partial(read_all, path, Path(name) / "cache"), failed, what)
            outcome[suffix, result] += 1
            shutil.rmtree(Path(name) / "cache", ignore_errors=True)
    by_format = {suffix: {r: outcome[suffix, r] for r in ("read", "refused", "failed")} for suffix in valid}
    return {r: sum(v[r] for v in by_format.values()) for r in ("read", "refused")} | {
        "failed": failed,
        "by_format": by_format,
    }


def attempt(read: Callable[[], object], failed: list[str], what: str) -> str:
    """Call a reader: "read", "refused" with an `EbmcalError`, or "failed", with the reason in `failed`."""
    try:
        read()
        return "read"
    except EbmcalError as error:
        if not str(error).strip():
            failed.append(f"{what}: an error without a message")
        return "refused"
    except Exception:
        failed.append(f"{what}:\n{traceback.format_exc(limit=-4)}")
        return "failed"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(json.dumps(fuzz_files(arguments.count, arguments.seed), indent=2))
