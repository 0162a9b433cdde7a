"""Running a training on this machine: processes of a torchrun, checkpoints, resuming, signals."""

import contextlib
import ctypes
import importlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ebmcal.errors import EbmcalError, Interrupted, plural, unknown_name
from ebmcal.modeling.pretrained import quiet
from ebmcal.progress import Reporter
from ebmcal.storage import explain_disk_errors, write_text

#: Steps of the first training from which the duration of all is estimated: several periods of `noise_every`.
TIMED_STEPS = 12

#: Written into a checkpoint once it is complete, with the seconds of training until then; a checkpoint without it was
#: interrupted and is ignored.
COMPLETE_FILE = "complete"

#: Experiment trackers whose run stays open after a training, and the function of their package that closes it.
_CLOSE_TRACKER = {"wandb": "finish", "swanlab": "finish", "comet_ml": "end"}


def n_processes() -> int:
    """The number of processes of a torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the first process of a torchrun, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """The main process runs the block first; the others then find what it wrote."""
    if n_processes() == 1:
        yield
        return
    from accelerate import PartialState

    with PartialState(cpu=not torch.cuda.is_available()).main_process_first():
        yield


def device_batch_size(batch_size: int) -> int:
    """The share of a batch that each process gets."""
    if batch_size % n_processes():
        raise EbmcalError(f"A batch of {batch_size} cannot be divided among {n_processes()} processes.")
    return batch_size // n_processes()


@cache
def reuse_freed_memory() -> bool:
    """Let glibc keep freed memory instead of returning it to the system after each step; False without glibc.

    The system clears every page it hands out, which takes about a tenth of a training step on CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # constants of malloc.h
    settings = ((mmap_max, 0), (trim_threshold, 1 << 30), (top_pad, 1 << 27))
    return mallopt is not None and all(mallopt(option, value) for option, value in settings)


def checkpoint_step(checkpoint: Path) -> int:
    """The step after which a checkpoint was written.

    >>> checkpoint_step(Path("checkpoint-12"))
    12
    """
    return int(checkpoint.name.rpartition("-")[2])


def checkpoints(directory: Path) -> list[Path]:
    """The complete checkpoints of a training, oldest first."""
    found = [path.parent for path in directory.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{COMPLETE_FILE}")]
    return sorted(found, key=checkpoint_step)


def fit(trainer: Trainer, title: str, reporter: Reporter) -> float:
    """Train to the end, from the newest complete checkpoint if there is one; returns the seconds of all calls.

    SIGINT and SIGTERM save a checkpoint and raise `Interrupted`; the same call then continues.
    """
    directory, total = Path(trainer.args.output_dir), trainer.args.max_steps
    start = next(reversed(checkpoints(directory)), None)
    done = checkpoint_step(start) if start else 0
    if trainer.is_world_process_zero():
        for path in directory.glob("checkpoint-*"):  # interrupted while writing: the Trainer would count them
            if checkpoint_step(path) > done:
                shutil.rmtree(path)
    if start:
        reporter.info(f"{title}: continuing at step {done} of {total}")
    trainer.remove_callback(PrinterCallback)
    seconds = float((start / COMPLETE_FILE).read_text() or 0) if start else 0.0
    with quiet(), reporter.stage(title, total) as advance, stop_on_signal(title, seconds) as stopper:
        advance(done)
        trainer.add_callback(_Progress(advance, done))
        trainer.add_callback(stopper)
        try:
            with explain_disk_errors(directory):
                trainer.train(resume_from_checkpoint=str(start) if start else None)
        finally:
            for name in set(trainer.args.report_to) & _CLOSE_TRACKER.keys():
                getattr(importlib.import_module(name), _CLOSE_TRACKER[name])()
    if not trainer.is_fsdp_enabled and not all(p.isfinite().all() for p in trainer.model.parameters()):
        raise EbmcalError(f"{title}: training diverged: weights are not finite. Try a lower learning rate.")
    return stopper.seconds


class _Progress(TrainerCallback):
    """Calls `advance(n_steps, note)` after each step."""

    def __init__(self, advance: Callable[..., None], start: int) -> None:
        self.advance, self.last, self.notes = advance, start, dict[str, str]()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.advance(state.global_step - self.last, ", ".join(self.notes.values()))
        self.last = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        for name in {"loss", "noise_auroc"} & (logs or {}).keys():
            self.notes[name] = f"{name.replace('_auroc', ' AUROC')} {(logs or {})[name]:.3f}"


class DurationEstimate(TrainerCallback):
    """Reports once, after the first steps of the first training, about how long all trainings take.

    `costs` are those of the trainings that are left, the current one first, relative to each other.
    """

    def __init__(self, costs: Sequence[float], reporter: Reporter) -> None:
        self.costs, self.reporter, self.start = list(costs), reporter, (-1, 0.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        (first, since), now = self.start, time.monotonic()
        if first < 0:  # the first step is slower
            self.start = state.global_step, now
        if not self.costs or first < 0 or state.global_step - first < TIMED_STEPS:
            return
        per_step = (now - since) / TIMED_STEPS
        own = per_step * (state.max_steps - first + 1)
        total = own + per_step * state.max_steps * sum(self.costs[1:]) / self.costs[0]
        each = f": {len(self.costs)} trainings of about {_duration(total / len(self.costs))}" * (len(self.costs) > 1)
        self.reporter.info(f"training time: about {_duration(total)}{each}")
        self.costs = []


def _duration(seconds: float) -> str:
    """A duration in the unit that fits.

    >>> _duration(0.2), _duration(34), _duration(61), _duration(600), _duration(9000)
    ('1 second', '30 seconds', '1 minute', '10 minutes', '2.5 hours')
    """
    if seconds < 55:
        return plural(max(int(round(seconds, -1 if seconds > 10 else 0)), 1), "second")
    n, unit = (round(seconds / 60), "minute") if seconds < 5400 else (round(seconds / 3600, 1), "hour")
    return f"{n:g} {unit}{'s' * (n != 1)}"


class _CompleteOrStop(TrainerCallback):
    """Marks checkpoints that all processes have written; after a signal, saves one and raises `Interrupted`."""

    def __init__(self, title: str, seconds: float) -> None:
        self.title, self.stopped, self.start = title, False, time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        """The seconds of training, those before an interruption included."""
        return time.monotonic() - self.start

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        from accelerate import PartialState

        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            write_text(checkpoint / COMPLETE_FILE, f"{self.seconds:.1f}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.world_size > 1:
            from accelerate.utils import reduce

            self.stopped = bool(reduce(torch.tensor(float(self.stopped), device=args.device), "sum").item())
        if self.stopped:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.stopped:
            raise Interrupted(
                f"{self.title}: stopped at step {state.global_step} of {state.max_steps}; a checkpoint is saved. "
                "Run the same command again to continue."
            )


@contextlib.contextmanager
def stop_on_signal(title: str, seconds: float = 0.0) -> Iterator[_CompleteOrStop]:
    """A callback that finishes the step, saves a checkpoint and stops on SIGINT or SIGTERM.

    A second signal has its usual effect. Signals arrive in the main thread only; elsewhere there are none.
    """
    callback, previous = _CompleteOrStop(title, seconds), dict[int, Any]()

    def stop(number: int, _: Any) -> None:
        callback.stopped = True
        for each, handler in previous.items():
            signal.signal(each, handler)

    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield callback
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def check_trackers(names: Sequence[str]) -> None:
    """Raise for experiment trackers that the Trainer does not know or that are not installed."""
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise unknown_name("experiment tracker", name, INTEGRATION_TO_CALLBACK)
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:
            raise EbmcalError(
                f"The experiment tracker {name} cannot be used: {' '.join(str(error).split())}"
            ) from error
