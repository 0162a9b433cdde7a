"""The tiny work that faults are injected into: models of a few thousand weights, a small file, every stage.

All paths in the commands are relative, so that what two runs in two folders leave can be compared byte by byte.
"""

import csv
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from ebmcal.noise.store import RECORD
from ebmcal.storage.atomic import CHECK
from ebmcal.storage.sealing import SEAL

LABELS = ("bad", "fair", "good")

SETTINGS = {
    "train": "inputs/reviews.csv", "encoder": "inputs/encoder", "noise_lm": "inputs/lm", "noise_mode": "gaps",
    "methods": "baseline,hidden", "steps": 12, "batch_size": 8, "learning_rate": 0.003, "max_length": 32,
    "noise_lm_steps": 60, "noise_lm_batch_size": 8, "noise_lm_learning_rate": 0.02, "noise_samples": 180,
    "samples_per_mask": 1, "posthoc": "temperature", "precision": "fp32", "eval_steps": 4, "save_steps": 3,
    "cache_dir": "cache",
}  # fmt: skip
OUTPUT = {"output": "run"}


def _flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


#: What can be interrupted → its command line.
STAGES: dict[str, list[str]] = {
    "run": ["run", *_flags(SETTINGS | OUTPUT)],
    "noise fit": ["noise", "fit", *_flags(SETTINGS)],
    "noise sample": ["noise", "sample", "--count", "400", *_flags(SETTINGS)],
    "train": ["train", *_flags(SETTINGS | OUTPUT)],
    "benchmark": ["benchmark", "inputs/benchmark.yaml"],
}


def make_inputs(folder: Path) -> Path:
    """Encoder, noise LM, texts and a benchmark file in `folder`."""
    from transformers.utils import logging

    from tiny_models import SENTENCES, save_encoder, save_language_model

    logging.disable_progress_bar()
    save_encoder(folder / "encoder")
    save_language_model(folder / "lm")
    rows = [(f"{text} {word}", LABELS[i % 3]) for i, text in enumerate(SENTENCES) for word in ("so", "indeed")]
    write_csv(folder / "reviews.csv", rows)
    write_csv(folder / "others.csv", rows[::2])
    (folder / "benchmark.yaml").write_text(yaml.safe_dump(_benchmark()))
    return folder


def _benchmark() -> dict[str, Any]:
    shared = {k: v for k, v in SETTINGS.items() if k not in ("train", "methods")}
    tasks = [{"name": "first", "train": "inputs/reviews.csv", "methods": ["hidden"]},
             {"name": "second", "train": "inputs/others.csv", "methods": ["baseline"]}]  # fmt: skip
    return shared | {"posthoc": [], "output": "run", "steps": 8, "tasks": tasks}


def write_csv(path: Path, rows: list[tuple], columns: tuple[str, ...] = ("text", "label")) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([columns, *rows])
    return path


def fresh(inputs: Path, folder: Path) -> Path:
    """An empty folder with the inputs, as a command finds it the first time."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder / "inputs")
    return folder


#: What differs between two runs of the same command: times, and the checksums of files that hold times.
TIMES = {"seconds", "lm_seconds", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second", CHECK}
IN_BETWEEN = re.compile(r"\.part(/|$)|\.work(/|$)|/checkpoint-\d+(/|$)")
SKIPPED = {"log.txt", "report.html", ".lock", SEAL}


def results(folder: Path) -> dict[str, str]:
    """Digest of everything a command left in the run folder and the cache, by path; times aside."""
    found = {}
    for path in sorted(p for top in ("run", "cache") for p in (folder / top).rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name not in SKIPPED and not IN_BETWEEN.search(name):
            found[name] = _digest(path)
    return found


def leftovers(folder: Path) -> list[str]:
    """What is only needed while a command works, and is still there."""
    names = {p.relative_to(folder).as_posix() for top in ("run", "cache") for p in (folder / top).rglob("*")}
    return sorted(name for name in names if IN_BETWEEN.search(name))


def _digest(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix in {".json", ".jsonl"}:
        try:
            lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
            if path.name == RECORD:  # in the order in which shards were made
                lines = sorted(line for line in lines if line)
            content = json.dumps([_timeless(json.loads(line)) for line in lines]).encode()
        except ValueError:
            pass  # damaged: compared as it is
    return hashlib.sha256(content).hexdigest()[:16]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def differing(found: dict[str, str], reference: dict[str, str]) -> list[str]:
    """Paths that are not as in the reference: other contents, absent, or not known there."""
    return sorted(name for name in found.keys() | reference.keys() if found.get(name) != reference.get(name))


def reached(folder: Path) -> str:
    """How far a command had come, by what lies on disk."""
    signs = {
        "report": "run/**/metrics.json", "predictions": "run/**/predictions/*/*.parquet",
        "trained a model": "run/**/checkpoints/*/model", "training": "run/**/checkpoints/*/checkpoint-*",
        "noise": "cache/noise/*/shard-*.parquet", "noise LM made": "cache/noise_lm/*/noise_lm.json",
        "noise LM training": "cache/noise_lm/*.work/checkpoint-*", "tokens": "cache/tokens/*",
        "data": "cache/texts-*.arrow",
    }  # fmt: skip
    return next((stage for stage, pattern in signs.items() if any(folder.glob(pattern))), "start")
