"""Running a training to its end: resuming from the newest complete checkpoint, stopping on signals."""

import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from transformers import PrinterCallback, Trainer
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from ebmcal.errors import EbmcalError, Interrupted, unknown_name
from ebmcal.modeling.pretrained import quiet
from ebmcal.progress import Reporter
from ebmcal.storage import explain_disk_errors
from ebmcal.training.callbacks import MarkComplete, Progress, StopOnSignal, checkpoint_step, checkpoints
from ebmcal.training.environment import reuse_freed_memory

#: Experiment trackers whose run stays open after a training, and the function of their package that closes it.
_CLOSE_TRACKER = {"wandb": "finish", "swanlab": "finish", "comet_ml": "end"}


def fit(trainer: Trainer, title: str, reporter: Reporter) -> None:
    """Train to the end, from the newest complete checkpoint if there is one.

    SIGINT and SIGTERM save a checkpoint and raise `Interrupted`; the same call then continues.
    """
    reuse_freed_memory()
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
    with quiet(), StopOnSignal() as stopper, reporter.stage(title, total) as advance:
        advance(done)
        for callback in (Progress(advance, done), MarkComplete(), stopper):
            trainer.add_callback(callback)
        try:
            with explain_disk_errors(directory):
                trainer.train(resume_from_checkpoint=str(start) if start else None)
        finally:
            for name in set(trainer.args.report_to) & _CLOSE_TRACKER.keys():
                getattr(importlib.import_module(name), _CLOSE_TRACKER[name])()
    if stopper.stopped and trainer.state.global_step < total:
        raise Interrupted(
            f"{title}: stopped at step {trainer.state.global_step} of {total}; a checkpoint is saved. "
            "Run the same command again to continue."
        )
    if not trainer.is_fsdp_enabled and not all(p.isfinite().all() for p in trainer.model.parameters()):
        raise EbmcalError(f"{title}: training diverged: weights are not finite. Try a lower learning rate.")


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
