"""Finetuning the noise LM: settings, held-out texts, and a directory per LM that is trained once and then reused.

    <root>/<key>/model/         the finished LM, with its card
    <root>/<key>/checkpoints/   while training; an interrupted training resumes from the last one

Without a number of steps, training stops when the loss on held-out texts stops falling.
"""

import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainingArguments

from ebmcal.noise.acceleration import prepare_training
from ebmcal.noise.causal_lm import CARD, NoiseLm
from ebmcal.noise.lm_training import (
    EVAL_STEPS,
    MaskedTexts,
    NoiseLmTrainer,
    StopWhenFlat,
    collate,
    held_out_loss,
    is_flat,
)
from ebmcal.noise.texts import Texts
from ebmcal.progress import Reporter
from ebmcal.storage import atomic_write, fingerprint, locked, read_json, remove
from ebmcal.training.runtime import checkpoint_step, checkpoints, fit, use_bf16

#: The most passes over the texts without a number of steps.
MAX_EPOCHS = 4

#: Every n-th text is held out, at most so many.
HELD_OUT_EVERY, MAX_HELD_OUT = 20, 64


@dataclass(frozen=True)
class LmSettings:
    """What the weights of a noise LM depend on besides the texts. With `label_names`, it reads the label first."""

    name: str = "gpt2"
    mode: str = "infill"
    mask_ratio: float = 0.4
    steps: int | None = None
    batch_size: int = 8
    learning_rate: float = 1e-4
    max_length: int = 128
    seed: int = 0
    precision: str = "auto"
    trust_remote_code: bool = False
    label_names: tuple[str, ...] = ()

    def key(self, data_fingerprint: str) -> str:
        return fingerprint("noise_lm", asdict(self), data_fingerprint)


def fit_noise_lm(
    settings: LmSettings, texts: Texts, data_fingerprint: str, root: Path, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    """Directory and card of the noise LM for these settings and texts; trained unless it exists below `root`."""
    work = root / settings.key(data_fingerprint)
    directory = work / "model"
    if not (directory / CARD).is_file():
        with locked(work, on_wait=lambda owner: reporter.info(f"noise LM: waiting for {owner}, which trains it")):
            if not (directory / CARD).is_file():
                _fit(settings, texts, directory, work / "checkpoints", reporter)
            remove(work / "checkpoints")
    return directory, read_json(directory / CARD)


def _fit(settings: LmSettings, texts: Texts, directory: Path, checkpoint_dir: Path, reporter: Reporter) -> None:
    start = time.monotonic()
    torch.manual_seed(settings.seed)
    lm = NoiseLm.from_pretrained(
        settings.name, settings.trust_remote_code, mode=settings.mode, mask_ratio=settings.mask_ratio,
        max_length=settings.max_length, label_names=settings.label_names,
    )  # fmt: skip
    prepare_training(lm.model)
    rows = np.arange(len(texts))
    held_out = rows[::HELD_OUT_EVERY][:MAX_HELD_OUT]
    train = np.setdiff1d(rows, held_out) if len(rows) > HELD_OUT_EVERY else rows
    evaluate = partial(held_out_loss, lm, texts, held_out, use_bf16(settings.precision))
    before = evaluate()
    n_steps = _n_steps(settings, len(train), checkpoint_dir)
    if n_steps:
        plan = MaskedTexts(lm, texts, train, n_steps * settings.batch_size, settings.seed)
        arguments = _training_arguments(settings, n_steps, checkpoint_dir)
        trainer = NoiseLmTrainer(lm.model, args=arguments, train_dataset=plan, data_collator=collate)
        if settings.steps is None:
            trainer.add_callback(StopWhenFlat(evaluate))
        fit(trainer, f"noise LM {settings.name}", reporter)
        n_steps = trainer.state.global_step
    card = asdict(settings) | {
        "steps_done": n_steps,
        "perplexity_before": math.exp(min(before, 50.0)),
        "perplexity": math.exp(min(evaluate(), 50.0)),
        "n_parameters": lm.model.num_parameters(),
        "seconds": round(time.monotonic() - start, 1),
    }
    with atomic_write(directory, directory=True) as temporary:
        lm.save(temporary, card)
    reporter.info(
        f"noise LM {settings.name}: {n_steps} steps, perplexity on held-out texts {card['perplexity_before']:.1f} -> "
        f"{card['perplexity']:.1f}"
    )


def _n_steps(settings: LmSettings, n_texts: int, checkpoint_dir: Path) -> int:
    """The most steps to train; no more than done if the last checkpoint was written when the loss was flat."""
    if settings.steps is not None:
        return settings.steps
    last = next(reversed(checkpoints(checkpoint_dir)), None)
    if last and is_flat(read_json(last / "trainer_state.json")["log_history"]):
        return checkpoint_step(last)
    return max(1, MAX_EPOCHS * n_texts // settings.batch_size)


def _training_arguments(settings: LmSettings, n_steps: int, checkpoint_dir: Path) -> TrainingArguments:
    is_open = settings.steps is None
    return TrainingArguments(
        str(checkpoint_dir), max_steps=n_steps, per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate, weight_decay=0.01, seed=settings.seed,
        lr_scheduler_type="constant_with_warmup" if is_open else "linear",  # a decay needs a known end
        warmup_steps=EVAL_STEPS // 2 if is_open else max(1, n_steps // 20), bf16=use_bf16(settings.precision),
        save_steps=20 * EVAL_STEPS if is_open else max(25, n_steps // 4), save_total_limit=2, logging_steps=1,
        logging_nan_inf_filter=False, use_cpu=not torch.cuda.is_available(), report_to="none", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
