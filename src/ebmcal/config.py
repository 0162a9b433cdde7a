"""`RunConfig`: everything `ebmcal run` depends on, from YAML and flags; every mistake is reported at once.

`None` means "decide for me": `resolve` fills in the published settings of a task when the run is the published one, and
settings that do not ruin accuracy on small data and in short runs otherwise. The resolved config is what a run records.
"""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.tasks import Task, TrainingDefaults, find_task

#: What `hidden` and `sharp-hidden` were balanced for on small data: the noise terms weigh K times the energy weight.
SHORT_RUN_NOISE_WEIGHT = 0.8

#: A small LM fills gaps less well, so it is given fewer: noise that is too easy to tell from data teaches little.
TINY_MASK_RATIO = 0.2

Names = list[str]


def _option(default: Any, help_: str, panel: str, **limits: Any) -> Any:
    return Field(default, description=help_, json_schema_extra={"panel": panel}, **limits)


DATA, MODEL, NOISE, TRAINING, RUN = "Data", "Encoder and methods", "Noise", "Training", "Run"


class RunConfig(BaseModel):
    """The settings of a run. Field names are the keys of the YAML file and, with dashes, the flags."""

    model_config = ConfigDict(extra="forbid", validate_default=False, allow_inf_nan=False)

    task: str | None = _option(None, "A built-in task: see `ebmcal tasks`.", DATA)
    data_dir: Path | None = _option(None, "A local GLUE folder.", DATA)
    hub: bool = _option(False, "Load the task from the hub through `datasets`.", DATA)
    train: Path | None = _option(None, "Your training file: CSV, TSV, JSONL or Parquet.", DATA)
    calibration: Path | None = _option(None, "Your calibration file; without it, a part of the training file.", DATA)
    test: Path | None = _option(None, "Your test file; without it, a part of the training file.", DATA)
    text_column: str | None = _option(None, "Column of the text.", DATA)
    text_pair_column: str | None = _option(None, "Column of the second text, for pairs.", DATA)
    label_column: str | None = _option(None, "Column of the label.", DATA)
    max_train_rows: int | None = _option(None, "Use a stratified sample of the training rows.", DATA, ge=1)
    max_eval_rows: int | None = _option(None, "Use a stratified sample of the other splits.", DATA, ge=1)
    split_seed: int = _option(0, "Seed of splits and samples.", DATA, ge=0)

    encoder: str = _option("roberta-base", "Hub name, local folder, or built in: `minilm`, `mpnet`.", MODEL)
    max_length: int = _option(128, "Tokens of a text; longer ones are cut and counted.", MODEL, ge=8, le=8192)
    methods: Names = _option(
        ["baseline", "hidden"], "baseline, poscal, poscal-kl, scalar, hidden, sharp-hidden.", MODEL
    )
    energy_weight: float | None = _option(None, "Weight of the energy terms, the paper's lambda.", MODEL, gt=0)
    poscal_weight: float = _option(1.0, "Weight of PosCal's term.", MODEL, gt=0)
    posthoc: Names = _option(["temperature", "scaling-binning"], "Calibrators shown as (train) and (dev) rows.", MODEL)

    noise_lm: str = _option("gpt2", "Hub name, local folder, `smollm2` (built in) or `tiny`.", NOISE)
    noise_mode: str | None = _option(None, "infill (the paper's), gaps, plain or half.", NOISE)
    noise_ratio: int | None = _option(None, "Noise texts for each data text, the paper's K.", NOISE, ge=1)
    mask_ratio: float | None = _option(None, "Share of tokens that is masked, the paper's M.", NOISE, gt=0, lt=1)
    top_k: int = _option(20, "Sample among this many tokens.", NOISE, ge=1)
    noise_lm_steps: int | None = _option(
        None, "Training steps of the noise LM; by default until its held-out loss no longer falls.", NOISE, ge=0
    )
    noise_lm_batch_size: int | None = _option(None, "Texts in a step of the noise LM.", NOISE, ge=1)
    noise_lm_learning_rate: float | None = _option(None, "Learning rate of the noise LM.", NOISE, gt=0)
    noise_samples: int | None = _option(
        None, "Noise texts at most; the run goes round them when it needs more.", NOISE, ge=1
    )
    samples_per_mask: int = _option(4, "Samples written from one masked text.", NOISE, ge=1)
    noise_start: float = _option(0.0, "Share of the run on cross-entropy alone.", NOISE, ge=0, lt=1)
    noise_every: int = _option(1, "Noise in every n-th step after that.", NOISE, ge=1)
    noise_seed: int = _option(0, "Seed of the noise LM and of the noise.", NOISE, ge=0)

    steps: int | None = _option(None, "Optimizer steps.", TRAINING, ge=1)
    epochs: float | None = _option(None, "Passes over the training rows, instead of steps.", TRAINING, gt=0)
    batch_size: int | None = _option(None, "Data texts in a step, over all processes.", TRAINING, ge=1)
    learning_rate: float | None = _option(None, "Peak learning rate.", TRAINING, gt=0)
    warmup_steps: int | None = _option(None, "Steps of linear warm-up.", TRAINING, ge=0)
    weight_decay: float = _option(0.1, "AdamW's weight decay.", TRAINING, ge=0)
    eval_steps: int | None = _option(None, "Measure on the test split every so many steps.", TRAINING, ge=1)
    save_steps: int | None = _option(None, "Write a checkpoint every so many steps.", TRAINING, ge=1)
    precision: Literal["auto", "fp32", "bf16"] = _option("auto", "auto takes bf16 where the hardware has it.", TRAINING)
    tokens_per_micro_batch: int | None = _option(
        None, "Bounds memory; by default from the model's size.", TRAINING, ge=64
    )

    seeds: list[int] = _option([1], "One model for each method and seed.", RUN)
    output: Path | None = _option(None, "The run folder.", RUN)
    cache_dir: Path | None = _option(None, "Shared noise, noise LMs and tokens (default: ~/.cache/ebmcal).", RUN)
    ood: dict[str, Path] = _option({}, "Other texts to compare energies with: NAME=FILE.", RUN)
    train_prediction_rows: int = _option(5000, "Training rows to predict on, for the (train) rows.", RUN, ge=10)
    fsdp: bool = _option(False, "Under torchrun, on GPUs: each process holds a part of the weights (FSDP2).", RUN)
    keep_checkpoints: bool = _option(False, "Keep the last training checkpoints of finished models.", RUN)
    trust_remote_code: bool = _option(False, "Run code that comes with a model. It can do anything you can.", RUN)


#: Settings that may change between two calls on one run folder: they add cells or say where things are.
FREE = {"methods", "seeds", "posthoc", "output", "cache_dir", "ood", "fsdp", "keep_checkpoints"}
BY_CONTENT = {"data_dir", "train", "calibration", "test"}  # a folder checks these by fingerprint, not by path


def load_config(path: Path | None, overrides: dict[str, Any]) -> RunConfig:
    """A config from a YAML file with overrides on top; all mistakes in one error."""
    values = read_yaml(path) if path else {}
    values |= overrides
    problems: list[str] = []
    try:
        config = RunConfig(**values)
    except ValidationError as error:
        problems = _explain(error)
        wrong = {item["loc"][0] for item in error.errors()}
        config = RunConfig(**{k: v for k, v in values.items() if k not in wrong})
    problems += _problems(config)
    if problems:
        raise EbmcalError(_listing(problems))
    return config


def resolve(config: RunConfig, n_train: int, hidden_size: int) -> RunConfig:
    """Fill in what was left open, from the task and the size of the data and the encoder."""
    task = find_task(config.task) if config.task else None
    published = _published(config, task)
    tiny = config.noise_lm == "tiny"
    batch = config.batch_size or (published.batch_size if published else 32 if n_train >= 2000 else 16)
    if n_train < batch:
        raise EbmcalError(
            f"There are {n_train} training rows and a batch has {batch}: take --batch-size {n_train} or less."
        )
    steps = config.steps or (published.steps if published and not config.epochs else None)
    steps = steps or max(1, round((config.epochs or 4) * n_train / batch))
    ratio = config.noise_ratio or (published.noise_ratio if published else 2)
    lm_batch = config.noise_lm_batch_size or (32 if tiny else 8)
    return config.model_copy(
        update={
            "batch_size": batch,
            "steps": steps,
            "epochs": None,
            "learning_rate": config.learning_rate
            or (published or _SHORT).learning_rate * (1 if hidden_size >= 512 else 2.5),
            "warmup_steps": _first(
                config.warmup_steps, published.warmup_steps if published else None, round(0.06 * steps)
            ),
            "noise_ratio": ratio,
            "mask_ratio": config.mask_ratio or (TINY_MASK_RATIO if tiny else 0.4),
            "energy_weight": config.energy_weight or (1.0 if published else SHORT_RUN_NOISE_WEIGHT / ratio),
            "noise_mode": config.noise_mode or ("gaps" if tiny else "infill"),
            "noise_lm_batch_size": lm_batch,
            "noise_lm_steps": _lm_steps(config, published, n_train, lm_batch),
            "noise_lm_learning_rate": config.noise_lm_learning_rate or (2e-3 if tiny else 5e-6 if published else 1e-4),
            "eval_steps": config.eval_steps or (500 if published else max(1, steps // 8)),
            "save_steps": config.save_steps or max(1, min(500, steps // 4)),
        }
    )


def save_config(config: RunConfig) -> str:
    """The config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(there: RunConfig, wanted: RunConfig) -> list[str]:
    """Settings that make `wanted` another run than `there`."""
    old, new = fixed_settings(there), fixed_settings(wanted)
    return [f"{k}: there {old[k]}, now {new[k]}" for k in new if old[k] != new[k]]


def fixed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that may not change between two calls on one run folder."""
    return {k: v for k, v in config.model_dump(mode="json").items() if k not in FREE | BY_CONTENT}


_SHORT = TrainingDefaults(batch_size=32, learning_rate=2e-5, steps=0, warmup_steps=0, noise_lm_epochs=4)


def _published(config: RunConfig, task: Task | None) -> TrainingDefaults | None:
    """The published settings, when the run is on the whole of a published task at its published length."""
    whole = config.max_train_rows is None and config.steps is None and config.epochs is None
    return task.published if task and whole and config.train is None else None


def _lm_steps(config: RunConfig, published: TrainingDefaults | None, n_train: int, batch: int) -> int | None:
    """Steps of the noise LM: as asked, as published, or None: until its loss no longer falls."""
    if config.noise_lm_steps is not None or not published:
        return 400 if config.noise_lm_steps is None and config.noise_lm == "tiny" else config.noise_lm_steps
    return max(1, round(published.noise_lm_epochs * n_train / batch))


def _first(*values: int | None) -> int:
    return next(v for v in values if v is not None)


def _problems(config: RunConfig) -> list[str]:
    """What types and ranges cannot say."""
    from ebmcal.calibrators.table import CALIBRATORS
    from ebmcal.names import METHOD_NAMES, MODE_NAMES

    problems = []
    tables = [("method", config.methods, METHOD_NAMES), ("calibrator", config.posthoc, CALIBRATORS)]
    tables += [("noise mode", [config.noise_mode] if config.noise_mode else [], MODE_NAMES)]
    for kind, names, known in tables:
        problems += [str(unknown_name(kind, n, known)) for n in names if n not in known]
    for name, values in (("methods", config.methods), ("seeds", config.seeds)):
        if not values:
            problems.append(f"{name} is empty; give one at least.")
        elif len(set(values)) < len(values):
            problems.append(f"{name} has a repeated entry: {', '.join(map(str, values))}.")
    if any(seed < 0 for seed in config.seeds):
        problems.append(f"seeds must be 0 or more; {', '.join(map(str, config.seeds))} came.")
    problems += [
        f"ood: the name {name!r} becomes part of a file name: use letters, digits and _, a letter first."
        for name in config.ood
        if not name.isidentifier()
    ]
    if config.output and config.output.exists() and not config.output.is_dir():
        problems.append(f"output {config.output} is a file; give a folder.")
    if config.steps and config.epochs:
        problems.append("steps and epochs are two ways to say how long to train; give one of them.")
    if config.task:
        try:
            find_task(config.task)
        except EbmcalError as error:
            problems.append(str(error))
    return problems


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file; dashes in their names are underscores."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EbmcalError(f"The config file {path} does not exist.") from error
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise EbmcalError(f"The config file {path} is not readable YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise EbmcalError(f"The config file {path} must have `setting: value` lines; it is a {type(values).__name__}.")
    return {k.replace("-", "_"): v for k, v in values.items()}


def _explain(error: ValidationError) -> list[str]:
    problems = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            problems.append(str(unknown_name("setting", name, RunConfig.model_fields)))
        else:
            problems.append(f"{name.replace('_', '-')}: {item['msg'].lower()}; {item['input']!r} came.")
    return problems


def _listing(problems: list[str]) -> str:
    return (
        problems[0] if len(problems) == 1 else "\n".join(["The config has mistakes:", *(f"  - {p}" for p in problems)])
    )
