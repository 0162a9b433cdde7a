"""`run_stages`: the stages of `ebmcal run`, each done once. The same call again continues where it stopped.

data → noise → (train → predict → cross-fit) for each trial → frozen probe → evaluation → recommendation → report

A `Workspace` is what the trials share: config, resolved settings, data, noise, tokenizer.
"""

import hashlib
import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ebmcal.advice import recommend
from ebmcal.calibration import FewRowsWarning, make_calibrator, save_calibrator
from ebmcal.config import RunConfig, continued_config, dump_config, read_yaml
from ebmcal.data import (
    DataConfig,
    TaskData,
    as_dataset,
    audit_messages,
    find_task,
    load_task,
    merge_option,
    similar_labels,
)
from ebmcal.errors import EbmcalError
from ebmcal.evaluation import evaluate_trials
from ebmcal.methods import find_method
from ebmcal.modeling.packing import max_positions
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import ENCODER_NOTES, check_encoder, is_causal, load_tokenizer
from ebmcal.noise import Noise, NoiseConfig, build_noise, check_noise, parse_noise
from ebmcal.pipeline.cross_fit import (
    SPLIT,
    describe_cost,
    ensure_cross_fitted,
    find_label_issues,
    remaining_trainings,
    run_folds,
)
from ebmcal.pipeline.probe import ensure_probed
from ebmcal.pipeline.trials import ensure_predicted, ensure_trained
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.reports import write_model_card, write_report
from ebmcal.reports.plots import energy_histogram
from ebmcal.run_dir import FROZEN_PROBE, RunDir, Trial, read_card, update_card
from ebmcal.storage import cache_dir, locked, read_json, remove_temporary_files, write_json, write_text
from ebmcal.training import recipe
from ebmcal.training.runtime import (
    DurationEstimate,
    check_trackers,
    device_batch_size,
    is_main_process,
    main_process_first,
)

#: Label issues that are stored and reported, at most.
MAX_LABEL_ISSUES = 200

#: A cross-fitted temperature below this shows that the models of the folds are undertrained.
MIN_TEMPERATURE = 0.6

VERSIONS_OF = ("ebmcal", "torch", "transformers", "numpy", "scipy", "scikit-learn", "tokenizers")


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
    duration: DurationEstimate | None = None

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
    RunDir(root).check()
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
    data = load_task(DataConfig.from_run(config, in_memory), cache_dir(config.cache_dir), reporter)
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
        check_noise(noise_config(work), reporter.info)
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


def noise_config(work: Workspace) -> NoiseConfig:
    """The settings of the noise."""
    config, published = work.config, work.config.recipe == "published"
    task = find_task(config.task).published if published and config.task else None
    batch_size = config.lm_batch_size or (recipe.PUBLISHED_LM_BATCH_SIZE if published else recipe.LM_BATCH_SIZE)
    rate = recipe.PUBLISHED_LM_LEARNING_RATE if published else recipe.LM_LEARNING_RATE
    steps = round(task.lm_epochs * len(work.data.splits["train"]) / batch_size) if task and task.lm_epochs else None
    same = ("mask_ratio", "top_k", "samples_per_mask", "max_length", "precision", "trust_remote_code")
    return NoiseConfig(
        noise=work.settings.noise,
        noise_ratio=work.settings.noise_ratio,
        lm_steps=steps if config.lm_steps is None else config.lm_steps,
        lm_batch_size=batch_size,
        lm_learning_rate=config.lm_learning_rate or rate,
        samples=config.noise_samples,
        condition=config.noise_condition,
        seed=config.noise_seed,
        **{name: getattr(config, name) for name in same},
    )


def _build_noise(work: Workspace) -> Noise:
    settings, splits = work.settings, work.data.splits
    n_draws = -(-settings.steps // settings.noise_every) * settings.batch_size * settings.noise_ratio
    return build_noise(
        noise_config(work), splits["train"], splits["test"], work.data.label_names, n_draws=n_draws,
        cache_dir=work.cache, reporter=work.reporter,
    )  # fmt: skip


def _noise_files(work: Workspace) -> dict[str, str]:
    """Content hashes of the files that noise is read from."""
    parts = parse_noise(work.settings.noise) if work.uses_noise else ()
    files = [Path(part.argument).expanduser() for part in parts if part.source == "unrelated" and part.argument]
    return {f"noise file {f}": hashlib.sha256(f.read_bytes()).hexdigest()[:16] for f in files if f.is_file()}


def _claim(work: Workspace) -> None:
    """Record config and data in the run directory, or raise if it belongs to another config or other data."""
    directory, config = work.directory, work.config
    if directory.config.is_file():
        old, config = read_yaml(directory.config), continued_config(config, directory.config)
        # A call adds trials, calibrators and OOD texts to a run; it does not remove any.
        names = ("methods", "seeds", "posthoc")
        lists = {name: list(dict.fromkeys([*old[name], *getattr(config, name)])) for name in names}
        ood = {name: Path(path) for name, path in old["ood"].items()} | config.ood
        config = config.model_copy(update={**lists, "ood": ood})
    fingerprints = work.data.fingerprints
    is_started = directory.fingerprints.is_file() and (directory.root / "trials").is_dir()
    recorded = read_json(directory.fingerprints) if is_started else fingerprints
    noise_files = _noise_files(work)
    fingerprints, recorded = fingerprints | noise_files, noise_files | recorded  # files may be new to a run
    changed = [name for name, value in fingerprints.items() if recorded.get(name) != value]
    if changed:
        raise EbmcalError(
            f"The texts or labels of {', '.join(changed)} changed since the run {directory.root} was started, or "
            "--test or --calibration did. Use another --output."
        )
    write_text(directory.config, dump_config(config))
    write_json(directory.fingerprints, recorded | fingerprints)


def run_stages(config: RunConfig, reporter: Reporter, in_memory: Mapping[str, Any] | None = None) -> None:
    """Do what is not done yet of a run."""
    with open_workspace(config, reporter, dict(in_memory or {})) as work:
        folds = run_folds(work)
        if folds is not None:
            reporter.info(describe_cost(folds))
        costs = [relative_cost(work, trial) for trial in remaining_trainings(work, folds)]
        work = replace(work, duration=DurationEstimate(costs, reporter))
        for trial in work.trials:
            ensure_trained(work, trial)
            if config.only is None and is_main_process():
                ensure_predicted(work, trial)
            if folds is not None:
                ensure_cross_fitted(work, trial, folds)
        if config.only is None:
            with main_process_first():  # the others wait: they read the results
                if is_main_process():
                    if config.frozen_probe:
                        ensure_probed(work, folds)
                    conclude(work)


def relative_cost(work: Workspace, trial: Trial) -> float:
    """The texts of a training step per data text."""
    settings = work.settings
    return 1 + (settings.noise_ratio / settings.noise_every if find_method(trial.method).uses_noise else 0)


def conclude(work: Workspace) -> None:
    """Evaluate all finished trials of the run directory, recommend a model, and write results and report."""
    directory = work.directory
    for trial in directory.models():  # also of earlier calls: OOD texts may be new
        if (directory.model(trial) / "config.json").is_file():
            ensure_predicted(work, trial)
    tests = [split for split in work.data.splits if split.startswith("test")]
    predictions = {
        trial: {split: Predictions.read(directory.predictions(trial, split)) for split in directory.splits(trial)}
        for trial in directory.trials()
        if set(tests) <= set(directory.splits(trial))
    }
    evaluation = evaluate_trials(predictions, posthoc=work.config.posthoc)
    advice = recommend(predictions)
    counts = work.data.audit["splits"]["train"].get("label_counts", {})
    pairs = [pair for pair in similar_labels(counts) if all(counts[name] for name in pair)]
    alike = ", ".join(f"{name!r} and {other!r}" for name, other in pairs)
    again = f"If so, run again with {merge_option(pairs)} and another --output."
    misspelt = [f"These labels may be the same: {alike}. {again}"] if pairs else []
    chosen = predictions[advice.trial]
    advice = replace(advice, sentences=(*misspelt, *undertrained_folds(advice.trial, chosen), *advice.sentences))
    has_folds = SPLIT in chosen and advice.has_learned
    issues = find_label_issues(chosen[SPLIT]).head(MAX_LABEL_ISSUES).to_dict("records") if has_folds else []
    results = evaluation.to_json() | {
        "task": work.data.name,
        "task_metric": work.data.metric,
        "label_names": list(work.data.label_names),
        "encoder": work.config.encoder,
        "encoder_note": ENCODER_NOTES.get(work.config.encoder),
        "versions": _versions(),
        "audit": work.data.audit,
        "noise": work.noise.description if work.noise else None,
        "training": {t.name: read_card(directory.model(t)).get("training") for t in predictions},
        "advice": advice.to_json(),
        "recommended": {"trial": advice.trial.name, "calibrator": advice.calibrator},
        "label_issues": issues,
    }
    if advice.calibrator is not None:  # fitted on the rows it was chosen on
        store_calibrator(directory.model(advice.trial), _fit_calibrator(advice.calibrator, chosen), work.reporter)
    if work.noise:
        write_json(directory.noise_examples, work.noise.examples)
    write_json(directory.results, results)
    for trial, splits in predictions.items():
        update_card(directory.model(trial), histograms=energy_histogram(splits))
        write_model_card(directory.model(trial))
    work.reporter.info(f"report: {write_report(directory.root)}")


def store_calibrator(model: Path, calibrator: Any, reporter: Reporter) -> None:
    """Store the calibrator of a run with a model, unless the user stored another one, or folded it into the weights."""
    card = read_card(model)
    stored = card.get("calibrator")
    if card.get("folded_temperature") is not None or (
        stored is not None and stored["fitted_on"] != calibrator.to_json()["fitted_on"]
    ):
        reporter.info(f"calibrator: {model} keeps the one that was fitted on other rows (ebmcal calibrate)")
    else:
        save_calibrator(model, calibrator)


def _fit_calibrator(name: str, splits: Mapping[str, Predictions]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)  # the advice says so already
        rows = splits[SPLIT] if SPLIT in splits else splits["calibration"]
        return make_calibrator(name.partition(" ")[0]).fit_predictions(rows)


def undertrained_folds(trial: Trial, splits: Mapping[str, Predictions]) -> list[str]:
    """A sentence for the user if cross-fitting does not fit the final model, which is finetuned longer."""
    is_finetuned = SPLIT in splits and trial.method != FROZEN_PROBE
    temperature = _fit_calibrator("temperature", splits).temperature_ if is_finetuned else 1.0
    if temperature >= MIN_TEMPERATURE:
        return []
    return [
        f"The models of the folds are undertrained: their predictions need a temperature of {temperature:.2f}, which "
        "may be wrong for the final model, trained on more rows. More epochs may help."
    ]


def _versions() -> dict[str, str]:
    """Versions of what the results depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in VERSIONS_OF:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
