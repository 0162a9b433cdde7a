"""Finetuning the noise LM on a task's texts: resumable, and done once for each combination of what made it.

Leaves a folder with weights, tokenizer and a card: settings, perplexity before and after on held-out texts.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebmcal.data import Texts
from ebmcal.models.loading import TINY, load_language_model, quiet
from ebmcal.noise.lm import (
    CARD,
    MaskedTexts,
    NoiseLm,
    NoiseLmTrainer,
    add_markers,
    collate,
    perplexity,
    prepare_packing,
)
from ebmcal.noise.tiny import build_tiny
from ebmcal.progress import Reporter
from ebmcal.storage.atomic import read_json, write_json
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.sealing import is_whole, writing_folder
from ebmcal.training.running import run, training_arguments

#: Texts that the vocabulary of `tiny` is learned from, at most.
TINY_TEXTS = 100_000


@dataclass(frozen=True)
class NoiseLmSettings:
    """Everything the weights of a noise LM depend on, besides the texts."""

    name: str = "gpt2"
    mode: str = "infill"
    mask_ratio: float = 0.4
    steps: int = 1000
    batch_size: int = 8
    learning_rate: float = 5e-6
    max_length: int = 128
    seed: int = 0
    precision: str = "auto"
    trust_remote_code: bool = False

    def key(self, texts: Texts) -> str:
        return fingerprint("noise_lm", asdict(self), texts.fingerprint)


class Encoded(Sequence):
    """Texts as token ids of the LM, encoded when they are asked for: memory does not grow with the texts."""

    def __init__(self, lm: NoiseLm, texts: Texts) -> None:
        self.lm, self.texts = lm, texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]
        return self.lm.encode(self.texts.rows([i]))[0]


def fit(settings: NoiseLmSettings, train: Texts, held_out: Texts, folder: Path, reporter: Reporter) -> dict[str, Any]:
    """Finetune into `folder` unless it is there already, whole; returns the card."""
    work = folder.with_name(folder.name + ".work")
    if is_whole(folder, f"noise LM {folder.name}", reporter.say):
        shutil.rmtree(work, ignore_errors=True)  # of a process that was killed before it could
        return read_json(folder / CARD)
    torch.manual_seed(settings.seed)
    lm = _fresh(settings, train)
    prepare_packing(lm.model)
    before = perplexity(lm, Encoded(lm, held_out))
    start = time.monotonic()
    args = training_arguments(
        work, n_steps=settings.steps, batch_size=settings.batch_size, learning_rate=settings.learning_rate,
        warmup_steps=max(1, settings.steps // 20), precision=settings.precision, seed=settings.seed, weight_decay=0.01,
        save_steps=max(25, settings.steps // 4),
    )  # fmt: skip
    plan = MaskedTexts(lm, Encoded(lm, train), settings.steps * settings.batch_size, settings.seed)
    trainer = NoiseLmTrainer(lm.model, args=args, train_dataset=plan, data_collator=collate)
    run(trainer, f"noise LM {settings.name}", reporter)
    card = _card(settings, lm, before, perplexity(lm, Encoded(lm, held_out)), time.monotonic() - start, trainer)
    if trainer.is_world_process_zero():
        with quiet(), writing_folder(folder) as aside:
            lm.model.save_pretrained(aside)
            lm.tokenizer.save_pretrained(aside)
            write_json(aside / CARD, card)
        shutil.rmtree(work, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    reporter.say(f"noise LM {settings.name}: perplexity on held-out texts {before:.1f} -> {card['perplexity']:.1f}")
    return card


def _fresh(settings: NoiseLmSettings, train: Texts) -> NoiseLm:
    if settings.name == TINY:
        step = -(-len(train) // TINY_TEXTS)
        some = train.take(np.arange(0, len(train), step))  # counting the words of all texts would take memory
        model, tokenizer = build_tiny(t for batch in some.batches() for row in batch for t in row if t)
    else:
        model, tokenizer = load_language_model(settings.name, settings.trust_remote_code)
    markers = add_markers(model, tokenizer)
    return NoiseLm(model, tokenizer, markers, settings.mode, settings.mask_ratio, settings.max_length)


def _card(
    settings: NoiseLmSettings, lm: NoiseLm, before: float, after: float, seconds: float, trainer: NoiseLmTrainer
) -> dict[str, Any]:
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return asdict(settings) | {
        "perplexity_before": before,
        "perplexity": after,
        "n_parameters": lm.model.num_parameters(),
        "loss_first": losses[0],
        "loss_last": float(np.mean(losses[-10:])),
        "seconds": round(seconds, 1),
    }
