"""Trainer callbacks: progress bar, complete checkpoints, stopping on signals."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

#: Written into a checkpoint once it is complete; a checkpoint without it was interrupted and is ignored.
COMPLETE_FILE = "complete"


#: Logged values that the progress bar shows.
SHOWN = {"loss": "loss", "noise_auroc": "noise AUROC"}


class Progress(TrainerCallback):
    """Calls `advance(n_steps, note)` after each step."""

    def __init__(self, advance: Callable[..., None], start: int) -> None:
        self.advance, self.last, self.notes = advance, start, dict[str, str]()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.advance(state.global_step - self.last, ", ".join(self.notes.values()))
        self.last = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        found = {title: (logs or {}).get(key) for key, title in SHOWN.items()}
        self.notes.update({title: f"{title} {value:.3f}" for title, value in found.items() if value is not None})


class MarkComplete(TrainerCallback):
    """Marks each checkpoint once all processes have written it."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / COMPLETE_FILE).touch()


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


class StopOnSignal(TrainerCallback):
    """On SIGINT or SIGTERM: finish the step, save a checkpoint and stop; `stopped` is then true.

    All processes of a torchrun stop at the same step. A second signal has its usual effect. Signals arrive in the main
    thread only; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: Any) -> None:
        self.stopped = True
        signal.signal(number, self._previous[number])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.world_size > 1:
            self.stopped = bool(reduce(torch.tensor(float(self.stopped), device=PartialState().device), "sum").item())
        if self.stopped:
            control.should_save = control.should_training_stop = True
