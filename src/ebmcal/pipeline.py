"""`ebmcal run`: the stages from texts to report, each done once. The same call again goes on where it stopped.

    data → tokens → noise LM → noise → (train → predict) for each method and seed → post-hoc and metrics → report

Everything that can be wrong is found before the first stage that takes time. Noise LMs, noise and tokens lie in a cache
that runs share, keyed by what made them; what belongs to one run lies in its folder (`ebmcal.runfolder`).
"""

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from ebmcal.cells import CellWork, ensure_trained, finish_cell, training_plan
from ebmcal.config import RunConfig, differences, resolve, save_config
from ebmcal.data import DataSource, TaskData, Texts, load_data, load_texts
from ebmcal.errors import EbmcalError
from ebmcal.failures import Failures
from ebmcal.files import fingerprint, read_json, write_json, write_text
from ebmcal.locks import locked
from ebmcal.masking import find_mode
from ebmcal.methods import find_method
from ebmcal.models import check_encoder, check_language_model, load_tokenizer
from ebmcal.noise_fit import NoiseLmSettings, fit
from ebmcal.noise_sampling import fill
from ebmcal.noise_store import NoiseSettings, NoiseStore
from ebmcal.processes import is_main_process, main_process_first
from ebmcal.progress import Reporter
from ebmcal.report import write_report
from ebmcal.results import build_detection, build_paired, build_rows
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.tokens import TokenTable, tokenize, tokenizer_fingerprint

#: Noise texts that every model is also run on, for the energy histograms.
SHOWN_NOISE = 500


@dataclass(frozen=True)
class Noise:
    """The noise of a run: the first `n_texts` of a store, and the same as tokens of the encoder."""

    store: NoiseStore
    card: dict[str, Any]
    n_texts: int
    table: TokenTable


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
    with main_process_first():  # the other processes of a torchrun find what the first has made
        config, data = prepare(config, reporter)
    folder = RunFolder(Path(config.output))
    with locked(folder.root) if is_main_process() else contextlib.nullcontext():
        with main_process_first():
            if is_main_process():
                _claim(folder, config)
            tables = {name: tokens_of(split, config) for name, split in data.splits.items()}
            _say_truncated(tables, config, reporter)
            extra = {name: load_texts(path, _cache(config)) for name, path in config.ood.items()}
            noise, noisy = None, [cell for cell in _cells(config) if find_method(cell.method).uses_noise]
            if noisy:
                with failures.of(*noisy):
                    noise = make_noise(config, data.splits["train"], data.splits["calibration"], reporter)
        yield folder, CellWork(config, data, tables, noise.table if noise else None, _shown_noise(noise), extra), noise


def _cells(config: RunConfig) -> list[Cell]:
    return [Cell(method, seed) for seed in config.seeds for method in config.methods]


def prepare(config: RunConfig, reporter: Reporter) -> tuple[RunConfig, TaskData]:
    """Everything that can fail before work starts: models, data, output. Returns the resolved config and the data."""
    if config.output is None:
        raise EbmcalError("Say where the run should go: --output runs/NAME")
    encoder = check_encoder(config.encoder, config.trust_remote_code)
    if any(find_method(m).uses_noise for m in config.methods):
        check_language_model(config.noise_lm, config.trust_remote_code)
    data = load_data(source_of(config), _cache(config))
    resolved = resolve(config, len(data.splits["train"]), data.is_pair, getattr(encoder, "hidden_size", 768))
    if find_mode(resolved.noise_mode).pairs_only and not data.is_pair:
        raise EbmcalError(
            f"The noise mode {resolved.noise_mode!r} rewrites one sentence of a pair; this task has single texts."
        )
    limit = getattr(encoder, "max_position_embeddings", None)
    if limit and resolved.max_length > limit - 2:
        raise EbmcalError(
            f"max-length is {resolved.max_length}; the encoder {config.encoder} takes {limit - 2} at most."
        )
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    reporter.say(f"data: {data.task_name}, {len(data.label_names)} labels, {sizes}")
    return resolved, data


def source_of(config: RunConfig) -> DataSource:
    """The part of a config that says where the data is."""
    names = DataSource.__dataclass_fields__
    return DataSource(**{name: getattr(config, name) for name in names})


def make_noise(config: RunConfig, train: Texts, held_out: Texts, reporter: Reporter) -> Noise:
    """The noise LM, the noise it writes, and its tokens: made, or found in the cache."""
    lm_folder, card = fit_noise_lm(config, train, held_out, reporter)
    store = fill_noise_store(config, train, lm_folder, card, reporter)
    wanted = noise_wanted(config, len(train))
    rows = ((row["text"], row["text_pair"]) for row in store.rows(wanted))
    return Noise(store, card, wanted, _tokens(rows, fingerprint("noise", store.key, wanted), config))


def fit_noise_lm(config: RunConfig, train: Texts, held_out: Texts, reporter: Reporter) -> tuple[Path, dict[str, Any]]:
    """The folder and the card of the noise LM of a resolved config."""
    settings = lm_settings(config)
    folder = _cache(config) / "noise_lm" / settings.key(train)
    with _shared(folder, "noise LM", reporter):
        return folder, fit(settings, train, held_out, folder, reporter)


def fill_noise_store(
    config: RunConfig, train: Texts, lm_folder: Path, card: dict[str, Any], reporter: Reporter,
    *, count: int | None = None, folder: Path | None = None,
) -> NoiseStore:  # fmt: skip
    """The noise store of a resolved config, with as many texts as a training draws, or `count`."""
    settings = NoiseSettings(config.top_k, config.samples_per_mask, seed=config.noise_seed, precision=config.precision)
    identity = settings.identity(train.fingerprint, card, lm_folder.name)
    folder = folder or _cache(config) / "noise" / fingerprint("noise", identity)
    with _shared(folder, "noise", reporter):
        store = NoiseStore.open(folder, identity)
        fill(store, lm_folder, train, count or noise_wanted(config, len(train)), reporter)
    return store


def noise_wanted(config: RunConfig, n_train: int) -> int:
    """Noise texts for one training without a repeat, or the limit that was set."""
    draws = training_plan(config, n_train, n_noise=1, seed=0).n_noise_draws
    return min(draws, config.noise_samples or 2_000_000)


def lm_settings(config: RunConfig) -> NoiseLmSettings:
    """The part of a resolved config that the noise LM depends on."""
    return NoiseLmSettings(
        name=config.noise_lm,
        mode=config.noise_mode,
        mask_ratio=config.mask_ratio,
        steps=config.noise_lm_steps,
        batch_size=config.noise_lm_batch_size,
        learning_rate=config.noise_lm_learning_rate,
        max_length=config.max_length,
        seed=config.noise_seed,
        precision=config.precision,
        trust_remote_code=config.trust_remote_code,
    )


def tokens_of(texts: Texts, config: RunConfig) -> TokenTable:
    """The texts of a split as tokens of the encoder, from the cache if they are there."""
    rows = (row for batch in texts.batches() for row in batch)
    return _tokens(rows, texts.fingerprint, config)


def _tokens(rows: Any, key: str, config: RunConfig) -> TokenTable:
    tokenizer = load_tokenizer(config.encoder, config.trust_remote_code)
    name = fingerprint("tokens", key, tokenizer_fingerprint(tokenizer), config.max_length)
    folder = _cache(config) / "tokens" / name
    return TokenTable.open(folder) or tokenize(rows, tokenizer, config.max_length, folder)


def _claim(folder: RunFolder, config: RunConfig) -> None:
    """Record the config, or refuse a folder that belongs to another one."""
    check_folder(folder, config)
    write_text(folder.config, save_config(config))


def check_folder(folder: RunFolder, config: RunConfig) -> None:
    """Refuse a folder that belongs to another config or holds something else; writes nothing."""
    if folder.config.exists():
        try:
            there = RunConfig(**yaml.safe_load(folder.config.read_text(encoding="utf-8")))
        except Exception as error:
            raise EbmcalError(
                f"{folder.config} is damaged ({type(error).__name__}). Delete it to start this run again."
            ) from error
        changed = differences(there, config)
        if changed:
            raise EbmcalError(
                f"The output folder {folder.root} belongs to another config ({'; '.join(changed)}). "
                "Choose another --output, or delete the folder."
            )
    elif folder.root.exists() and any(p.name not in {".lock", "log.txt"} for p in folder.root.iterdir()):
        raise EbmcalError(
            f"The output folder {folder.root} is not empty and is no run folder. Choose another --output."
        )


def _say_truncated(tables: dict[str, TokenTable], config: RunConfig, reporter: Reporter) -> None:
    cut = {name: table.n_truncated for name, table in tables.items() if table.n_truncated}
    if cut:
        counts = ", ".join(f"{n:,} of {len(tables[name]):,} in {name}" for name, n in cut.items())
        reporter.say(f"texts longer than {config.max_length} tokens were cut: {counts} (--max-length)")


def _shown_noise(noise: Noise | None) -> list[dict[str, Any]]:
    return list(noise.store.rows(min(SHOWN_NOISE, noise.n_texts))) if noise else []


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
        "fingerprints": {name: split.fingerprint for name, split in data.splits.items()},
        "data": data.audit | {"truncated": {name: table.n_truncated for name, table in work.tables.items()}},
        "noise": noise_facts(noise) if noise else None,
        "rows": build_rows(folder, cells, config.posthoc) + failures.rows(test_sets),
        "paired": build_paired(folder, cells),
        "detection": build_detection(folder, cells),
        "training": training,
    }
    write_json(folder.metrics, document)


def noise_facts(noise: Noise) -> dict[str, Any]:
    """What a reader should know of the noise."""
    return {
        "n_samples": noise.n_texts,
        "identical_share": noise.store.identical_share,
        "thrown_away": noise.store.thrown_away(),
        "perplexity": noise.card["perplexity"],
        "perplexity_before": noise.card["perplexity_before"],
        "lm_parameters": noise.card["n_parameters"],
        "lm_seconds": noise.card["seconds"],
        "settings": noise.store.identity["settings"] | {k: noise.card[k] for k in ("mode", "mask_ratio")},
    }


def noise_examples(store: NoiseStore, train: Texts, n: int = 20) -> list[dict[str, Any]]:
    """One sample each of the first few sources, beside its source."""
    firsts = {row["source_id"]: row for row in store.rows(8 * n) if row["sample"] == 0}
    position = {int(source): i for i, source in enumerate(train.ids)}
    chosen = list(firsts.values())[:n]
    sources = train.rows([position[row["source_id"]] for row in chosen])
    return [
        {
            "source": text, "source_pair": pair, "masked": row["masked"], "hidden": row["hidden"],
            "noise": row["text"], "noise_pair": row["text_pair"],
        }
        for row, (text, pair) in zip(chosen, sources, strict=True)
    ]  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("ebmcal", "torch", "transformers", "numpy", "scipy", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def _cache(config: RunConfig) -> Path:
    return cache_dir(config.cache_dir)


def cache_dir(given: Path | None = None) -> Path:
    """The folder that runs share: given, $EBMCAL_CACHE, or ebmcal in the user's cache."""
    if given:
        return Path(given).expanduser()
    if os.environ.get("EBMCAL_CACHE"):
        return Path(os.environ["EBMCAL_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "ebmcal"


def _shared(folder: Path, what: str, reporter: Reporter) -> Any:
    """The lock of a folder that runs share: a second run waits and then finds it made."""
    place = folder.with_name(folder.name + ".lock")
    return locked(place, waiting=lambda holder: reporter.say(f"{what}: waits for {holder}, which is making it"))


def read_document(folder: RunFolder) -> dict[str, Any]:
    """The `metrics.json` of a run."""
    return read_json(folder.metrics)
