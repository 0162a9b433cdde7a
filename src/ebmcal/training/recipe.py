"""The recipe: every default of a training, in one place. No torch.

`resolve_training(…)` fills in what the user left open, from the size of the data and of the encoder. The published
recipe (`recipe="published"`) uses the settings of the paper's table instead.
"""

from dataclasses import dataclass
from typing import Any

from ebmcal.data.tasks import PublishedSettings
from ebmcal.errors import EbmcalError

#: Trained by default; the recommendation chooses between them.
METHODS = ("baseline", "hidden")

#: The noise source, the paper's K and λ.
NOISE = "splice"
NOISE_RATIO = 1

#: λ: with 0.1 or more, OOD detection by energy is worse than the baseline's with many classes.
ENERGY_WEIGHT = 0.03

#: λ falls to 0 over the training: late in it the cross-entropy vanishes and a constant λ would dominate.
ENERGY_SCHEDULE = "linear"

#: Noise in every n-th step: in every step it doubled the time and cost NLL and OOD detection with many classes.
NOISE_EVERY = 4

#: Of the paper.
PUBLISHED_NOISE = "infill:gpt2"
PUBLISHED_ENERGY_WEIGHT = 1.0

#: Share of tokens that infilling masks (the paper's M), and tokens that are sampled from.
MASK_RATIO = 0.4
TOP_K = 20

#: Epochs: ten on small data, fewer with more rows, at least three.
MAX_EPOCHS, MIN_EPOCHS, ROWS_AT_MAX_EPOCHS = 10, 3, 5000

#: Peak learning rate of encoders with a hidden size below `NARROW`, and of wider ones.
NARROW = 512
NARROW_LEARNING_RATE, WIDE_LEARNING_RATE = 1e-4, 3e-5

#: The new head starts from random weights and learns faster than the encoder.
HEAD_LEARNING_RATE_FACTOR = 30

WARMUP_SHARE = 0.06
WEIGHT_DECAY = 0.1
BATCH_SIZE, SMALL_BATCH_SIZE, ROWS_AT_BATCH_SIZE = 32, 16, 2000
MAX_LENGTH = 128

#: Of the controls.
LABEL_SMOOTHING = 0.1
POSCAL_WEIGHT, POSCAL_BINS, POSCAL_ROWS = 1.0, 20, 2000
FOCAL_GAMMA = 2.0
MIXUP_ALPHA = 0.4
MASKED_LM_WEIGHT = 0.1
MANIFOLD_ON, MANIFOLD_OFF, MANIFOLD_MIX = 1e-4, 1e-3, 0.1
L2_SP_WEIGHT = 0.01

#: Of the noise language model: SmolLM2 generates fluent texts after about twenty such steps.
LM_BATCH_SIZE, LM_LEARNING_RATE = 16, 2e-4
PUBLISHED_LM_BATCH_SIZE, PUBLISHED_LM_LEARNING_RATE = 8, 5e-6


@dataclass(frozen=True)
class TrainingSettings:
    """The resolved settings of a training."""

    batch_size: int
    steps: int
    learning_rate: float
    warmup_steps: int
    noise: str
    noise_ratio: int
    noise_every: int
    energy_weight: float
    energy_schedule: str
    centered: bool
    head_learning_rate: float | None
    eval_steps: int
    save_steps: int
    poscal_rows: int


def n_epochs(n_train: int) -> float:
    """Epochs over so many rows that reach the plateau of accuracy.

    >>> n_epochs(1000), n_epochs(10_000), n_epochs(100_000)
    (10, 5.0, 3)
    """
    return min(MAX_EPOCHS, max(MIN_EPOCHS, MAX_EPOCHS * ROWS_AT_MAX_EPOCHS / n_train))


def resolve_training(
    given: dict[str, Any], n_train: int, hidden_size: int, published: PublishedSettings | None = None
) -> TrainingSettings:
    """The settings of a training: what is `given` (None: left open), then the published ones, then the defaults."""
    usual = BATCH_SIZE if n_train >= ROWS_AT_BATCH_SIZE else SMALL_BATCH_SIZE
    batch_size = given.get("batch_size") or (published.batch_size if published else usual)
    if n_train < batch_size:
        raise EbmcalError(
            f"There are {n_train} training rows, fewer than one batch of {batch_size}. Use --batch-size {n_train}."
        )
    steps = given.get("steps") or (published.steps if published and not given.get("epochs") else None)
    steps = steps or max(1, round((given.get("epochs") or n_epochs(n_train)) * n_train / batch_size))
    warmup = given.get("warmup_steps")  # may be 0
    if warmup is None:
        warmup = published.warmup_steps if published else round(WARMUP_SHARE * steps)
    usual_rate = WIDE_LEARNING_RATE if hidden_size >= NARROW else NARROW_LEARNING_RATE
    rate = given.get("learning_rate") or (published.learning_rate if published else usual_rate)
    if warmup > steps:
        raise EbmcalError(f"warmup_steps is {warmup}, more than the {steps} training steps. Use fewer.")
    return TrainingSettings(
        batch_size=batch_size,
        steps=steps,
        learning_rate=rate,
        warmup_steps=warmup,
        noise=given.get("noise") or (PUBLISHED_NOISE if published else NOISE),
        noise_ratio=given.get("noise_ratio") or (published.noise_ratio if published else NOISE_RATIO),
        noise_every=given.get("noise_every") or (1 if published else NOISE_EVERY),
        energy_weight=given.get("energy_weight") or (PUBLISHED_ENERGY_WEIGHT if published else ENERGY_WEIGHT),
        energy_schedule=given.get("energy_schedule") or ("constant" if published else ENERGY_SCHEDULE),
        centered=published is None if given.get("centered") is None else given["centered"],
        head_learning_rate=given.get("head_learning_rate") or (None if published else HEAD_LEARNING_RATE_FACTOR * rate),
        eval_steps=given.get("eval_steps") or (500 if published else max(1, steps // 8)),
        save_steps=given.get("save_steps") or max(1, min(500, steps // 4)),
        poscal_rows=given.get("poscal_rows") or (n_train if published else POSCAL_ROWS),
    )
