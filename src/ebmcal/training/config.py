"""`EnergyConfig`: the arguments of an `EnergyTrainer`."""

from dataclasses import dataclass, field

from transformers import TrainingArguments

from ebmcal.errors import EbmcalError
from ebmcal.methods import find_method
from ebmcal.training import recipe


@dataclass
class EnergyConfig(TrainingArguments):
    """Arguments of an `EnergyTrainer`: those of `transformers.TrainingArguments`, and:

    - `method`: hidden, scalar, sharp-hidden, baseline or one of the controls (see `ebmcal.methods.METHODS`).
    - `noise`: "splice" makes noise from the training texts as it is needed; "unrelated" and mixtures such as
      "splice 0.8, unrelated 0.2" as well. Pass `noise=` to the trainer for texts from a language model.
    - `noise_ratio`: noise texts per data text, the paper's K. A step costs 1 + K times a plain one.
    - `energy_weight`: the paper's λ. It falls to 0 over the training unless `energy_schedule="constant"`.
    - `noise_every`: noise in every n-th step.

    >>> EnergyConfig("out", method="hidden", use_cpu=True, report_to="none").noise_ratio
    1
    """

    method: str = field(default="hidden", metadata={"help": "The training method."})
    noise: str = field(default=recipe.NOISE, metadata={"help": "Noise sources that are made from the texts."})
    noise_ratio: int = field(default=recipe.NOISE_RATIO, metadata={"help": "Noise texts per data text, K."})
    energy_weight: float = field(default=recipe.ENERGY_WEIGHT, metadata={"help": "Weight of the NCE loss, λ."})
    energy_schedule: str = field(default=recipe.ENERGY_SCHEDULE, metadata={"help": "linear: λ falls to 0."})
    centered: bool = field(default=True, metadata={"help": "Centre the energy (False: as published)."})
    noise_every: int = field(default=recipe.NOISE_EVERY, metadata={"help": "Noise in every n-th step."})
    label_smoothing: float = field(default=recipe.LABEL_SMOOTHING, metadata={"help": "Of the smoothing methods."})
    poscal_weight: float = field(default=recipe.POSCAL_WEIGHT, metadata={"help": "Weight of PosCal's term."})
    poscal_bins: int = field(default=recipe.POSCAL_BINS, metadata={"help": "Bins of PosCal's posteriors."})
    focal_gamma: float = field(default=recipe.FOCAL_GAMMA, metadata={"help": "Exponent of the focal loss."})
    mixup_alpha: float = field(default=recipe.MIXUP_ALPHA, metadata={"help": "Mixup draws from Beta(a, a)."})
    masked_lm_weight: float = field(default=recipe.MASKED_LM_WEIGHT, metadata={"help": "Auxiliary masked LM."})
    manifold_on: float = field(default=recipe.MANIFOLD_ON, metadata={"help": "On-manifold step size."})
    manifold_off: float = field(default=recipe.MANIFOLD_OFF, metadata={"help": "Off-manifold step size."})
    manifold_mix: float = field(default=recipe.MANIFOLD_MIX, metadata={"help": "Share of the partner's label."})
    l2_sp_weight: float = field(default=recipe.L2_SP_WEIGHT, metadata={"help": "Weight of the L2-SP penalty."})
    head_learning_rate: float | None = field(default=None, metadata={"help": "Of the head, if different."})
    max_length: int | None = field(default=None, metadata={"help": "Tokens per noise text. Default: as the data."})
    tokens_per_micro_batch: int | None = field(default=None, metadata={"help": "Bounds memory."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Texts are needed to make noise."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Divergence stops the training."})

    def __post_init__(self) -> None:
        super().__post_init__()
        find_method(self.method)
        if self.remove_unused_columns:
            raise EbmcalError("EnergyConfig needs remove_unused_columns=False: noise is made from the text columns.")
        is_valid = {
            "noise_ratio": self.noise_ratio >= 1,
            "noise_every": self.noise_every >= 1,
            "energy_weight": self.energy_weight >= 0,
            "energy_schedule": self.energy_schedule in ("constant", "linear"),
        }
        if wrong := [f"{name}={getattr(self, name)!r}" for name, valid in is_valid.items() if not valid]:
            raise EbmcalError(f"EnergyConfig: invalid {', '.join(wrong)}.")

    def energy_weight_at(self, progress: float) -> float:
        """λ after a share of the training."""
        return self.energy_weight * (1 - progress if self.energy_schedule == "linear" else 1.0)
