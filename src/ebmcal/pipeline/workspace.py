"""What the trials of a run share: config, resolved settings, data, noise, tokenizer; and the check of the directory."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ebmcal.config import RunConfig, dump_config, fixed_settings, load_config
from ebmcal.data import DataConfig, TaskData, as_dataset, audit_messages, find_task, load_task
from ebmcal.errors import EbmcalError
from ebmcal.methods import find_method
from ebmcal.modeling.packing import max_positions
from ebmcal.modeling.pretrained import ENCODER_NOTES, check_encoder, is_causal, load_tokenizer
from ebmcal.noise import Noise, NoiseConfig, build_noise, check_noise
from ebmcal.progress import Reporter
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import cache_dir, locked, read_json, remove_temporary_files, write_json, write_text
from ebmcal.training import recipe
from ebmcal.training.runtime import check_trackers, device_batch_size, is_main_process, main_process_first, use_bf16

#: Share of the training rows that `--calibration holdout` sets aside.
HOLDOUT_SHARE = 0.1


@dataclass(frozen=True)
class Workspace:
    """A run while it is worked on."""

    config: RunConfig
    settings: recipe.TrainingSettings
    data: TaskData
    directory: RunDir
    reporter: Reporter
    ood: dict[str, Any] = field(default_factory=dict)  # name -> Dataset of texts from elsewhere
    noise: Noise | None = None

    @property
    def trials(self) -> list[Trial]:
        """The trials of this call."""
        return [Trial(method, seed) for seed in self.config.seeds for method in self.config.methods]

    @property
    def uses_noise(self) -> bool:
        return any(find_method(method).uses_noise for method in self.config.methods)

    @property
    def cache(self) -> Path:
        return cache_dir(self.config.cache_dir)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.config.encoder, self.config.trust_remote_code)


@contextmanager
def open_workspace(
    config: RunConfig, reporter: Reporter, in_memory: dict[str, Any] | None = None
) -> Iterator[Workspace]:
    """Check everything that can be wrong, lock the run directory, and build what the trials share.

    `in_memory` replaces the paths of `train`, `calibration`, `test` and `ood` by Python objects.
    """
    if config.output is None:
        raise EbmcalError("Choose a run directory: --output runs/NAME")
    root = config.output
    _check_directory(root)
    with main_process_first():
        work = prepare(config, reporter, in_memory)
    with locked(root) if is_main_process() else nullcontext():
        if is_main_process():
            remove_temporary_files(root)
            _claim(work)
        with main_process_first():
            work = replace(work, noise=_build_noise(work)) if work.uses_noise else work
        yield work


def prepare(config: RunConfig, reporter: Reporter, in_memory: dict[str, Any] | None = None) -> Workspace:
    """Load encoder config and data, resolve the settings and check them; nothing is written to the run directory."""
    in_memory = in_memory or {}
    check_trackers(config.report_to)
    encoder = check_encoder(config.encoder, config.trust_remote_code, reporter.info)
    _check_encoder(config, encoder)
    if note := ENCODER_NOTES.get(config.encoder):
        reporter.info(f"encoder: {note}")
    data = load_task(data_config(config, in_memory), cache_dir(config.cache_dir), reporter)
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    for message in [f"{data.name}, {len(data.label_names)} labels, {sizes}", *audit_messages(data.audit)]:
        reporter.info(f"data: {message}")
    published = find_task(config.task).published if config.recipe == "published" and config.task else None
    n_train, hidden_size = len(data.splits["train"]), getattr(encoder, "hidden_size", 768)
    settings = recipe.resolve_training(config.model_dump(), n_train, hidden_size, published)
    device_batch_size(settings.batch_size)  # these two raise what would otherwise stop the training
    use_bf16(config.precision)
    options: dict[str, Any] = {"encoding": config.encoding, "cache_dir": cache_dir(config.cache_dir)}
    sources = dict(config.ood) | in_memory.get("ood", {})
    ood = {name: as_dataset(source, reporter=reporter, **options) for name, source in sources.items()}
    work = Workspace(config, settings, data, RunDir(config.output or Path()), reporter, ood)
    if work.uses_noise:
        check_noise(noise_config(work), is_pair=data.is_pair, notify=reporter.info)
    return work


def _check_encoder(config: RunConfig, encoder: Any) -> None:
    limit = max_positions(encoder)
    if limit and config.max_length > limit:
        raise EbmcalError(f"max_length is {config.max_length}; {config.encoder} reads at most {limit} tokens.")
    unsupported = {find_method(method).energy for method in config.methods} - {"hidden", "sharp-hidden"}
    if unsupported and is_causal(encoder):
        raise EbmcalError(
            f"{', '.join(sorted(unsupported))} needs one feature vector per text, but {config.encoder} "
            f"({encoder.model_type}) has one per token. Use hidden or sharp-hidden."
        )


def data_config(config: RunConfig, in_memory: dict[str, Any]) -> DataConfig:
    """Where the data of a run is."""
    names = set(DataConfig.__dataclass_fields__) & set(RunConfig.model_fields) - {"calibration"}
    values = {name: getattr(config, name) for name in names} | {"calibration": config.calibration_file}
    share = HOLDOUT_SHARE if config.calibration == "holdout" else None
    return DataConfig(**values | {k: v for k, v in in_memory.items() if k != "ood"}, calibration_share=share)


def noise_config(work: Workspace) -> NoiseConfig:
    """The settings of the noise."""
    config, published = work.config, work.config.recipe == "published"
    task = find_task(config.task).published if published and config.task else None
    batch_size = config.lm_batch_size or (recipe.PUBLISHED_LM_BATCH_SIZE if published else recipe.LM_BATCH_SIZE)
    rate = recipe.PUBLISHED_LM_LEARNING_RATE if published else recipe.LM_LEARNING_RATE
    steps = round(task.lm_epochs * len(work.data.splits["train"]) / batch_size) if task and task.lm_epochs else None
    return NoiseConfig(
        noise=work.settings.noise,
        noise_ratio=work.settings.noise_ratio,
        mask_ratio=config.mask_ratio,
        top_k=config.top_k,
        lm_steps=steps if config.lm_steps is None else config.lm_steps,
        lm_batch_size=batch_size,
        lm_learning_rate=config.lm_learning_rate or rate,
        samples=config.noise_samples,
        samples_per_mask=config.samples_per_mask,
        condition=config.noise_condition,
        seed=config.noise_seed,
        max_length=config.max_length,
        precision=config.precision,
        trust_remote_code=config.trust_remote_code,
    )


def _build_noise(work: Workspace) -> Noise:
    settings, splits = work.settings, work.data.splits
    n_draws = -(-settings.steps // settings.noise_every) * settings.batch_size * settings.noise_ratio
    return build_noise(
        noise_config(work), splits["train"], splits["test"], work.data.label_names, n_draws=n_draws,
        cache_dir=work.cache, reporter=work.reporter,
    )  # fmt: skip


def _check_directory(root: Path) -> None:
    """Reject a directory that holds something other than a run."""
    allowed = {".lock", "log.txt", "data", "cache"}
    names = {path.name for path in root.iterdir()} if root.exists() else set()
    if any(name not in allowed and not name.endswith(".tmp") for name in names) and "config.yaml" not in names:
        raise EbmcalError(
            f"The output directory {root} is not empty and is not a run directory (no config.yaml). "
            "Use another --output."
        )


def _claim(work: Workspace) -> None:
    """Record config and data in the run directory, or raise if it belongs to another config or other data."""
    directory, config = work.directory, work.config
    advice = "Use another --output, or delete the directory."
    if directory.config.is_file():
        earlier = load_config(directory.config)
        old, new = fixed_settings(earlier), fixed_settings(config)
        changed = [f"{name} was {old[name]}, is {new[name]}" for name in new if old[name] != new[name]]
        if changed:
            raise EbmcalError(
                f"The run directory {directory.root} belongs to another config ({'; '.join(changed)}). {advice}"
            )
        # A call adds trials, calibrators and OOD texts to a run; it does not remove any.
        names = ("methods", "seeds", "posthoc")
        lists = {name: list(dict.fromkeys([*getattr(earlier, name), *getattr(config, name)])) for name in names}
        config = config.model_copy(update={**lists, "ood": earlier.ood | config.ood})
    fingerprints = work.data.fingerprints
    is_started = directory.fingerprints.is_file() and (directory.root / "trials").is_dir()
    recorded = read_json(directory.fingerprints) if is_started else fingerprints
    changed = [name for name, value in fingerprints.items() if recorded.get(name) != value]
    if changed:
        raise EbmcalError(
            f"The texts or labels of {', '.join(changed)} changed since the run {directory.root} was started. {advice}"
        )
    write_json(directory.fingerprints, fingerprints)
    write_text(directory.config, dump_config(config))
