"""Fault injection: kills, damaged files, bad arguments and full disks, on real commands with a tiny model.

    python benchmarks/faults.py --minutes 25
    python benchmarks/faults.py --only "kill run:3"        # repeat one trial and print its output

A trial ends in one of four outcomes:

- correct: exit code 0, and the result is that of an undisturbed command;
- read: exit code 0 with another result: the damaged file is still valid (a flipped bit in a CSV is another CSV);
- error: exit code 1 or 2 with a message and without a traceback;
- failure: anything else, such as a traceback, a hanging command, or a wrong result of a resumed run.

Commands are forked from a process that has imported everything, because importing takes longer than the work. Full
disks are file systems in memory of a random size if this process may mount them (root), else limits of the file size.
The result is `benchmarks/faults.json`; the exit code is 1 if there was a failure.
"""

import argparse
import contextlib
import http.client
import importlib
import io
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

import ebmcal
from ebmcal.bulk_prediction import rows as bulk_rows
from ebmcal.cli import main
from small_runs import rows, write_csv
from tiny_models import SENTENCES, save_encoder

TIMEOUT = 300.0  # seconds until a command counts as hanging
N_PREDICTED = 3000
BAD_VALUES = (
    "",
    " ",
    "-1",
    "0",
    "1e999",
    "nan",
    "none",
    "💥",
    "x" * 5000,
    "../..",
    "a=b",
    "[1",
    "{}",
    "\udce9",
    "hiden",
)


@dataclass
class Result:
    """How a command ended: its exit code (negative: a signal) and what it printed."""

    code: int
    output: str
    seconds: float

    @property
    def is_clear_error(self) -> bool:
        return self.code in (1, 2) and "Error" in self.output and "Traceback" not in self.output

    @property
    def is_ok(self) -> bool:
        return self.code in (0, 3) and "Traceback" not in self.output  # 3: an alarm of ebmcal monitor


@dataclass
class Count:
    """The trials of one kind of fault."""

    n: int = 0
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("correct", "read", "error", "failure"), 0))
    failures: list[dict[str, str]] = field(default_factory=list)


class Failed(Exception):
    """The outcome is a failure; the message says why."""


def call(*arguments: object, kill_after: float | None = None, file_limit: int | None = None) -> Result:
    """Run an ebmcal command in a forked process; SIGKILL after `kill_after` seconds."""
    sys.stdout.flush()
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _run_command([str(argument) for argument in arguments], log.fileno(), file_limit)
        end = start + (TIMEOUT if kill_after is None else kill_after)
        while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.002)
        if done[0] == 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            done = os.waitpid(pid, 0)
        log.seek(0)
        return Result(os.waitstatus_to_exitcode(done[1]), log.read().decode(errors="replace"), time.monotonic() - start)


def _run_command(arguments: list[str], log: int, file_limit: int | None) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    code = 99
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class Workshop:
    """Data, a tiny encoder, a finished run and its predictions, made once; every trial works on copies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.train = write_csv(root / "train.csv", rows(90))
        self._in_child(lambda: save_encoder(root / "encoder"))
        finished = call(*self.run_arguments(root / "run"))
        if finished.code:
            raise SystemExit(f"The undisturbed run failed:\n{finished.output}")
        self.run, self.run_seconds = root / "run", finished.seconds
        self.model = next((root / "run" / "trials").glob("*/model"))
        self.texts = root / "texts.csv"
        lines = (f'{i},"{SENTENCES[i % len(SENTENCES)]} {i}"\n' for i in range(N_PREDICTED))
        self.texts.write_text("id,text\n" + "".join(lines))
        predicted = call("predict", self.model, self.texts, "-o", root / "predicted.csv")
        if predicted.code:
            raise SystemExit(f"The undisturbed prediction failed:\n{predicted.output}")
        self.predicted, self.predict_seconds = (root / "predicted.csv").read_bytes(), predicted.seconds
        self._in_child(self._write_formats)
        self.trial_directory = root / "trial"

    def run_arguments(self, output: Path) -> list[object]:
        return [
            "run", "--train", self.train, "--encoder", self.root / "encoder", "--methods", "hidden", "--folds", 2,
            "--batch-size", 8, "--max-length", 32, "--set", "steps=4", "--set", "precision=fp32",
            "--set", "posthoc=[temperature]", "--set", f"cache_dir={output.parent / 'cache'}", "--output", output,
        ]  # fmt: skip

    def _in_child(self, function: Callable[[], object]) -> None:
        """Torch must not start threads in the process that forks."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("The setup failed.")

    def _write_formats(self) -> None:
        """Predictions with labels and small inputs, in every format."""
        import gzip

        import pandas as pd

        found = ebmcal.Predictions.read(next(self.run.glob("trials/*/test.parquet")))
        for suffix in ("csv", "jsonl", "parquet"):
            found.write(self.root / f"evaluated.{suffix}")
        frame = pd.read_csv(self.texts).head(60)
        frame.to_csv(self.root / "small.csv", index=False)
        frame.to_json(self.root / "small.jsonl", orient="records", lines=True)
        frame.to_json(self.root / "small.json", orient="records")
        frame.to_parquet(self.root / "small.parquet")
        (self.root / "small.csv.gz").write_bytes(gzip.compress((self.root / "small.csv").read_bytes()))

    def same_run(self, run: Path) -> bool:
        """Whether a run has the predictions of the undisturbed one."""
        files = sorted(path.relative_to(self.run) for path in self.run.glob("trials/*/*.parquet"))
        return bool(files) and all(self._same_predictions(self.run / name, run / name) for name in files)

    def _same_predictions(self, first: Path, second: Path) -> bool:
        a, b = (ebmcal.Predictions.read(path, labels_required=False) for path in (first, second))
        return all(
            np.array_equal(getattr(a, name), getattr(b, name)) for name in ("ids", "probs", "labels", "energies")
        )


def expect(result: Result, correct: Callable[[], bool], *, may_differ: bool = False) -> str:
    """The outcome of a command; `may_differ`: another result is not wrong, because the input has changed."""
    if result.is_clear_error:
        return "error"
    if not result.is_ok:
        raise Failed(f"exit code {result.code}\n{result.output}")
    if correct():
        return "correct"
    if not may_differ:
        raise Failed("exit code 0 with a wrong result")
    return "read"


# Each kind of fault: (workshop, directory of the trial, random numbers) → outcome


def kill_run(shop: Workshop, place: Path, rng: random.Random) -> str:
    """Killed one to three times, then finished."""
    command = shop.run_arguments(place / "run")
    for _ in range(rng.randint(1, 3)):
        killed = call(*command, kill_after=rng.uniform(0.02, 1.0) * shop.run_seconds)
        if killed.code not in (0, -signal.SIGKILL):
            raise Failed(f"before the kill: exit code {killed.code}\n{killed.output}")
    result = call(*command)
    if result.code:
        raise Failed(f"resumed: exit code {result.code}\n{result.output}")
    return expect(result, lambda: shop.same_run(place / "run"))


def kill_predict(shop: Workshop, place: Path, rng: random.Random) -> str:
    output = place / "out.csv"
    command = ("predict", shop.model, shop.texts, "-o", output)
    for _ in range(rng.randint(1, 3)):
        if not output.exists():
            call(*command, kill_after=rng.uniform(0.02, 1.0) * shop.predict_seconds)
    if not output.exists():
        result = call(*command)
        if result.code:
            raise Failed(f"resumed: exit code {result.code}\n{result.output}")
    if output.read_bytes() != shop.predicted:
        raise Failed("the resumed job wrote another file")
    return "correct"


def damage(path: Path, rng: random.Random) -> str:
    """Flip a bit, cut, empty, delete or overwrite a part of a file."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(["bit", "bit", "cut", "cut", "overwritten", "empty", "deleted"])
    place = rng.randrange(max(len(content), 1))
    if kind == "bit" and content:
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "overwritten":
        content[place : place + 64] = rng.randbytes(64)
    elif kind in ("cut", "empty"):
        del content[place if kind == "cut" else 0 :]
    path.unlink() if kind == "deleted" else path.write_bytes(content)
    return f"{kind} at {place} of {path}"


def damaged_predictions(shop: Workshop, place: Path, rng: random.Random) -> str:
    path = Path(shutil.copy(shop.root / f"evaluated.{rng.choice(['csv', 'jsonl', 'parquet'])}", place))
    print(damage(path, rng))
    return expect(call("evaluate", path, "--resamples", 20), lambda: False, may_differ=True)


def damaged_texts(shop: Workshop, place: Path, rng: random.Random) -> str:
    suffix = rng.choice(["csv", "csv.gz", "jsonl", "json", "parquet"])
    path = Path(shutil.copy(shop.root / f"small.{suffix}", place))
    print(damage(path, rng))
    return expect(call("predict", shop.model, path, "-o", place / "out.csv"), lambda: False, may_differ=True)


def damaged_model(shop: Workshop, place: Path, rng: random.Random) -> str:
    model = Path(shutil.copytree(shop.model, place / "model"))
    print(damage(rng.choice(sorted(path for path in model.rglob("*") if path.is_file())), rng))
    result = call("predict", model, shop.texts, "-o", place / "out.csv")
    return expect(result, lambda: (place / "out.csv").read_bytes() == shop.predicted, may_differ=True)


def damaged_run(shop: Workshop, place: Path, rng: random.Random) -> str:
    """A finished run, one of whose files or cached files is damaged, is run again."""
    shutil.copytree(shop.run, place / "run")
    shutil.copytree(shop.root / "cache", place / "cache")
    print(damage(rng.choice(sorted(path for path in place.rglob("*") if path.is_file())), rng))
    return expect(call(*shop.run_arguments(place / "run")), lambda: shop.same_run(place / "run"))


def damaged_report(shop: Workshop, place: Path, rng: random.Random) -> str:
    run = Path(shutil.copytree(shop.run, place / "run"))
    files = [path for path in run.rglob("*") if path.suffix in (".json", ".yaml", ".parquet", ".jsonl")]
    print(damage(rng.choice(sorted(files)), rng))
    return expect(call("report", run), lambda: False, may_differ=True)


def bad_arguments(shop: Workshop, place: Path, rng: random.Random) -> str:
    """A correct command with one argument replaced."""
    (place / "empty.csv").touch()
    (place / "binary.csv").write_bytes(rng.randbytes(3000))
    (place / "directory.csv").mkdir()
    shutil.copytree(shop.model, place / "model")
    model, test = place / "model", shop.root / "evaluated.parquet"
    commands: list[list[object]] = [
        ["evaluate", test, "--resamples", 20, "--seed", 1, "--n-bins", 10, "--format", "json"],
        ["predict", model, shop.root / "small.csv", "-o", place / "out.csv", "--text-column", "text"],
        ["predict", model, shop.root / "small.jsonl", "-o", place / "out.parquet", "--id-column", "id"],
        ["calibrate", model, "--predictions", test, "--calibrator", "temperature", "--allow-mismatch"],
        ["abstain", model, "--predictions", test, "--max-error", 0.4, "--coverage", 0.9, "--ood", 0.1],
        ["report", shop.run, "--format", "markdown", "-o", place / "report.md"],
        ["monitor", model, test, "--reference", test, "--rows", 50, "--json", place / "m.json"],
        ["robustness", model, "--data", shop.train, "--max-rows", 5, "--perturbations", "uppercase", "--no-builtin"],
        ["export", model, "--onnx", place / "onnx", "--data", shop.root / "small.csv", "--max-rows", 5],
        ["push", model, "me/model", "--dry-run"],
        ["tasks", "rte", "--json"],
        [*shop.run_arguments(place / "run"), "--seeds", "1", "--learning-rate", "1e-3", "--noise", "splice"],
        ["noise", "show", shop.run, "--number", 2],
        ["benchmark", shop.root / "small.json", "--dry-run"],
        ["serve", place / "absent", "--port", "0", "--max-texts", 5],
    ]
    command = rng.choice(commands)
    files = [place / name for name in ("absent.csv", "empty.csv", "binary.csv", "directory.csv")]
    command[rng.randrange(1, len(command))] = rng.choice([*BAD_VALUES, *files, "/dev/null", "--no-such-option"])
    print(*(repr(str(argument)) for argument in command))
    return expect(call(*command), lambda: True)


@contextlib.contextmanager
def small_disk(place: Path, size: int) -> Iterator[bool]:
    """A file system of `size` bytes at `place`; False if this process may not mount one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def on_full_disk(command: Callable[[Path], list[object]], place: Path, size: int) -> tuple[Result, Result]:
    """A command on a disk with too little space, and again with enough."""
    disk = place / "disk"
    with small_disk(disk, size) as is_mounted:
        first = call(*command(disk), file_limit=None if is_mounted else size // 2)
        if is_mounted:
            subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
        second = call(*command(disk))
        shutil.copytree(disk, place / "copy", ignore=shutil.ignore_patterns("cache", "*.ebmcal"))
    print(first.output)
    if first.code != 0 and not first.is_clear_error:
        raise Failed(f"exit code {first.code} on the full disk\n{first.output}")
    if second.code:
        raise Failed(f"with enough space: exit code {second.code}\n{second.output}")
    return first, second


def full_disk_run(shop: Workshop, place: Path, rng: random.Random) -> str:
    used = sum(path.stat().st_size for name in ("run", "cache") for path in (shop.root / name).rglob("*"))
    size = int(rng.uniform(0.02, 1.0) * used)
    first, second = on_full_disk(lambda disk: shop.run_arguments(disk / "run"), place, size)
    expect(second, lambda: shop.same_run(place / "copy" / "run"))
    return "error" if first.code else "correct"


def full_disk_predict(shop: Workshop, place: Path, rng: random.Random) -> str:
    size = int(rng.uniform(0.05, 2.5) * len(shop.predicted))

    def command(disk: Path) -> list[object]:
        return ["predict", shop.model, shop.texts, "-o", disk / "out.csv", "--overwrite"]

    first, second = on_full_disk(command, place, size)
    expect(second, lambda: (place / "copy" / "out.csv").read_bytes() == shop.predicted)
    return "error" if first.code else "correct"


def full_disk_serve(shop: Workshop, place: Path, rng: random.Random) -> str:
    """The answer log is on a full disk: all requests are answered, and the log has complete lines only."""
    disk = place / "disk"
    with small_disk(disk, rng.randrange(4096, 40_000)) as is_mounted, open(place / "log", "w+b") as log:
        if not is_mounted:
            return "correct"  # nothing to test without a full disk
        pid = os.fork()
        if pid == 0:
            _run_command(["serve", str(shop.model), "--port", "0", "--log", str(disk / "a.jsonl")], log.fileno(), None)
        try:
            port = _wait_for_port(place / "log")
            n_texts = 0
            for _ in range(60):
                texts = [f"{rng.choice(SENTENCES)} {rng.random()}" for _ in range(rng.randint(1, 8))]
                n_texts += _classify(port, texts)
        finally:
            os.kill(pid, signal.SIGTERM)
            status = os.waitpid(pid, 0)[1]
        lines = (disk / "a.jsonl").read_text().splitlines() if (disk / "a.jsonl").exists() else []
        output = (place / "log").read_text(errors="replace")
    if any("id" not in json.loads(line) for line in lines) or len(lines) > n_texts:
        raise Failed("the log has incomplete lines")
    if "Traceback" in output or os.waitstatus_to_exitcode(status) not in (0, 130):
        raise Failed(f"exit code {os.waitstatus_to_exitcode(status)}\n{output}")
    if len(lines) < n_texts and "dropped" not in output:
        raise Failed("rows were dropped without a message")
    return "correct"


def _wait_for_port(log: Path) -> int:
    for _ in range(int(TIMEOUT * 10)):
        if found := re.search(r"http://[\w.]+:(\d+)", log.read_text(errors="replace")):
            with contextlib.suppress(OSError):
                http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=1).connect()
                return int(found[1])
        time.sleep(0.1)
    raise Failed(f"the server did not start\n{log.read_text(errors='replace')}")


def _classify(port: int, texts: list[str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/classify", json.dumps({"inputs": texts}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise Failed(f"the server answered {answer.status}: {body[:300]!r}")
    return len(texts)


KINDS: dict[str, Callable[[Workshop, Path, random.Random], str]] = {
    "kill run": kill_run,
    "kill predict": kill_predict,
    "damaged predictions for evaluate": damaged_predictions,
    "damaged texts for predict": damaged_texts,
    "damaged model for predict": damaged_model,
    "damaged run or cache for run": damaged_run,
    "damaged run for report": damaged_report,
    "bad arguments": bad_arguments,
    "full disk for run": full_disk_run,
    "full disk for predict": full_disk_predict,
    "full disk for the log of serve": full_disk_serve,
}

#: Shares of the time; 1 if not listed. A run takes much longer than the other commands.
SHARES = {"kill run": 4, "damaged run or cache for run": 3, "full disk for run": 2, "kill predict": 2}


def run_trial(shop: Workshop, kind: str, number: int, seed: int, count: Count, verbose: bool = False) -> None:
    rng, start = random.Random(f"{seed} {kind} {number}"), time.monotonic()
    with tempfile.TemporaryDirectory(dir=shop.root) as name, contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            (Path(name) / "cwd").mkdir()
            os.chdir(Path(name) / "cwd")  # bad arguments may be taken for the names of new files
            outcome = KINDS[kind](shop, Path(name), rng)
        except Exception as error:
            outcome = "failure"
            text = str(error) if isinstance(error, Failed) else traceback.format_exc()
            about = f"{printed.getvalue()}\n{text}"[-3000:].replace(name, "TRIAL").replace(str(shop.root), "ROOT")
            count.failures.append({"trial": f"{kind}:{number}", "problem": about})
        finally:
            os.chdir(shop.root)
    count.n += 1
    count.seconds += time.monotonic() - start
    count.outcomes[outcome] += 1
    if verbose:
        print(printed.getvalue())
    if outcome == "failure" or verbose:
        print(f"{kind}:{number}: {outcome}", *(failure["problem"] for failure in count.failures[-1:]), flush=True)


def inject(minutes: float, seed: int, only: str | None) -> int:
    import torch

    torch.set_num_threads(1)
    bulk_rows.CHUNK_ROWS = 128  # more chunks to be killed between
    for module in pkgutil.walk_packages(ebmcal.__path__, "ebmcal."):
        if module.name != "ebmcal.__main__":
            importlib.import_module(module.name)
    counts = {kind: Count() for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        shop = Workshop(Path(name))
        if only is not None:
            kind, _, number = only.rpartition(":")
            run_trial(shop, kind, int(number), seed, counts[kind], verbose=True)
            return counts[kind].outcomes["failure"]
        while time.monotonic() - start < 60 * minutes:
            kind = min(counts, key=lambda kind: counts[kind].seconds / SHARES.get(kind, 1))
            run_trial(shop, kind, counts[kind].n, seed, counts[kind])
    found = [{"fault": kind, "trials": c.n, **c.outcomes, "failures": c.failures} for kind, c in counts.items()]
    about = {"version": ebmcal.__version__, "minutes": round((time.monotonic() - start) / 60, 1), "seed": seed}
    (Path(__file__).parent / "faults.json").write_text(json.dumps(about | {"faults": found}, indent=2) + "\n")
    for row in found:
        print(f"{row['fault']:35}", *(f"{name} {row[name]:4}" for name in ("trials", *counts[row["fault"]].outcomes)))
    return int(any(count.outcomes["failure"] for count in counts.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="FAULT:NUMBER")
    options = parser.parse_args()
    sys.exit(inject(options.minutes, options.seed, options.only))
