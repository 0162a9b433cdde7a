"""Commands in processes of their own that can be killed: forked from one process that has everything imported.

Importing torch and transformers takes longer than the tiny work of these tests. So a helper imports them once, and each
command is a fork of it in a session of its own: a real process with real files, and what kills it kills nothing else.
`Worker.run(..., forked=False)` starts `python -m ebmcal` instead.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import TESTS
from .playground import make_inputs

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "COLUMNS": "200",
    "NO_COLOR": "1", "TERM": "dumb",
}  # fmt: skip

#: In place of a command: makes what the commands work on, in a process of its own, for it uses torch.
MAKE_INPUTS = "make inputs"

#: Audit events of Python that change what is on disk; files are opened for writing, too, but by "open".
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree", "tempfile.mkstemp"}


#: Inside what a command can be killed: module, class and method that is called again and again there.
INSIDE = {
    "training step": ("ebmcal.training.trainer", "JointTrainer", "micro_loss"),
    "sampling": ("ebmcal.noise.decoding", "Running", "feed"),
}

#: The exit code of a command that had to be ended because it hung, as `timeout` gives it.
HUNG = 124


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it), what it said, how long it took."""

    code: int
    said: str
    seconds: float
    n_changes: int = 0
    seconds_after_signal: float = 0.0
    calls: dict[str, int] | None = None  # of each of INSIDE

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Worker:
    """Runs one command at a time.

    >>> with Worker() as worker:  # doctest: +SKIP
    ...     worker.run(["tasks"], Path.cwd()).code
    0
    """

    def __enter__(self) -> "Worker":
        self.helper = subprocess.Popen(
            [sys.executable, "-m", f"{TESTS.name}.faults.worker"], cwd=TESTS.parent, env=os.environ | ENVIRONMENT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self.helper.stdin.close()
        self.helper.wait(30)
        self.helper.stdout.close()

    def run(
        self,
        arguments: list[str],
        folder: Path,
        *,
        kill_after: float | None = None,
        kill_at_change: int | None = None,
        kill_when: str | None = None,
        kill_inside: tuple[str, int] | None = None,
        signal_after: tuple[int, float] | None = None,
        forked: bool = True,
        timeout: float = 300,
    ) -> Ended:
        """A command in `folder`, to its end or until it is killed: at a moment, just before its n-th change on
        disk, before the first one after a file that matches `kill_when` is there, or inside the n-th call of one of
        INSIDE.

        `signal_after` sends another signal at a moment. Moments count from the start, or, for a process that is not
        forked and has to import first, from its first word. A command that hangs is ended after `timeout`: code 124.
        """
        said = folder.parent / f"{folder.name}.said"
        start = time.monotonic()
        pid, ended = self._start(arguments, folder, said, (kill_at_change, kill_when, kill_inside), forked)
        number, moment = (signal.SIGKILL, kill_after) if kill_after is not None else signal_after or (None, timeout)
        answer = None if forked else _until_it_speaks(said, ended, timeout)
        answer = answer or ended(max(0.0, moment))
        sent = time.monotonic()
        if answer is None and number is not None:
            _send(pid, number)
            answer = ended(timeout)
        if answer is None:
            _send(pid, signal.SIGKILL)
            answer = ended(60) | {"code": HUNG}
        now = time.monotonic()
        text = said.read_text(encoding="utf-8", errors="replace")
        counts = answer.get("changes", 0), now - sent, answer.get("calls")
        return Ended(answer["code"], text, now - start, *counts)

    def _start(self, arguments: list[str], folder: Path, said: Path, kill_at: tuple, forked: bool) -> tuple:
        if not forked:
            command = [sys.executable, "-m", "ebmcal", *arguments]
            with open(said, "wb") as sink:
                process = subprocess.Popen(
                    command, cwd=folder, env=os.environ | ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=sink,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            return process.pid, lambda seconds: _wait(process, seconds)
        request = {"arguments": arguments, "folder": str(folder), "said": str(said), "kill_at": kill_at}
        self.helper.stdin.write(json.dumps(request) + "\n")
        self.helper.stdin.flush()
        return self._answer()["pid"], self._answer

    def _answer(self, seconds: float | None = None) -> Any:
        """The next line of the helper, or None when none comes within `seconds`."""
        import select

        if seconds is not None and not select.select([self.helper.stdout], [], [], seconds)[0]:
            return None
        line = self.helper.stdout.readline()
        if not line:
            raise RuntimeError("The helper of the fault tests ended.")
        return json.loads(line)


def _wait(process: subprocess.Popen, seconds: float) -> dict[str, int] | None:
    try:
        return {"code": process.wait(seconds)}
    except subprocess.TimeoutExpired:
        return None


def _until_it_speaks(said: Path, ended: Any, timeout: float) -> dict[str, int] | None:
    """Wait for the first output; what the command ended with, if it did."""
    stop, answer = time.monotonic() + timeout, None
    while answer is None and not said.stat().st_size and time.monotonic() < stop:
        answer = ended(0.02)
    return answer


def _send(pid: int, number: int) -> None:
    """To the command and everything that it started: it leads a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def serve() -> None:
    """The helper: import everything, then fork for every request and say how it ended."""
    import ebmcal.benchmark
    import ebmcal.cli.benchmark
    import ebmcal.cli.calibrate
    import ebmcal.cli.demo
    import ebmcal.cli.evaluate
    import ebmcal.cli.noise
    import ebmcal.cli.predict
    import ebmcal.cli.report
    import ebmcal.cli.run
    import ebmcal.cli.tasks
    import ebmcal.cli.train
    import ebmcal.model
    import ebmcal.pipeline.run_noise
    import ebmcal.pipeline.stages  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    _tell(answers, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        count, counted = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(count)
            _become(request, counted)
        os.close(counted)
        _tell(answers, {"pid": pid})
        _, status = os.waitpid(pid, 0)
        with os.fdopen(count) as pipe:
            counts = json.loads(pipe.read() or "{}")
        _tell(answers, {"code": os.waitstatus_to_exitcode(status), **counts})


def _tell(answers: Any, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def _become(request: dict[str, Any], counted: int) -> None:
    """The forked process: run the command, tell the number of its changes on disk, end."""
    os.setsid()
    os.chdir(request["folder"])
    sink = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    source = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((source, 0), (sink, 1), (sink, 2)):
        os.dup2(old, new)
    *at_change, inside = request["kill_at"]
    changes, calls = _count_changes(os.getcwd(), at_change), _count_calls(inside)
    code = 1
    try:
        from ebmcal.cli import main

        if request["arguments"] == [MAKE_INPUTS]:
            make_inputs(Path.cwd())
        else:
            main(request["arguments"])
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(counted, json.dumps({"changes": changes[0], "calls": calls}).encode())
        os._exit(code)


def _count_calls(kill_inside: tuple[str, int] | None) -> dict[str, int]:
    """Count the calls of INSIDE; SIGKILL inside the one that is asked for."""
    calls = dict.fromkeys(INSIDE, 0)

    def watch(name: str, module: str, owner: str, method: str) -> None:
        kind = getattr(importlib.import_module(module), owner)
        original = getattr(kind, method)

        def watched(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            done = original(*arguments, **options)
            if kill_inside is not None and [name, calls[name]] == list(kill_inside):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        setattr(kind, method, watched)

    for name, place in INSIDE.items():
        watch(name, *place)
    return calls


def _count_changes(folder: str, kill_at: tuple[int | None, str | None]) -> list[int]:
    """Count the changes of files below a folder; SIGKILL just before the one that is asked for."""
    count, (number, pattern) = [0], kill_at

    def hook(event: str, values: tuple) -> None:
        if event == "open":
            path, mode, flags = values
            if not (isinstance(mode, str) and set(mode) & set("wax+")) and not (flags or 0) & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in CHANGES:
            return
        else:
            path = values[0]
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        if os.path.abspath(os.fsdecode(path)).startswith(folder):
            count[0] += 1
            if count[0] == number or (pattern and any(Path(folder).glob(pattern))):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


if __name__ == "__main__":
    serve()
