"""`RunConfig`: everything `ebmcal run` depends on, from YAML and flags; every mistake is reported at once.

`None` means "decide for me": `ebmcal.recipe` fills it in. The resolved config is what a run records.
"""

import contextlib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.noise_setting import parse_noise, spell_noise
from ebmcal.tasks import find_task

#: Choices whose tables need torch, for checking a config without it. A test keeps them equal to the tables.
METHOD_NAMES = (
    "baseline", "poscal", "poscal-kl", "label-smoothing", "focal", "mixup", "mlm-aux", "manifold", "sngp",
    "noise-entropy", "cutmix", "scalar", "hidden", "sharp-hidden", "scaled-hidden", "hidden-cutmix", "hidden-entropy",
    "hidden-smoothing",
)  # fmt: skip
#: What is trained by default; the advice chooses between them, each with temperature and without.
AUTO_METHODS = ("baseline", "hidden-smoothing")

Names = list[str]

#: Seeds go into numpy and torch, which take 32 bits. No run has more steps than the second, nor the third of rows.
SEEDS, STEPS, ROWS = 2**32, 10**8, 10**9


def _option(default: Any, help_: str, panel: str, **limits: Any) -> Any:
    return Field(default, description=help_, json_schema_extra={"panel": panel}, **limits)


DATA, MODEL, NOISE, TRAINING, RUN = "Data", "Encoder and methods", "Noise", "Training", "Run"


class RunConfig(BaseModel):
    """The settings of a run. Field names are the keys of the YAML file and, with dashes, the flags.

    >>> RunConfig(methods="baseline, hidden", epochs=3).methods
    ['baseline', 'hidden']
    """

    model_config = ConfigDict(extra="forbid", validate_default=False, allow_inf_nan=False)

    @field_validator("methods", "posthoc", "seeds", "report_to", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """A word with commas, as on the command line, or one number, is a list."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """`steps: true` is a mistake, not one step."""
        is_switch = cls.model_fields[str(info.field_name)].annotation is bool
        if not is_switch and any(isinstance(v, bool) for v in (value if isinstance(value, list) else [value])):
            raise PydanticCustomError("switch", "true and false do not fit here")
        return value

    task: str | None = _option(None, "A built-in task: see `ebmcal tasks`.", DATA)
    data_dir: Path | None = _option(None, "A local GLUE folder.", DATA)
    hub: bool = _option(False, "Load the task from the hub through `datasets`.", DATA)
    train: Path | None = _option(None, "Your training file: CSV, TSV, JSONL, JSON, Parquet.", DATA)
    calibration: Path | None = _option(None, "Your calibration file; without it, a part of the training file.", DATA)
    test: Path | None = _option(None, "Your test file; without it, a part of the training file.", DATA)
    text_column: str | None = _option(None, "Column of the text.", DATA)
    text_pair_column: str | None = _option(None, "Column of the second text, for pairs.", DATA)
    label_column: str | None = _option(None, "Column of the label.", DATA)
    encoding: str | None = _option(None, "Encoding of your files, such as latin-1 (default: UTF-8).", DATA)
    max_train_rows: int | None = _option(None, "Use a stratified sample of the training rows.", DATA, ge=1, le=ROWS)
    max_eval_rows: int | None = _option(None, "Use a stratified sample of the other splits.", DATA, ge=1, le=ROWS)
    split_seed: int = _option(0, "Seed of splits and samples.", DATA, ge=0, lt=SEEDS)

    encoder: str = _option("roberta-base", "Hub name, local folder, or built in: `minilm`, `mpnet`.", MODEL)
    max_length: int = _option(128, "Tokens of a text; longer ones are cut and counted.", MODEL, ge=8, le=8192)
    methods: Names = _option(list(AUTO_METHODS), "What to train; auto: baseline and hidden-smoothing.", MODEL)
    energy_weight: float | None = _option(None, "Weight of the energy terms, the paper's lambda.", MODEL, gt=0)
    poscal_weight: float = _option(1.0, "Weight of PosCal's term.", MODEL, gt=0)
    label_smoothing: float = _option(0.1, "Share of a label that label smoothing spreads.", MODEL, gt=0, lt=1)
    mix_weight: float = _option(1.0, "Weight of the mixed labels of spliced noise.", MODEL, gt=0)
    mixup_alpha: float = _option(0.4, "Shares of mixup are drawn from Beta(a, a).", MODEL, gt=0)
    mlm_weight: float = _option(0.1, "Weight of the masked words of mlm-aux.", MODEL, gt=0)
    manifold_on: float = _option(1e-4, "How far manifold moves word embeddings towards another text.", MODEL, gt=0)
    manifold_off: float = _option(1e-3, "How far manifold moves word embeddings off the data.", MODEL, gt=0)
    manifold_mix: float = _option(0.1, "Share of the other text's label in manifold.", MODEL, ge=0, lt=1)
    focal_gamma: float = _option(2.0, "Exponent of the focal loss.", MODEL, gt=0, le=100)
    posthoc: Names = _option(["temperature", "scaling-binning"], "Calibrators shown as (train) and (dev) rows.", MODEL)

    noise: str | None = _option(
        None,
        "Sources with shares: splice, far, far:FILE, infill:gpt2, continue:smollm2, mlm:NAME, 'splice 0.8, far 0.2'.",
        NOISE,
    )
    noise_lm: str | None = _option(None, "Older form of --noise: infill:NAME.", NOISE)
    noise_mode: str | None = _option(None, "Older form of --noise, with --noise-lm: MODE:NAME.", NOISE)
    noise_ratio: int | None = _option(None, "Noise texts for each data text, the paper's K.", NOISE, ge=1, le=1000)
    mask_ratio: float | None = _option(None, "Share of tokens that is masked, the paper's M.", NOISE, gt=0, lt=1)
    mlm_rounds: int = _option(1, "Rounds in which mlm fills masked words, each seeing the last.", NOISE, ge=1, le=1000)
    mlm_order: Literal["random", "left", "sure"] = _option("random", "Which masked words mlm fills first.", NOISE)
    top_k: int = _option(20, "Sample among this many tokens.", NOISE, ge=1, le=10**6)
    noise_lm_steps: int | None = _option(
        None,
        "Training steps of the noise LM; by default until its held-out loss no longer falls.",
        NOISE,
        ge=0,
        le=STEPS,
    )
    noise_lm_batch_size: int | None = _option(None, "Texts in a step of the noise LM.", NOISE, ge=1, le=10**6)
    noise_lm_learning_rate: float | None = _option(None, "Learning rate of the noise LM.", NOISE, gt=0, le=1)
    noise_samples: int | None = _option(
        None,
        "Noise texts that a training draws, at most; it goes round them. Held-out ones come on top.",
        NOISE,
        ge=1,
        le=ROWS,
    )
    samples_per_mask: int = _option(4, "Samples written from one masked text.", NOISE, ge=1, le=10**4)
    noise_condition: Literal["none", "own", "other"] = _option(
        "none", "The noise LM reads a label first and is then told the text's own, or another.", NOISE
    )
    noise_start: float = _option(0.0, "Share of the run on cross-entropy alone.", NOISE, ge=0, lt=1)
    noise_every: int = _option(1, "Noise in every n-th step after that.", NOISE, ge=1, le=STEPS)
    noise_seed: int = _option(0, "Seed of the noise LM and of the noise.", NOISE, ge=0, lt=SEEDS)

    steps: int | None = _option(None, "Optimizer steps.", TRAINING, ge=1, le=STEPS)
    epochs: float | None = _option(None, "Passes over the training rows, instead of steps.", TRAINING, gt=0, le=10**4)
    batch_size: int | None = _option(None, "Data texts in a step, over all processes.", TRAINING, ge=1, le=10**6)
    learning_rate: float | None = _option(None, "Peak learning rate.", TRAINING, gt=0, le=1)
    warmup_steps: int | None = _option(None, "Steps of linear warm-up.", TRAINING, ge=0, le=STEPS)
    weight_decay: float = _option(0.1, "AdamW's weight decay.", TRAINING, ge=0, le=100)
    eval_steps: int | None = _option(None, "Measure on the test split every so many steps.", TRAINING, ge=1, le=STEPS)
    save_steps: int | None = _option(None, "Write a checkpoint every so many steps.", TRAINING, ge=1, le=STEPS)
    precision: Literal["auto", "fp32", "bf16"] = _option("auto", "auto takes bf16 where the hardware has it.", TRAINING)
    tokens_per_micro_batch: int | None = _option(
        None, "Bounds memory; by default from the model's size.", TRAINING, ge=64, le=ROWS
    )

    seeds: list[int] = _option([1], "One model for each method and seed.", RUN)
    output: Path | None = _option(None, "The run folder.", RUN)
    cache_dir: Path | None = _option(None, "Shared noise, noise LMs and tokens (default: ~/.cache/ebmcal).", RUN)
    ood: dict[str, Path] = _option({}, "Other texts to compare energies with: NAME=FILE.", RUN)
    train_prediction_rows: int = _option(
        5000, "Training rows to predict on, for the (train) rows.", RUN, ge=10, le=ROWS
    )
    fsdp: bool = _option(False, "Under torchrun, on GPUs: each process holds a part of the weights (FSDP2).", RUN)
    report_to: Names = _option([], "Experiment trackers: tensorboard, wandb, trackio, mlflow and others.", RUN)
    keep_checkpoints: bool = _option(False, "Keep the last training checkpoints of finished models.", RUN)
    trust_remote_code: bool = _option(False, "Run code that comes with a model. It can do anything you can.", RUN)

    def require_output(self) -> Path:
        """The run folder; an error where none is given, which only `ebmcal.run` has an answer to."""
        if self.output is None:
            raise EbmcalError("Say where the run should go: --output runs/NAME")
        return self.output


class ResolvedConfig(RunConfig):
    """The settings of a run that `ebmcal.recipe.resolve` has filled in: these are open no longer."""

    noise: str
    noise_ratio: int
    mask_ratio: float
    energy_weight: float
    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    eval_steps: int
    save_steps: int


#: Settings that may change between two calls on one run folder: they add cells or say where things are.
FREE = {"methods", "seeds", "posthoc", "output", "cache_dir", "ood", "fsdp", "keep_checkpoints", "report_to"}
BY_CONTENT = {
    "data_dir",
    "train",
    "calibration",
    "test",
    "encoding",
}  # a folder checks these by fingerprint, not by path


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
    if config.methods == ["auto"]:
        config = config.model_copy(update={"methods": list(AUTO_METHODS)})
    config = _with_noise(config, problems)
    problems += _problems(config)
    if problems:
        raise EbmcalError(_listing(problems))
    return config


def _with_noise(config: RunConfig, problems: list[str]) -> RunConfig:
    """The older settings of the noise as `noise`, in the spelling that means the same run."""
    noise, older = config.noise, config.noise_lm or config.noise_mode
    if noise and older:
        problems.append(f"noise ({noise}) says what noise-lm and noise-mode say; leave those out.")
    elif older and config.noise_lm is None:
        problems.append(f"noise-mode {config.noise_mode} needs a language model: --noise {config.noise_mode}:gpt2.")
    if older and not noise:
        noise = f"{config.noise_mode or 'infill'}:{config.noise_lm or 'gpt2'}"
    with contextlib.suppress(EbmcalError):  # `_problems` tells what is wrong with it
        noise = noise and spell_noise(parse_noise(noise))
    return config.model_copy(update={"noise": noise, "noise_lm": None, "noise_mode": None})


def save_config(config: RunConfig) -> str:
    """The config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(there: RunConfig, wanted: RunConfig) -> list[str]:
    """Settings that make `wanted` another run than `there`."""
    old, new = fixed_settings(there), fixed_settings(wanted)
    return [f"{k}: there {old[k]}, now {new[k]}" for k in new if old[k] != new[k]]


def added(there: RunConfig, config: RunConfig) -> dict[str, Any]:
    """What a run folder has after a call with another config: a call adds cells, it does not take any away.

    >>> added(RunConfig(seeds=[1]), RunConfig(seeds=[2]))["seeds"]
    [1, 2]
    """
    lists = {name: [*getattr(there, name), *getattr(config, name)] for name in ("methods", "seeds", "posthoc")}
    return {name: list(dict.fromkeys(both)) for name, both in lists.items()} | {"ood": there.ood | config.ood}


def fixed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that may not change between two calls on one run folder."""
    return {k: v for k, v in config.model_dump(mode="json").items() if k not in FREE | BY_CONTENT}


def _problems(config: RunConfig) -> list[str]:
    """What types and ranges cannot say."""
    from ebmcal.calibrators.registry import CALIBRATORS

    problems = []
    tables = [("method", config.methods, (*METHOD_NAMES, "auto")), ("calibrator", config.posthoc, CALIBRATORS)]
    for kind, names, known in tables:
        problems += [str(unknown_name(kind, n, known)) for n in names if n not in known]
    if "auto" in config.methods:
        problems.append(f"The method auto stands alone: it means {' and '.join(AUTO_METHODS)}.")
    for name, values in (("methods", config.methods), ("seeds", config.seeds)):
        if not values:
            problems.append(f"{name} is empty; give one at least.")
        elif len(set(values)) < len(values):
            problems.append(f"{name} has a repeated entry: {', '.join(map(str, values))}.")
    if not all(0 <= seed < SEEDS for seed in config.seeds):
        problems.append(f"seeds must be 0 or more and below {SEEDS}; {', '.join(map(str, config.seeds))} came.")
    if config.warmup_steps and config.steps and config.warmup_steps > config.steps:
        problems.append(long_warmup(config.warmup_steps, config.steps))
    problems += [
        f"ood: the name {name!r} becomes part of a file name: use letters, digits and _, a letter first."
        for name in config.ood
        if not name.isidentifier()
    ]
    for name, place in (("output", config.output), ("cache-dir", config.cache_dir)):
        if place and place.exists() and not place.is_dir():
            problems.append(f"{name} {place} is a file; give a folder.")
    if config.steps and config.epochs:
        problems.append("steps and epochs are two ways to say how long to train; give one of them.")
    for find, given in ((find_task, config.task), (parse_noise, config.noise), (check_encoding, config.encoding)):
        try:
            _ = given is not None and find(given)
        except EbmcalError as error:
            problems.append(str(error))
    return problems


def check_encoding(name: str) -> str:
    """The name of an encoding of texts; an error where Python knows none."""
    try:
        "".encode(name)  # not those of bytes, such as hex
        return name
    except (LookupError, ValueError) as error:
        raise EbmcalError(f"There is no encoding {name!r}; utf-8, latin-1, cp1252 or utf-16 are some.") from error


def long_warmup(warmup_steps: int, steps: int) -> str:
    """What is wrong with a warm-up that never ends."""
    return f"warmup-steps is {warmup_steps} and the run has {steps} steps: its learning rate would never peak."


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that comes twice, which YAML itself forbids: one of the two would be dropped without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (name := key.value.replace("-", "_")) in found:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            found.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file; dashes in their names are underscores."""
    try:
        values = _OnceLoader(path.read_text(encoding="utf-8")).get_single_data()
    except FileNotFoundError as error:
        raise EbmcalError(f"The config file {path} does not exist.") from error
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:  # a date of month 13, nesting without end
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
