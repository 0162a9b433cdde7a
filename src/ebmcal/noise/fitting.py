"""Finetuning the noise LM on a task's texts: resumable, and done once for each combination of what made it.

Without a number of steps it goes on until the loss on held-out texts no longer falls. Leaves a folder with weights,
tokenizer and a card: settings, perplexity before and after on those same texts.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from ebmcal.data import Texts
from ebmcal.models.loading import load_language_model, quiet
from ebmcal.noise.lm import (
    CARD,
    FORMAT,
    MaskedTexts,
    NoiseLm,
    NoiseLmTrainer,
    add_markers,
    collate,
    held_out_loss,
    perplexity,
    prepare_training,
)
from ebmcal.progress import Reporter
from ebmcal.storage.atomic import read_json, write_json
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.sealing import is_whole, writing_folder
from ebmcal.training.callbacks import last_checkpoint, step_of
from ebmcal.training.running import run, training_arguments, uses_bf16

#: Steps between two looks at the held-out loss, which must fall by this share for the fitting to go on.
LOOK_EVERY, MIN_FALL = 10, 0.05

#: Passes over the texts, at most, of a fitting without a number of steps.
MAX_PASSES = 4

HELD_OUT_LOSS = "held_out_loss"


@dataclass(frozen=True)
class NoiseLmSettings:
    """Everything the weights of a noise LM depend on, besides the texts.

    `steps` None: until the loss on held-out texts no longer falls. With `label_names`, the LM reads the label first.
    """

    name: str = "gpt2"
    mode: str = "infill"
    mask_ratio: float = 0.4
    steps: int | None = None
    batch_size: int = 8
    learning_rate: float = 5e-6
    max_length: int = 128
    seed: int = 0
    precision: str = "auto"
    trust_remote_code: bool = False
    label_names: tuple[str, ...] = ()

    def key(self, texts: Texts) -> str:
        return fingerprint("noise_lm", FORMAT, asdict(self), texts.fingerprint)


class Encoded(Sequence[np.ndarray]):
    """Texts as token ids of the LM, encoded when they are asked for: memory does not grow with the texts."""

    def __init__(self, lm: NoiseLm, texts: Texts) -> None:
        self.lm, self.texts = lm, texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]  # nobody asks for slices
        return self.lm.encode(self.texts.rows([i]))[0]


def fit(settings: NoiseLmSettings, train: Texts, held_out: Texts, folder: Path, reporter: Reporter) -> dict[str, Any]:
    """Finetune into `folder` unless it is there already, whole; returns the card."""
    work = folder.with_name(folder.name + ".work")
    if is_whole(folder, f"noise LM {folder.name}", reporter.say):
        shutil.rmtree(work, ignore_errors=True)  # of a process that was killed before it could
        return read_json(folder / CARD)
    torch.manual_seed(settings.seed)
    lm, start = _fresh(settings), time.monotonic()
    prepare_training(lm.model)
    look = partial(held_out_loss, lm, Encoded(lm, held_out), held_out.labels, bf16=uses_bf16(settings.precision))
    before, n_steps = look(), _n_steps(settings, len(train), work)
    history = _train(settings, lm, train, n_steps, look, work, reporter) if n_steps else []
    after = _loss_at_the_end(history, look) if history else before
    card = _card(settings, lm, before, after, history, time.monotonic() - start)
    with quiet(), writing_folder(folder) as aside:
        lm.model.save_pretrained(aside)
        lm.tokenizer.save_pretrained(aside)
        write_json(aside / CARD, card)
    shutil.rmtree(work, ignore_errors=True)
    reporter.say(
        f"noise LM {settings.name}: {card['steps_done']} steps, perplexity on held-out texts "
        f"{card['perplexity_before']:.1f} -> {card['perplexity']:.1f}"
    )
    return card


def _train(
    settings: NoiseLmSettings, lm: NoiseLm, train: Texts, n_steps: int, look: Callable[[], float], work: Path,
    reporter: Reporter,
) -> list[dict[str, float]]:  # fmt: skip
    """Train for `n_steps`, or until the held-out loss no longer falls; returns the log."""
    exact = settings.steps is not None
    args = training_arguments(
        work, n_steps=n_steps, batch_size=settings.batch_size, learning_rate=settings.learning_rate,
        warmup_steps=max(1, n_steps // 20) if exact else LOOK_EVERY // 2, precision=settings.precision,
        seed=settings.seed, weight_decay=0.01, save_steps=max(25, n_steps // 4) if exact else 20 * LOOK_EVERY,
        schedule="linear" if exact else "constant_with_warmup",  # where the end is not known, nothing can lead up to it
    )  # fmt: skip
    plan = MaskedTexts(lm, Encoded(lm, train), n_steps * settings.batch_size, settings.seed, train.labels)
    trainer = NoiseLmTrainer(lm.model, args=args, train_dataset=plan, data_collator=collate)
    if not exact:
        trainer.add_callback(StopWhenFlat(look))
    run(trainer, f"noise LM {settings.name}", reporter)
    return trainer.state.log_history


class StopWhenFlat(TrainerCallback):
    """Ends the fitting when the held-out loss no longer falls. It remembers nothing: what it has seen is in the log."""

    def __init__(self, look: Callable[[], float]) -> None:
        self.look = look

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % LOOK_EVERY == 0:
            state.log_history.append({HELD_OUT_LOSS: self.look(), "step": state.global_step})
            control.should_training_stop = control.should_training_stop or is_flat(state.log_history)


def is_flat(history: Sequence[dict[str, float]]) -> bool:
    """Whether the last held-out loss of a log is not clearly below the least of those before.

    >>> is_flat([{HELD_OUT_LOSS: 3.0}, {HELD_OUT_LOSS: 2.0}]), is_flat([{HELD_OUT_LOSS: 2.0}, {HELD_OUT_LOSS: 1.95}])
    (False, True)
    """
    *earlier, last = [line[HELD_OUT_LOSS] for line in history if HELD_OUT_LOSS in line] or [0.0]
    return bool(earlier) and last > (1 - MIN_FALL) * min(earlier)


def _loss_at_the_end(history: Sequence[dict[str, float]], look: Callable[[], float]) -> float:
    """The held-out loss behind the last step, which the log has where that loss ended the fitting."""
    looks = {line["step"]: line[HELD_OUT_LOSS] for line in history if HELD_OUT_LOSS in line}
    last = max(line["step"] for line in history)
    return looks[last] if last in looks else look()


def _n_steps(settings: NoiseLmSettings, n_texts: int, work: Path) -> int:
    """Steps to take at most; none more from a checkpoint that was saved when the loss had stopped falling."""
    if settings.steps is not None:
        return settings.steps
    checkpoint = last_checkpoint(work)
    if checkpoint and is_flat(read_json(checkpoint / "trainer_state.json")["log_history"]):
        return step_of(checkpoint)
    return max(1, MAX_PASSES * n_texts // settings.batch_size)


def _fresh(settings: NoiseLmSettings) -> NoiseLm:
    model, tokenizer = load_language_model(settings.name, settings.trust_remote_code)
    return NoiseLm(
        model, tokenizer, add_markers(model, tokenizer), settings.mode, settings.mask_ratio, settings.max_length,
        settings.label_names,
    )  # fmt: skip


def _card(
    settings: NoiseLmSettings, lm: NoiseLm, before: float, after: float, history: list[dict[str, float]], seconds: float
) -> dict[str, Any]:
    losses = [line["loss"] for line in history if "loss" in line]
    return asdict(settings) | {
        "format": FORMAT,
        "label_names": list(settings.label_names),
        "steps_done": len(losses),
        "perplexity_before": perplexity(before),
        "perplexity": perplexity(after),
        "n_parameters": lm.model.num_parameters(),
        "loss_first": losses[0] if losses else None,
        "loss_last": float(np.mean(losses[-10:])) if losses else None,
        "seconds": round(seconds, 1),
    }
