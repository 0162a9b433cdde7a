"""The recipe: what a run does where its config leaves it open, from the task, the data and the encoder.

A published task at its published length gets the published settings. Everything else gets settings that train small
data to its plateau of accuracy; first trials chose them, not yet a study over several tasks.
"""

from typing import Any

from ebmcal.config import STEPS, ResolvedConfig, RunConfig, long_warmup
from ebmcal.errors import EbmcalError
from ebmcal.noise_setting import parse_noise
from ebmcal.tasks import Task, TrainingDefaults, find_task

#: Noise where nothing else is asked for: fresh for every step, no language model.
NOISE = "splice"

#: Noise of a published run.
PUBLISHED_NOISE = "infill:gpt2"

#: K and lambda.
NOISE_RATIO = 1
ENERGY_WEIGHT = 0.4

#: Of the noise language model: SmolLM2 writes whole texts after some twenty such steps (perplexity 59 to 10).
NOISE_LM_BATCH, NOISE_LM_RATE = 16, 2e-4

#: Passes over the data: ten on small data, fewer when there are more rows, three at least.
MAX_EPOCHS, MIN_EPOCHS, ROWS_AT_MAX = 10, 3, 5000

#: Peak learning rate of encoders narrower than `NARROW`, and of the others.
NARROW, NARROW_RATE, WIDE_RATE = 512, 1e-4, 3e-5


def resolve(config: RunConfig, n_train: int, hidden_size: int) -> ResolvedConfig:
    """Fill in what was left open, from the task and the size of the data and the encoder."""
    published = _published(config, find_task(config.task) if config.task else None)
    batch = config.batch_size or (published.batch_size if published else 32 if n_train >= 2000 else 16)
    if n_train < batch:
        raise EbmcalError(
            f"There are {n_train} training rows and a batch has {batch}: take --batch-size {n_train} or less."
        )
    steps = config.steps or (published.steps if published and not config.epochs else None)
    steps = steps or max(1, round((config.epochs or epochs_for(n_train)) * n_train / batch))
    if steps > STEPS:
        raise EbmcalError(f"That makes {steps:,} training steps; {STEPS:,} at most. Take fewer epochs.")
    if config.warmup_steps and config.warmup_steps > steps:
        raise EbmcalError(long_warmup(config.warmup_steps, steps))
    noise = config.noise or (PUBLISHED_NOISE if published else NOISE)
    update = {
        "batch_size": batch,
        "steps": steps,
        "epochs": None,
        "learning_rate": config.learning_rate or _learning_rate(published, hidden_size),
        "warmup_steps": _first(config.warmup_steps, published.warmup_steps if published else None, round(0.06 * steps)),
        "noise": noise,
        "noise_ratio": config.noise_ratio or (published.noise_ratio if published else NOISE_RATIO),
        "mask_ratio": config.mask_ratio or 0.4,
        "energy_weight": config.energy_weight or (1.0 if published else ENERGY_WEIGHT),
        "eval_steps": config.eval_steps or (500 if published else max(1, steps // 8)),
        "save_steps": config.save_steps or max(1, min(500, steps // 4)),
    }
    update |= _noise_lm(config, noise, published, n_train)
    return ResolvedConfig.model_construct(**config.__dict__ | update)  # checked already


def epochs_for(n_train: int) -> float:
    """Passes over so many rows that reach the plateau of accuracy.

    >>> epochs_for(1000), epochs_for(10_000), epochs_for(100_000)
    (10, 5.0, 3)
    """
    return min(MAX_EPOCHS, max(MIN_EPOCHS, MAX_EPOCHS * ROWS_AT_MAX / n_train))


def _learning_rate(published: TrainingDefaults | None, hidden_size: int) -> float:
    if published:
        return published.learning_rate * (1 if hidden_size >= NARROW else 2.5)
    return WIDE_RATE if hidden_size >= NARROW else NARROW_RATE


def _noise_lm(config: RunConfig, noise: str, published: TrainingDefaults | None, n_train: int) -> dict[str, Any]:
    """Settings of the noise language model, where a source has one."""
    if all(part.is_online for part in parse_noise(noise)):
        return {}
    batch = config.noise_lm_batch_size or (8 if published else NOISE_LM_BATCH)
    # None: until the loss on held-out texts no longer falls.
    steps = max(1, round(published.noise_lm_epochs * n_train / batch)) if published else None
    return {
        "noise_lm_batch_size": batch,
        "noise_lm_steps": steps if config.noise_lm_steps is None else config.noise_lm_steps,
        "noise_lm_learning_rate": config.noise_lm_learning_rate or (5e-6 if published else NOISE_LM_RATE),
    }


def _published(config: RunConfig, task: Task | None) -> TrainingDefaults | None:
    """The published settings, when the run is on the whole of a published task at its published length."""
    whole = config.max_train_rows is None and config.steps is None and config.epochs is None
    return task.published if task and whole and config.train is None else None


def _first(*values: int | None) -> int:
    return next(v for v in values if v is not None)
