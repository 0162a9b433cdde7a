"""`RunConfig`: every setting of `ebmcal run`, from YAML, the command line or Python. All mistakes are reported at once.

None means "decide for me": `ebmcal.training.recipe` fills it in when the size of the data is known. No torch.
"""

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from ebmcal.data.files import check_encoding
from ebmcal.data.tasks import find_task
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.methods import METHODS
from ebmcal.noise import format_noise, parse_noise
from ebmcal.training import recipe as defaults

Names = list[str]

#: numpy and torch accept seeds of 32 bits; the others are sanity limits.
MAX_SEED, MAX_STEPS, MAX_ROWS = 2**32, 10**8, 10**9

#: Characters of a config file: enough for every setting, read in an instant.
MAX_YAML_CHARACTERS = 30_000

DATA, MODEL, NOISE, TRAINING, RUN = "Data", "Model and methods", "Noise", "Training", "Run"


def _option(default: Any, help_: str, panel: str, *, common: bool = False, **limits: Any) -> Any:
    """A setting; `common` ones are shown by `ebmcal run --help`, the others by `--help-all`."""
    return Field(default, description=help_, json_schema_extra={"panel": panel, "common": common}, **limits)


class RunConfig(BaseModel):
    """The settings of a run. Field names are the keys of the YAML file and, with dashes, the command-line options.

    >>> RunConfig(methods="baseline, hidden", epochs=3).methods
    ['baseline', 'hidden']
    """

    model_config = ConfigDict(extra="forbid", validate_default=False, allow_inf_nan=False)

    task: str | None = _option(None, "A built-in task: see `ebmcal tasks`.", DATA, common=True)
    data_dir: Path | None = _option(None, "Directory with the files of the task.", DATA, common=True)
    hub: bool = _option(False, "Load the task from the Hugging Face hub.", DATA)
    train: Path | None = _option(None, "Training file: CSV, TSV, JSONL, JSON or Parquet.", DATA, common=True)
    test: Path | None = _option(None, "Test file. Default: a tenth of the training file.", DATA, common=True)
    calibration: str = _option(
        "auto", "Rows to calibrate on: `cross-fit` (the training rows), `holdout`, or a FILE.", DATA, common=True
    )
    folds: int | None = _option(
        None, "Folds of cross-fitting. Default: 5, or 10 to 20% of large data once.", DATA, common=True, ge=2, le=100
    )
    text_column: str | None = _option(None, "Column of the text.", DATA, common=True)
    text_pair_column: str | None = _option(None, "Column of the second text, for pairs.", DATA, common=True)
    label_column: str | None = _option(None, "Column of the label.", DATA, common=True)
    id_column: str | None = _option(None, "Column with row ids, kept in predictions.", DATA, common=True)
    encoding: str | None = _option(None, "Encoding of your files, e.g. latin-1. Default: UTF-8.", DATA, common=True)
    merge_labels: dict[str, str] = _option(
        {}, "Read one label as another, e.g. a misspelling: complant=complaint.", DATA, common=True
    )
    max_train_rows: int | None = _option(
        None, "Use a stratified sample of the training rows.", DATA, common=True, ge=1, le=MAX_ROWS
    )
    max_eval_rows: int | None = _option(None, "Use a stratified sample of the other splits.", DATA, ge=1, le=MAX_ROWS)
    split_seed: int = _option(0, "Seed of splits and samples.", DATA, ge=0, lt=MAX_SEED)

    encoder: str = _option("minilm", "Built in (minilm, mpnet), a directory, or a hub name.", MODEL, common=True)
    max_length: int = _option(defaults.MAX_LENGTH, "Maximum tokens per text.", MODEL, common=True, ge=8, le=8192)
    methods: Names = _option(list(defaults.METHODS), "Training methods.", MODEL, common=True)
    recipe: Literal["default", "published"] = _option("default", "published: the paper's settings.", MODEL)
    pooling: Literal["auto", "first", "mean"] = _option(
        "auto", "Classify the mean of all tokens or the first one. auto: as the encoder was trained.", MODEL
    )
    energy_weight: float | None = _option(None, "Weight of the energy loss, the paper's λ.", MODEL, common=True, gt=0)
    energy_schedule: Literal["constant", "linear"] | None = _option(None, "linear (default): λ falls to 0.", MODEL)
    centered: bool | None = _option(None, "false: the energy as published, without + log C.", MODEL)
    label_smoothing: float = _option(defaults.LABEL_SMOOTHING, "Strength of label smoothing.", MODEL, gt=0, lt=1)
    poscal_weight: float = _option(defaults.POSCAL_WEIGHT, "Weight of PosCal's term.", MODEL, gt=0)
    poscal_rows: int | None = _option(None, "Training rows PosCal predicts per update; default 2,000.", MODEL, ge=1)
    focal_gamma: float = _option(defaults.FOCAL_GAMMA, "Exponent of the focal loss.", MODEL, gt=0, le=100)
    mixup_alpha: float = _option(defaults.MIXUP_ALPHA, "Mixup draws shares from Beta(a, a).", MODEL, gt=0)
    masked_lm_weight: float = _option(defaults.MASKED_LM_WEIGHT, "Weight of the auxiliary masked LM.", MODEL, gt=0)
    manifold_on: float = _option(defaults.MANIFOLD_ON, "On-manifold step size.", MODEL, gt=0)
    manifold_off: float = _option(defaults.MANIFOLD_OFF, "Off-manifold step size.", MODEL, gt=0)
    manifold_mix: float = _option(defaults.MANIFOLD_MIX, "Share of the partner's label.", MODEL, ge=0, lt=1)
    l2_sp_weight: float = _option(defaults.L2_SP_WEIGHT, "Weight of the L2-SP penalty.", MODEL, gt=0)
    posthoc: Names = _option(["temperature", "scaling-binning"], "Calibrators to evaluate.", MODEL)

    noise: str | None = _option(
        None, "Noise sources, e.g. splice, infill:smollm2, 'splice 0.8, unrelated:FILE 0.2'.", NOISE, common=True
    )
    noise_ratio: int | None = _option(None, "Noise texts per data text, the paper's K.", NOISE, ge=1, le=1000)
    mask_ratio: float = _option(defaults.MASK_RATIO, "Share of masked tokens, the paper's M.", NOISE, gt=0, lt=1)
    top_k: int = _option(defaults.TOP_K, "Sample from the k most likely tokens.", NOISE, ge=1, le=10**6)
    lm_steps: int | None = _option(
        None, "Steps of the noise LM. Default: until its held-out loss is flat.", NOISE, ge=0, le=MAX_STEPS
    )
    lm_batch_size: int | None = _option(None, "Batch size of the noise LM.", NOISE, ge=1, le=10**6)
    lm_learning_rate: float | None = _option(None, "Learning rate of the noise LM.", NOISE, gt=0, le=1)
    noise_samples: int | None = _option(
        None, "Most texts of the noise LM; a longer training reuses them.", NOISE, ge=1, le=MAX_ROWS
    )
    samples_per_mask: int = _option(4, "Samples per masked text.", NOISE, ge=1, le=10**4)
    noise_condition: Literal["none", "own", "other"] = _option(
        "none", "Condition the noise LM on the text's own label, or on another one.", NOISE
    )
    noise_every: int | None = _option(None, "Noise in every n-th step. Default: 4.", NOISE, ge=1, le=MAX_STEPS)
    noise_seed: int = _option(0, "Seed of the noise LM and its samples.", NOISE, ge=0, lt=MAX_SEED)

    steps: int | None = _option(None, "Optimizer steps, instead of epochs.", TRAINING, ge=1, le=MAX_STEPS)
    epochs: float | None = _option(None, "Passes over the training rows.", TRAINING, common=True, gt=0, le=10**4)
    batch_size: int | None = _option(
        None, "Data texts per step, over all processes.", TRAINING, common=True, ge=1, le=10**6
    )
    learning_rate: float | None = _option(None, "Peak learning rate.", TRAINING, common=True, gt=0, le=1)
    head_learning_rate: float | None = _option(None, "Peak learning rate of the new head.", TRAINING, gt=0, le=1)
    warmup_steps: int | None = _option(None, "Steps of linear warm-up.", TRAINING, ge=0, le=MAX_STEPS)
    weight_decay: float = _option(defaults.WEIGHT_DECAY, "AdamW's weight decay.", TRAINING, ge=0, le=100)
    eval_steps: int | None = _option(None, "Evaluate on test rows every n steps.", TRAINING, ge=1, le=MAX_STEPS)
    save_steps: int | None = _option(None, "Write a checkpoint every n steps.", TRAINING, ge=1, le=MAX_STEPS)
    precision: Literal["auto", "fp32", "bf16"] = _option("auto", "auto: bf16 if the hardware is faster.", TRAINING)
    tokens_per_micro_batch: int | None = _option(None, "Bounds memory.", TRAINING, ge=64, le=MAX_ROWS)

    seeds: list[int] = _option([1], "One model per method and seed.", RUN, common=True)
    output: Path | None = _option(None, "The run directory.", RUN, common=True)
    frozen_probe: bool = _option(True, "false: no logistic regression on the frozen encoder.", RUN)
    only: Literal["train"] | None = _option(None, "train: stop after training.", RUN)
    ood: dict[str, Path] = _option({}, "Texts from elsewhere for OOD detection: NAME=FILE.", RUN, common=True)
    cache_dir: Path | None = _option(None, "Shared cache. Default: ~/.cache/ebmcal.", RUN)
    train_prediction_rows: int = _option(5000, "Training rows to predict.", RUN, ge=10, le=MAX_ROWS)
    report_to: Names = _option([], "Experiment trackers: tensorboard, wandb, mlflow, …", RUN)
    fsdp: bool = _option(False, "Under torchrun on GPUs: shard the model (FSDP2).", RUN)
    trust_remote_code: bool = _option(False, "Run code that comes with a model.", RUN)

    @field_validator("methods", "posthoc", "seeds", "report_to", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        """Accept `a, b` as on the command line, and a single number."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("*", mode="before")
    @classmethod
    def _check_type(cls, value: Any, info: ValidationInfo) -> Any:
        """`steps: true` is a mistake, not one step."""
        is_bool = cls.model_fields[str(info.field_name)].annotation in (bool, bool | None)
        if not is_bool and any(isinstance(v, bool) for v in (value if isinstance(value, list) else [value])):
            raise ValueError("true and false are not allowed here")
        return str(value) if isinstance(value, Path) else value

    @property
    def calibration_file(self) -> Path | None:
        """The calibration file, if one was given."""
        return None if self.calibration in ("auto", "cross-fit", "holdout") else Path(self.calibration)


#: Settings that may change between two calls on one run directory: they add trials or name places.
CHANGEABLE = {"methods", "seeds", "posthoc", "output", "frozen_probe", "only", "ood", "cache_dir", "report_to", "fsdp"}

#: Checked by the content of the files, not by their path.
_BY_CONTENT = {"data_dir", "train", "test", "calibration", "encoding"}


def fixed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that may not change between two calls on one run directory."""
    return {k: v for k, v in config.model_dump(mode="json").items() if k not in CHANGEABLE | _BY_CONTENT}


def continued_config(config: RunConfig, recorded: Path) -> RunConfig:
    """The config of a call on an existing run: settings left open (None) are those of the first call.

    `recorded` is the `config.yaml` of the run directory. Raises if other settings differ from it.
    """
    old, new = read_yaml(recorded), fixed_settings(config)
    left_open = [name for name, value in new.items() if value is None and name != "task" and name in old]
    left_open += [name for name in ("test", "calibration") if name in old and getattr(config, name) in (None, "auto")]
    if changed := [
        f"{name} was {old[name]}, is {value}"
        for name, value in new.items()
        if name not in left_open and old.get(name, value) != value
    ]:
        raise EbmcalError(
            f"The run directory {recorded.parent} belongs to another config ({'; '.join(changed)}). Pass the same "
            "settings, or another --output."
        )
    return RunConfig(**config.model_dump() | {name: old[name] for name in left_open})


def load_config(path: Path | None = None, overrides: dict[str, Any] | None = None) -> RunConfig:
    """A config from a YAML file with overrides on top; all mistakes in one error."""
    values = (read_yaml(path) if path else {}) | (overrides or {})
    problems: list[str] = []
    try:
        config = RunConfig(**values)
    except ValidationError as error:
        problems = _explain(error)
        invalid = {item["loc"][0] for item in error.errors()}
        config = RunConfig(**{k: v for k, v in values.items() if k not in invalid})
    problems += _problems(config)
    if problems:
        raise EbmcalError(problems[0] if len(problems) == 1 else "\n".join(["The config has errors:", *problems]))
    noise = format_noise(parse_noise(config.noise)) if config.noise else None
    return config.model_copy(update={"noise": noise})


def dump_config(config: RunConfig) -> str:
    """The config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _problems(config: RunConfig) -> list[str]:
    """What types and ranges cannot express."""
    from ebmcal.calibration import CALIBRATORS

    problems = [
        str(unknown_name(kind, name, known))
        for kind, names, known in (("method", config.methods, METHODS), ("calibrator", config.posthoc, CALIBRATORS))
        for name in names
        if name not in known
    ]
    for name, values in (("methods", config.methods), ("seeds", config.seeds)):
        if not values or len(set(values)) < len(values):
            listed = ", ".join(map(str, values)) or "nothing"
            problems.append(f"{name} must be a non-empty list without repetitions, got {listed}.")
    if not all(0 <= seed < MAX_SEED for seed in config.seeds):
        problems.append(f"seeds must be from 0 to {MAX_SEED - 1}, got {', '.join(map(str, config.seeds))}.")
    odd = [name for name in config.ood if not name.isidentifier()]
    problems += [f"ood: the name {name!r} must consist of letters, digits and _." for name in odd]
    for name, place in (("output", config.output), ("cache_dir", config.cache_dir)):
        if place and (files := [path for path in (place, *place.parents) if path.is_file()]):
            problems.append(f"{name} {place}: {files[0]} is a file; expected a directory.")
    path, words = config.calibration_file, ("cross-fit", "holdout")
    if path and not (path.suffix or path.exists()) and (close := difflib.get_close_matches(str(path), words, n=1)):
        problems.append(f"calibration: there is no file {str(path)!r}. Did you mean {close[0]!r}?")
    if config.steps and config.epochs:
        problems.append("Give either steps or epochs, not both.")
    if config.task and config.train:
        problems.append("Give either a task or a training file, not both.")
    if config.recipe == "published" and not (config.task and find_task(config.task).published):
        problems.append("recipe published needs one of the paper's tasks: see `ebmcal tasks`.")
    for check, value in ((find_task, config.task), (parse_noise, config.noise), (check_encoding, config.encoding)):
        try:
            _ = value is not None and check(value)
        except EbmcalError as error:
            problems.append(str(error))
    return problems


def _explain(error: ValidationError) -> list[str]:
    problems = []
    for item in error.errors():
        name, message = ".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, ").lower()
        if item["type"] == "extra_forbidden":
            problems.append(str(unknown_name("setting", name, RunConfig.model_fields)))
        else:
            problems.append(f"{name.replace('_', '-')}: {message}, got {item['input']!r}.")
    return problems


class _StrictLoader(yaml.SafeLoader):
    """Rejects duplicate keys, and aliases, which can expand without bound."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [str(key.value).replace("-", "_") for key, _ in node.value]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {repeated[0]!r}", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings of a YAML file; dashes in their names become underscores."""
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > MAX_YAML_CHARACTERS:
            raise ValueError(f"it has {len(text):,} characters; expected a short list of settings")
        values = _StrictLoader(text).get_single_data()
    except FileNotFoundError as error:
        raise EbmcalError(f"{path} does not exist.") from error
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise EbmcalError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise EbmcalError(f"{path} must contain `setting: value` lines, got a {type(values).__name__}.")
    return {k.replace("-", "_"): v for k, v in values.items()}
