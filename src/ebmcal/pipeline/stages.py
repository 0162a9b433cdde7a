"""`ebmcal run`: the stages from texts to report, each done once. The same call again goes on where it stopped.

    data → tokens → noise LM → noise → (train → predict) for each method and seed → post-hoc and metrics → report

Everything that can be wrong is found before the first stage that takes time. Noise LMs, noise and tokens lie in a cache
that runs share, keyed by what made them; what belongs to one run lies in its folder (`ebmcal.runfolder`).
"""

import contextlib
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from ebmcal.config import RunConfig, differences, fixed_settings, resolve, save_config
from ebmcal.data import DataSource, TaskData, audit_sentences, load_data, load_texts
from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import CARD_FILE
from ebmcal.models.loading import check_encoder, check_language_model, writes_texts
from ebmcal.models.packing import longest_text
from ebmcal.models.tokens import TokenTable
from ebmcal.noise.masking import find_mode
from ebmcal.pipeline.cache import cache_of, tokens_of
from ebmcal.pipeline.cell import CellWork, ensure_trained, finish_cell
from ebmcal.pipeline.failures import Failures
from ebmcal.pipeline.run_noise import Noise, make_noise, noise_examples, noise_facts, shown_rows
from ebmcal.progress import Reporter
from ebmcal.report import write_report
from ebmcal.results import build_detection, build_paired, build_rows
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json, sweep, write_json, write_text
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.locks import LOCK, locked
from ebmcal.storage.sealing import SEAL, damage, seal
from ebmcal.training.methods import find_method
from ebmcal.training.processes import is_main_process, main_process_first


def run(config: RunConfig, reporter: Reporter, failures: Failures | None = None) -> RunFolder:
    """Do what is not done yet of a run; returns its folder. `failures` may let it go on when a cell fails."""
    failures = failures or Failures()
    with _opened(config, reporter, failures) as (folder, work, noise):
        training = {}
        for cell in (c for c in _cells(work.config) if c not in failures.reasons):
            with failures.of(cell):
                training[cell.name] = finish_cell(folder, cell, work, reporter)
        _conclude(folder, work, noise, training, failures)
        reporter.say(f"report: {write_report(folder.root)}")
        seal(folder.root, folder.documents())
    return folder


def train_only(config: RunConfig, reporter: Reporter) -> list[Path]:
    """Train the models of a run that are missing; returns their folders. Processes of a torchrun share the work."""
    with _opened(config, reporter, Failures()) as (folder, work, _):
        for cell in _cells(work.config):
            ensure_trained(folder, cell, work, reporter)
        return [folder.model(cell) for cell in _cells(work.config)]


@contextlib.contextmanager
def _opened(
    config: RunConfig, reporter: Reporter, failures: Failures
) -> Iterator[tuple[RunFolder, CellWork, Noise | None]]:
    """A run folder, locked, with everything that its cells share made."""
    if config.output is None:
        raise EbmcalError("Say where the run should go: --output runs/NAME")
    _check_place(RunFolder(Path(config.output)))
    with main_process_first():  # the other processes of a torchrun find what the first has made
        config, data = prepare(config, reporter)
    folder = RunFolder(Path(config.output))
    with locked(folder.root) if is_main_process() else contextlib.nullcontext():
        with main_process_first():
            if is_main_process():
                _claim(folder, config, data, reporter)
            tables = {name: tokens_of(split, config, reporter) for name, split in data.splits.items()}
            _say_truncated(tables, config, reporter)
            extra = {name: load_texts(path, cache_of(config)) for name, path in config.ood.items()}
            noise, noisy = None, [cell for cell in _cells(config) if find_method(cell.method).uses_noise]
            if noisy:
                with failures.of(*noisy):
                    noise = make_noise(config, data.splits["train"], data.splits["calibration"], reporter)
        yield folder, CellWork(config, data, tables, noise.table if noise else None, shown_rows(noise), extra), noise


def _cells(config: RunConfig) -> list[Cell]:
    return [Cell(method, seed) for seed in config.seeds for method in config.methods]


def prepare(
    config: RunConfig, reporter: Reporter, say_damage: Callable[[str], None] | None = None
) -> tuple[RunConfig, TaskData]:
    """Everything that can fail before work starts: models, data, output. Returns the resolved config and the data."""
    encoder = check_encoder(config.encoder, config.trust_remote_code)
    if any(find_method(m).energy == "scalar" for m in config.methods) and writes_texts(encoder):
        raise EbmcalError(
            f"The scalar energy needs one feature vector a text, and the encoder {config.encoder} "
            f"({encoder.model_type}) has one a token. Use hidden or sharp-hidden."
        )
    if any(find_method(m).uses_noise for m in config.methods):
        check_language_model(config.noise_lm, config.trust_remote_code)
    data = load_data(source_of(config), cache_of(config), say_damage or reporter.say)
    resolved = resolve(config, len(data.splits["train"]), getattr(encoder, "hidden_size", 768))
    if find_mode(resolved.noise_mode).pairs_only and not data.is_pair:
        raise EbmcalError(
            f"The noise mode {resolved.noise_mode!r} rewrites one sentence of a pair; this task has single texts."
        )
    limit = longest_text(encoder)
    if limit and resolved.max_length > limit:
        raise EbmcalError(f"max-length is {resolved.max_length}; the encoder {config.encoder} takes {limit} at most.")
    for path in config.ood.values():
        load_texts(path, cache_of(config), say=say_damage or reporter.say)
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    reporter.say(f"data: {data.task_name}, {len(data.label_names)} labels, {sizes}")
    for sentence in audit_sentences(data.audit):
        reporter.say(f"data: {sentence}")
    return resolved, data


def source_of(config: RunConfig) -> DataSource:
    """The part of a config that says where the data is."""
    names = DataSource.__dataclass_fields__
    return DataSource(**{name: getattr(config, name) for name in names})


def _claim(folder: RunFolder, config: RunConfig, data: TaskData, reporter: Reporter) -> None:
    """Record config and data, or refuse a folder that belongs to others. It is not sealed while it is worked on."""
    wrong = check_folder(folder, config, data)
    if (folder.root / SEAL).exists():
        wrong += damage(folder.root)
    for line in dict.fromkeys(wrong):
        reporter.say(f"{folder.root.name}: {line}: made again")
    (folder.root / SEAL).unlink(missing_ok=True)
    sweep(folder.root)
    write_json(folder.fingerprints, {**fingerprints_of(data), "config": _settings_key(config)}, checked=True)
    write_text(folder.config, save_config(config))


def _settings_key(config: RunConfig) -> str:
    """A fingerprint of the settings that a run folder belongs to."""
    return fingerprint(fixed_settings(config))


def fingerprints_of(data: TaskData) -> dict[str, str]:
    """Split → fingerprint of its texts and labels."""
    return {name: split.fingerprint for name, split in data.splits.items()}


def _check_place(folder: RunFolder) -> bool:
    """Whether a run was begun in a folder; one that holds something else is refused before anything is written."""
    names = [path.name for path in folder.root.iterdir()] if folder.root.exists() else []
    # A process that was killed while it wrote the first file has left a part of it.
    first = {LOCK, folder.log.name, folder.data.name, folder.cache.name}
    begun = any(name not in first and not name.endswith(".part") for name in names)
    if begun and _recorded_config(folder) is None and _recorded_data(folder) is None:
        raise EbmcalError(
            f"The output folder {folder.root} is not empty and is no run folder: it has no whole "
            f"{folder.config.name} or {folder.fingerprints.name}. Choose another --output."
        )
    return begun


def check_folder(folder: RunFolder, config: RunConfig, data: TaskData) -> list[str]:
    """Refuse a folder that belongs to another config or other data, or holds something else; writes nothing.

    config.yaml and fingerprints.json vouch for each other: returns which of them is lost or damaged.
    """
    there, record = _recorded_config(folder), _recorded_data(folder)
    begun = _check_place(folder)
    ours = record is not None and record.get("config") == _settings_key(config)
    changed = differences(there, config) if there else []
    if begun and not ours and (changed or there is None):
        which = "; ".join(changed) or f"its {folder.config.name} is lost or damaged"
        raise EbmcalError(
            f"The output folder {folder.root} belongs to another config ({which}). "
            "Choose another --output, or delete the folder."
        )
    _check_data(folder, record or _data_of_models(folder), fingerprints_of(data))
    wrong = {folder.config: there is None or changed, folder.fingerprints: record is None}
    return [f"{path.name} is lost or damaged" for path, is_wrong in wrong.items() if begun and is_wrong]


def _recorded_config(folder: RunFolder) -> RunConfig | None:
    """The config of a run folder, or None when it is absent or unreadable."""
    try:
        return RunConfig(**yaml.safe_load(folder.config.read_text(encoding="utf-8")))
    except Exception:  # unreadable in whatever way
        return None


def _recorded_data(folder: RunFolder) -> dict[str, str] | None:
    """The fingerprints of a run folder, or None when they are absent or damaged."""
    with contextlib.suppress(EbmcalError):
        record = read_json(folder.fingerprints)
        return record if isinstance(record, dict) else None
    return None


def _data_of_models(folder: RunFolder) -> dict[str, str]:
    """The fingerprints of the data that a finished model was trained on, as its card has them."""
    for card in sorted(folder.root.glob(f"checkpoints/*/model/{CARD_FILE}")):
        with contextlib.suppress(EbmcalError, KeyError, TypeError):
            return dict(read_json(card)["data"])
    return {}


def _check_data(folder: RunFolder, there: dict[str, str], now: dict[str, str]) -> None:
    changed = [name for name in now if there and there.get(name) != now[name]]
    if changed:
        raise EbmcalError(
            f"The texts or labels of {', '.join(changed)} have changed since {folder.root} was begun. "
            "Choose another --output, or delete the folder."
        )


def _say_truncated(tables: dict[str, TokenTable], config: RunConfig, reporter: Reporter) -> None:
    cut = {name: table.n_truncated for name, table in tables.items() if table.n_truncated}
    if cut:
        counts = ", ".join(f"{n:,} of {len(tables[name]):,} in {name}" for name, n in cut.items())
        reporter.say(f"texts longer than {config.max_length} tokens were cut: {counts} (--max-length)")


def _conclude(
    folder: RunFolder, work: CellWork, noise: Noise | None, training: dict[str, Any], failures: Failures
) -> None:
    """Write the noise examples and `metrics.json`."""
    config, data = work.config, work.data
    cells = [cell for cell in _cells(config) if cell.name in training]
    test_sets = [name for name in data.splits if name.startswith("test")]
    if noise:
        write_json(folder.noise_examples, noise_examples(noise.store, data.splits["train"]))
    document = {
        "format": 1,
        "task": data.task_name,
        "task_metric": data.metric,
        "label_names": list(data.label_names),
        "encoder": config.encoder,
        "noise_lm": config.noise_lm if noise else None,
        "versions": versions(),
        "seeds": config.seeds,
        "fingerprints": fingerprints_of(data),
        "data": data.audit | {"truncated": {name: table.n_truncated for name, table in work.tables.items()}},
        "noise": noise_facts(noise) if noise else None,
        "rows": build_rows(folder, cells, config.posthoc) + failures.rows(test_sets),
        "paired": build_paired(folder, cells),
        "detection": build_detection(folder, cells),
        "training": training,
    }
    write_json(folder.metrics, document)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("ebmcal", "torch", "transformers", "numpy", "scipy", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def read_document(folder: RunFolder) -> dict[str, Any]:
    """The `metrics.json` of a run."""
    return read_json(folder.metrics)
