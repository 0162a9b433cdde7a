"""Trainer callbacks: progress bar, checkpoints that are known to be whole, stopping on signals, PosCal's table.

They use the Trainer's own hooks, so a user may add theirs beside them.
"""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ebmcal.storage.sealing import damage, seal
from ebmcal.training.methods import Settings
from ebmcal.training.processes import any_process

FREQUENCIES = "label_frequencies.safetensors"


class Progress(TrainerCallback):
    """Calls `advance(step, logs)` at each step and log line; replaces the Trainer's own bar."""

    def __init__(self, advance: Callable[[int, dict[str, float]], None]) -> None:
        self.advance = advance

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        self.advance(state.global_step, logs or {})


class CompleteCheckpoints(TrainerCallback):
    """Writes checksums into each checkpoint once it is on disk: a checkpoint without them was cut off."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        PartialState().wait_for_everyone()  # each process writes its own generators
        if state.is_world_process_zero:
            seal(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a training, whole or not, oldest first."""
    found = [p for p in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _number_in(p).isdecimal()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written.

    >>> step_of(Path("checkpoint-12"))
    12
    """
    return int(_number_in(checkpoint))


def _number_in(checkpoint: Path) -> str:
    return checkpoint.name.rpartition("-")[2]


def last_checkpoint(folder: Path, say: Callable[[str], None] = lambda line: None) -> Path | None:
    """The newest checkpoint whose files are all whole, or None; those that are passed over are said."""
    for checkpoint in reversed(checkpoints(folder)):
        wrong = damage(checkpoint)
        if not wrong:
            return checkpoint
        say(f"{checkpoint.name} is damaged or was cut off ({', '.join(wrong)}): not used")
    return None


class StopOnSignal(TrainerCallback):
    """On SIGINT or SIGTERM: finish the step, save a checkpoint, stop. `stopped` says that it happened.

    Processes of a torchrun stop at the same step, whichever of them had the signal first. A second signal falls
    through to Python's own handler. Outside of the main thread, which alone gets signals, it does nothing.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        in_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if in_main else ():
            self._previous[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: Any) -> None:
        self.stopped = True
        signal.signal(number, self._previous[number])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stopped = any_process(self.stopped)
        if self.stopped:
            control.should_save = control.should_training_stop = True


class FrequencyRefresher(TrainerCallback):
    """Refreshes PosCal's table every few steps and keeps it with the checkpoints, so that a resumed run has it."""

    def __init__(self, every: int, refresh: Callable[[], None], settings: Settings) -> None:
        self.every, self.refresh, self.settings = every, refresh, settings

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.settings.frequencies is None and state.global_step:
            self._restore(Path(args.output_dir), state.global_step)
        if state.global_step and state.global_step % self.every == 0:
            self.refresh()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.settings.frequencies is not None and state.is_world_process_zero:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            save_file({"frequencies": self.settings.frequencies.contiguous()}, folder / FREQUENCIES)

    def _restore(self, folder: Path, step: int) -> None:
        file = folder / f"{PREFIX_CHECKPOINT_DIR}-{step}" / FREQUENCIES
        if file.exists():
            self.settings.frequencies = load_file(file)["frequencies"].to(torch.float32)
