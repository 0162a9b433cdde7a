"""Fuzzed files through the two readers: of data (`tests/data/fuzz_files.py`) and of predictions, half of them each.

A file is read, or refused with an `EbmcalError` that says something; anything else is a failure.
"""

import random
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
from fuzz_files import attempt, damaged, fuzz_files

from ebmcal.predictions import Predictions

from .record import Case

CHUNK = 250  # files of a case: what is lost when the command is interrupted
SUFFIXES = (".csv", ".jsonl", ".parquet", ".npz")


def plan_files(count: int) -> list[tuple[str, int, int]]:
    """(reader, number, files): chunks that add up to `count`, the readers in turn.

    >>> sum(n for _, _, n in plan_files(10_000))
    10000
    """
    sizes = [CHUNK] * (count // CHUNK) + ([count % CHUNK] if count % CHUNK else [])
    return [(("data", "predictions")[i % 2], i, size) for i, size in enumerate(sizes)]


def read_fuzzed(scratch: Path, seed: int, reader: str, number: int, count: int) -> Case:
    """Read a chunk of damaged files, which depend on the seed and the number of the chunk alone."""
    fuzz = fuzz_files if reader == "data" else fuzz_predictions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = fuzz(count, seed=1000 * seed + number, folder=scratch)
    facts = {name: outcome[name] for name in ("read", "refused")}
    key = f"files {reader} {number}"
    return {"part": "files", "key": key, "ok": not outcome["failed"], **facts, "failed": outcome["failed"]}


def fuzz_predictions(count: int, seed: int, folder: Path) -> dict:
    """Read damaged prediction files: {"read", "refused", "failed": [descriptions]}."""
    rng, outcome, failed = random.Random(seed), Counter(), []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        sound = _sound(Path(name))
        for i in range(count):
            suffix = SUFFIXES[i % len(SUFFIXES)]
            path = Path(name) / f"fuzz{suffix}"
            path.write_bytes(damaged(sound[suffix], rng))
            what = f"seed {seed}, file {i} ({suffix})"
            outcome[attempt(partial(_read, path), failed, what)] += 1
    return {"read": outcome["read"], "refused": outcome["refused"], "failed": failed}


def _sound(folder: Path) -> dict[str, bytes]:
    """A sound prediction file of each kind, as bytes."""
    logits = np.random.default_rng(0).normal(size=(40, 3))
    texts = [f"a <b>film</b>, number {i}" for i in range(40)]
    rows = Predictions(np.arange(40) % 3, ("bad", "so-so", "good"), logits=logits, energies=logits.max(1), texts=texts)
    for suffix in SUFFIXES:
        rows.write(folder / f"sound{suffix}")
    return {suffix: (folder / f"sound{suffix}").read_bytes() for suffix in SUFFIXES}


def _read(path: Path) -> None:
    Predictions.read(path).probabilities()
