"""What every training of ours shares: the Trainer's arguments, the precision, resuming, stopping on signals."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.models.loading import quiet
from ebmcal.models.memory import reuse_freed_memory
from ebmcal.progress import Reporter
from ebmcal.storage.atomic import explaining_disk
from ebmcal.training.callbacks import CompleteCheckpoints, Progress, StopOnSignal, checkpoints, last_checkpoint, step_of
from ebmcal.training.processes import n_processes
from ebmcal.training.trackers import close_trackers

#: Tries a product in bfloat16 and times it against float32, in a process of its own: it may die of it.
BF16_TRIAL = """
import time, torch
torch.set_num_threads(1)

def seconds(dtype):
    x, w = torch.ones(1024, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    torch.nn.functional.linear(x, w)
    start = time.perf_counter()
    for _ in range(10):
        torch.nn.functional.linear(x, w)
    return time.perf_counter() - start

print(min(seconds(torch.float32) for _ in range(3)) / min(seconds(torch.bfloat16) for _ in range(3)))
"""

#: bfloat16 must be quicker than float32 by this factor to be taken by itself.
BF16_MIN_GAIN = 1.2

#: Processes that are started by this one find the outcome of the trial here.
BF16_KNOWN = "EBMCAL_BF16_GAIN"


def bf16_gain() -> float:
    """How many times quicker than float32 a product in bfloat16 is on this CPU; 0 where it ends the process.

    What a CPU says of itself is not enough: virtual machines announce AMX and end a process that uses it, and where
    bfloat16 is emulated it is twenty times slower.
    """
    if BF16_KNOWN not in os.environ:
        tried = subprocess.run([sys.executable, "-c", BF16_TRIAL], capture_output=True, text=True, check=False)
        os.environ[BF16_KNOWN] = tried.stdout.strip() if tried.returncode == 0 else "0"
    return float(os.environ[BF16_KNOWN])


def has_fast_bf16() -> bool:
    """Whether bfloat16 is done in hardware, and quicker than float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    probes = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(probe() for probe in probes if probe is not None) and bf16_gain() > BF16_MIN_GAIN


def uses_bf16(precision: str) -> bool:
    """`auto` takes bfloat16 where the hardware has it."""
    if precision == "bf16" and not torch.cuda.is_available() and not bf16_gain():
        raise EbmcalError(
            "This CPU says that it multiplies in bfloat16, and a trial of it ended the process (seen on virtual "
            "machines with AMX). Use --precision fp32 or auto; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 leaves AMX out."
        )
    return precision == "bf16" or (precision == "auto" and has_fast_bf16())


def training_arguments(
    folder: Path, *, n_steps: int, batch_size: int, learning_rate: float, warmup_steps: int, precision: str, seed: int,
    weight_decay: float, save_steps: int, eval_steps: int | None = None, schedule: str = "linear",
    report_to: Sequence[str] = (), **more: Any,
) -> TrainingArguments:  # fmt: skip
    """Arguments for one pass over a plan of `n_steps` × `batch_size` positions (a global batch: processes share it)."""
    return TrainingArguments(
        str(folder),
        max_steps=n_steps,
        per_device_train_batch_size=_share_of(batch_size),
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        lr_scheduler_type=schedule,
        weight_decay=weight_decay,
        bf16=uses_bf16(precision),
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        eval_strategy="steps" if eval_steps else "no",
        eval_steps=eval_steps,
        save_strategy="steps",
        save_steps=save_steps,
        save_total_limit=2,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=list(report_to) or "none",
        disable_tqdm=True,
        remove_unused_columns=False,
        average_tokens_across_devices=False,
        ddp_find_unused_parameters=False,  # every parameter takes part in every pass
        **more,
    )


def check_machine(batch_size: int, precision: str, fsdp: bool) -> None:
    """Refuse, before any work, what the processes and processors at hand cannot do."""
    _share_of(batch_size)
    if precision == "bf16":
        uses_bf16(precision)
    if fsdp:
        _check_sharding()


def _share_of(batch_size: int) -> int:
    if batch_size % n_processes():
        raise EbmcalError(f"A batch of {batch_size} cannot be shared by {n_processes()} processes; take a multiple.")
    return batch_size // n_processes()


def sharding(encoder: nn.Module) -> dict[str, Any]:
    """Arguments that give each process a part of the weights, gradients and optimizer states (FSDP2)."""
    _check_sharding()
    layers = list(getattr(encoder, "_no_split_modules", None) or [])
    return {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": layers}}


def _check_sharding() -> None:
    if n_processes() == 1:
        raise EbmcalError("--fsdp divides a model among processes: torchrun --nproc_per_node N -m ebmcal train …")
    if not torch.cuda.is_available():  # accelerate would say nothing and keep whole copies
        raise EbmcalError("--fsdp needs GPUs. Without it, torchrun keeps a whole copy of the model in each process.")


def gathered_weights(trainer: Trainer) -> dict[str, Any] | None:
    """All weights, where processes hold parts of them: every process has to call it. None where each has them all."""
    return trainer.accelerator.get_state_dict(trainer.model_wrapped) if trainer.is_fsdp_enabled else None


def run(trainer: Trainer, title: str, reporter: Reporter) -> None:
    """Train to the end, from the newest whole checkpoint if there is one; a signal saves a checkpoint and stops."""
    reuse_freed_memory()
    folder, total = Path(trainer.args.output_dir), trainer.args.max_steps
    start = last_checkpoint(folder, lambda line: reporter.say(f"{title}: {line}"))
    done = step_of(start) if start else 0
    if trainer.is_world_process_zero():
        # The Trainer would keep them in place of good ones.
        for damaged in (c for c in checkpoints(folder) if step_of(c) > done):
            shutil.rmtree(damaged)
    if start:
        reporter.say(f"{title}: goes on at step {done} of {total}")
    trainer.remove_callback(PrinterCallback)
    with quiet(), StopOnSignal() as stopper, reporter.stage(title, total) as advance:
        advance(done)
        for callback in (Progress(_step_reporter(advance, done)), CompleteCheckpoints(), stopper):
            trainer.add_callback(callback)
        try:
            with explaining_disk(folder):
                trainer.train(resume_from_checkpoint=str(start) if start else None)
        finally:
            close_trackers(trainer.args.report_to)
        if stopper.stopped and trainer.state.global_step < total:
            raise Interrupted(
                f"{title}: stopped at step {trainer.state.global_step} of {total}; a checkpoint is saved. "
                "Run the same command again to go on."
            )
        if not trainer.is_fsdp_enabled and not all(p.isfinite().all() for p in trainer.model.parameters()):
            raise EbmcalError(
                f"{title}: training diverged in its last steps: weights are not finite. Try a smaller learning rate."
            )


def _step_reporter(advance: Any, done: int) -> Any:
    shown = {"loss": "loss", "noise_accuracy": "told apart", "eval_ece_classwise": "ECE class-wise"}
    last, notes = done, {}

    def report(step: int, logs: dict[str, float]) -> None:
        nonlocal last
        notes.update({label: f"{label} {logs[key]:.3f}" for key, label in shown.items() if key in logs})
        advance(step - last, ", ".join(notes.values()))
        last = step

    return report
