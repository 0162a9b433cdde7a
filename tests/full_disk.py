"""A tiny `ebmcal run` that cannot write: stage after stage, from the last to the first, and then has room again.

`python full_disk.py FOLDER ENCODER disk|limit|permission` prints a JSON object: the exit code and the error of each
attempt, and whether the run that followed gave the same files. "disk" mounts a small disk on FOLDER (in a namespace of
its own: `unshare -rm`), "limit" bounds the size of a file, "permission" takes the right to write in a folder away.
"""

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ebmcal.pipeline.run_noise
from ebmcal.cli import main
from ebmcal.judging import Measures, judge_run
from ebmcal.models.loading import LANGUAGE_MODELS
from ebmcal.pipeline import stages as pipeline
from ebmcal.storage.atomic import write_text
from small_runs import Small
from tiny_models import SENTENCES

KB = 1024

#: stage: its files, the folder they are in, the KB that are free when it begins (on a small disk)
STAGES = {
    "report": ("run/report.html", "run", 44),
    "metrics": ("run/metrics.json", "run", 8),
    "predictions": ("run/predictions/*", "run/predictions", 8),
    "model": ("run/checkpoints/*", "run/checkpoints", 360),
    "checkpoint": ("run/checkpoints/*", "run/checkpoints", 40),
    "noise": ("cache/noise/*", "cache/noise", 4),
    "noise LM": ("cache/noise_lm/*", "cache/noise_lm", 40),
    "tokens": ("cache/tokens/*", "cache/tokens", 4),
    "data": ("cache/texts-*", "cache", 4),
}


def write_reviews(path: Path) -> Path:
    rows = [f'"{s} {"very " * (i % 2)}so",{"good" if i % 2 else "bad"}' for i, s in enumerate(SENTENCES)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


def arguments(folder: Path, encoder: str, csv: Path) -> list[str]:
    given = {
        "train": csv, "encoder": encoder, "noise": "gaps:small", "methods": "hidden", "steps": 4, "save-steps": 2,
        "eval-steps": 4, "batch-size": 8, "max-length": 32, "noise-lm-steps": 40, "noise-lm-batch-size": 8,
        "noise-lm-learning-rate": 0.02, "noise-samples": 40, "posthoc": "temperature", "precision": "fp32",
        "output": folder / "run",
        "cache-dir": folder / "cache",
    }  # fmt: skip
    return ["run", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]


def attempt(command: list[str]) -> dict:
    """Run the command once: its exit code, or the exception that nobody caught, and its error."""
    code, said = 0, io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(command)
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    _, found, error = " ".join(said.getvalue().split()).partition("Error: ")
    return {"code": code, "error": error if found else ""}


@contextlib.contextmanager
def no_room(folder: Path, stage: str, how: str) -> Iterator[None]:
    """Take away what a stage has made, and the room to make it again."""
    pattern, place, free = STAGES[stage]
    files = [p for made in folder.glob(pattern) for p in (made, *made.rglob("*")) if p.is_file()]
    largest = max((p.stat().st_size for p in files), default=64 * KB)
    for made in folder.glob(pattern):
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    if how == "disk":
        usage = shutil.disk_usage(folder)
        grow(folder, usage.used // KB + free)
        yield
        grow(folder, 64 * KB)
    elif how == "limit":
        (folder / "run" / "log.txt").unlink(missing_ok=True)  # what earlier attempts said would reach the limit first
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, resource.RLIM_INFINITY))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        os.chmod(folder / place, 0o555)
        yield
        os.chmod(folder / place, 0o755)


def grow(folder: Path, kilobytes: int) -> None:
    options = f"size={kilobytes}k" + (",remount" if folder.is_mount() else "")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


def results_of(folder: Path) -> dict[str, str]:
    files = [*folder.glob("run/predictions/*/*.parquet"), *folder.glob("cache/noise/*/shard*")]
    files += folder.glob("run/checkpoints/*/model/model.safetensors")
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(files)}


def sweep(folder: Path, encoder: str, how: str) -> dict:
    if how == "disk":
        grow(folder, 64 * KB)
    command = arguments(folder, encoder, write_reviews(folder.parent / f"{folder.name}.csv"))
    first, before, attempts = attempt(command), results_of(folder), {}
    for stage in STAGES:
        with no_room(folder, stage, how):
            attempts[stage] = attempt(command)
    left = [p.name for p in folder.rglob("*.part")]
    last = attempt(command)
    return {"first": first, "attempts": attempts, "left": left, "last": last, "same": results_of(folder) == before}


def make_quick() -> None:
    """A noise LM of a few thousand weights, hardly any resampling, and a report that is not drawn."""
    LANGUAGE_MODELS["small"] = Small()
    ebmcal.pipeline.run_noise.HELD_OUT = 20
    pipeline.judge_run = partial(judge_run, how=Measures(n_resamples=5))
    pipeline.write_report = write_blank_report


def write_blank_report(root: Path) -> Path:
    write_text(root / "report.html", "x" * 100 * KB)
    return root / "report.html"


if __name__ == "__main__":
    make_quick()
    place, encoder_folder, kind = sys.argv[1:]
    print("\n" + json.dumps(sweep(Path(place), encoder_folder, kind)))
