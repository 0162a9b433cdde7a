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

from ebmcal.advice import advise
from ebmcal.config import ResolvedConfig, RunConfig, load_config
from ebmcal.data import DataSource, TaskData, Texts, audit_sentences, label_sentence, load_data, load_other_texts
from ebmcal.errors import EbmcalError
from ebmcal.judging import judge_run
from ebmcal.models.loading import ABOUT_ENCODERS, check_encoder, load_tokenizer, writes_texts
from ebmcal.models.masked import MaskedHead, load_masked_lm
from ebmcal.models.packing import longest_text
from ebmcal.models.tokens import TokenTable
from ebmcal.pipeline.cache import cache_of, sweep_cache, tokens_of
from ebmcal.pipeline.cell import CellWork, check_unfolded, ensure_trained, finish_cell, is_predicted, training_facts
from ebmcal.pipeline.failures import Failures
from ebmcal.pipeline.ownership import all_cells, check_place, claim, fingerprints_of
from ebmcal.pipeline.run_noise import check_noise, make_noise, noise_files, told_apart
from ebmcal.progress import Reporter
from ebmcal.recipe import resolve
from ebmcal.report import write_report
from ebmcal.report.model_card import write_card
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json, write_json
from ebmcal.storage.locks import locked
from ebmcal.storage.sealing import seal
from ebmcal.training.methods import find_method
from ebmcal.training.processes import is_main_process, main_process_first
from ebmcal.training.running import check_machine
from ebmcal.training.trackers import check_trackers

#: A share of unknown tokens that is said.
MANY_UNKNOWN = 0.001


def run(config: RunConfig, reporter: Reporter, failures: Failures | None = None) -> RunFolder:
    """Do what is not done yet of a run; returns its folder. `failures` may let it go on when a cell fails."""
    failures = failures or Failures()
    with _opened(config, reporter, failures) as (folder, work):
        training = {}
        for cell in (c for c in _cells(work.config) if c not in failures.reasons):
            with failures.of(cell):
                finish_cell(folder, cell, work, reporter)
                training[cell.name] = _facts(folder, cell)
        _conclude(folder, work, training | _finished_before(folder, work), failures)
        for name in training:
            write_card(folder.model(Cell.parse(name)))
        reporter.say(f"report: {write_report(folder.root)}")
        seal(folder.root, folder.documents())
    return folder


def train_only(config: RunConfig, reporter: Reporter) -> list[Path]:
    """Train the models of a run that are missing; returns their folders. Processes of a torchrun share the work."""
    with _opened(config, reporter, Failures()) as (folder, work):
        for cell in _cells(work.config):
            ensure_trained(folder, cell, work, reporter)
            if is_main_process():
                write_card(folder.model(cell))
        return [folder.model(cell) for cell in _cells(work.config)]


@contextlib.contextmanager
def _opened(config: RunConfig, reporter: Reporter, failures: Failures) -> Iterator[tuple[RunFolder, CellWork]]:
    """A run folder, locked, with everything that its cells share made."""
    folder = RunFolder(config.require_output())
    check_place(folder)
    if is_main_process():
        sweep_cache(cache_of(config))
    with main_process_first():  # the other processes of a torchrun find what the first has made
        resolved, data = prepare(config, reporter)
    with locked(folder.root) if is_main_process() else contextlib.nullcontext():
        with main_process_first():
            if is_main_process():
                if not failures.keep_going:
                    _check_cells(folder, resolved, data)
                claim(folder, resolved, data, reporter, noise_files(resolved) if _noisy(resolved) else {})
            tables = {name: tokens_of(split, resolved, reporter) for name, split in data.splits.items()}
            _say_truncated(tables, config, reporter)
            _say_unknown(tables, config, reporter)
            extra = _other_texts(config)
            noise = None
            if noisy := _noisy(config):
                with failures.of(*noisy):
                    noise = make_noise(resolved, data, reporter)
        yield folder, CellWork(resolved, data, tables, noise, extra)


def _cells(config: RunConfig) -> list[Cell]:
    return [Cell(method, seed) for seed in config.seeds for method in config.methods]


def _check_cells(folder: RunFolder, config: RunConfig, data: TaskData) -> None:
    splits = [*data.splits, *(f"ood_{name}" for name in config.ood)]
    for cell in _cells(config):
        check_unfolded(folder, cell, [split for split in splits if not is_predicted(folder, cell, split)])


def _noisy(config: RunConfig) -> list[Cell]:
    return [cell for cell in _cells(config) if find_method(cell.method).uses_noise]


def _facts(folder: RunFolder, cell: Cell) -> dict[str, Any]:
    """What is known of the training of a finished cell."""
    uses_noise = find_method(cell.method).uses_noise and is_predicted(folder, cell, "noise")
    apart = {"told_apart_held_out": told_apart(folder, cell)} if uses_noise else {}
    return training_facts(folder, cell) | apart


def _finished_before(folder: RunFolder, work: CellWork) -> dict[str, Any]:
    """Cells of earlier calls that are finished: a call adds to what is there."""
    others = [cell for cell in all_cells(folder, work.config) if cell not in _cells(work.config)]
    found = {}
    for cell in others:
        if all(is_predicted(folder, cell, split) for split in work.data.splits):
            with contextlib.suppress(EbmcalError):  # its model is gone: it is trained again when it is asked for
                found[cell.name] = _facts(folder, cell)
    return found


def prepare(
    config: RunConfig, reporter: Reporter, say_damage: Callable[[str], None] | None = None
) -> tuple[ResolvedConfig, TaskData]:
    """Everything that can fail before work starts: models, data, output. Returns the resolved config and the data."""
    check_trackers(config.report_to)
    encoder = check_encoder(config.encoder, config.trust_remote_code, reporter.say)
    of_text = {"scalar": "The scalar energy", "sngp": "sngp"}
    for who in (of_text[e] for e in (find_method(m).energy for m in config.methods) if e in of_text):
        if writes_texts(encoder):
            raise EbmcalError(
                f"{who} needs one feature vector a text, and the encoder {config.encoder} "
                f"({encoder.model_type}) has one a token. Use hidden or sharp-hidden."
            )
    if any(find_method(m).uses_masking for m in config.methods):
        MaskedHead(*load_masked_lm(config.encoder, config.trust_remote_code))
    data = load_data(source_of(config), cache_of(config), say_damage or reporter.say)
    resolved = resolve(config, len(data.splits["train"]), getattr(encoder, "hidden_size", 768))
    check_machine(resolved.batch_size, resolved.precision, resolved.fsdp)
    if _noisy(config):
        check_noise(resolved, data, reporter.say)
    limit = longest_text(encoder)
    if limit and resolved.max_length > limit:
        raise EbmcalError(f"max-length is {resolved.max_length}; the encoder {config.encoder} takes {limit} at most.")
    _other_texts(config, say_damage or reporter.say)
    if about := ABOUT_ENCODERS.get(config.encoder):
        reporter.say(f"encoder: {about}")
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    reporter.say(f"data: {data.task_name}, {len(data.label_names)} labels, {sizes}")
    reporter.say(f"data: labels of train: {label_sentence(data.audit['splits']['train']['label_counts'])}")
    for sentence in audit_sentences(data.audit):
        reporter.say(f"data: {sentence}")
    return resolved, data


def source_of(config: RunConfig) -> DataSource:
    """The part of a config that says where the data is."""
    names = DataSource.__dataclass_fields__
    return DataSource(**{name: getattr(config, name) for name in names})


def _say_truncated(tables: dict[str, TokenTable], config: RunConfig, reporter: Reporter) -> None:
    cut = {name: table.n_truncated for name, table in tables.items() if table.n_truncated}
    if cut:
        counts = ", ".join(f"{n:,} of {len(tables[name]):,} in {name}" for name, n in cut.items())
        reporter.say(f"texts longer than {config.max_length} tokens were cut: {counts} (--max-length)")


def _say_unknown(tables: dict[str, TokenTable], config: RunConfig, reporter: Reporter) -> None:
    unknown = load_tokenizer(config.encoder, config.trust_remote_code).unk_token_id
    shares = {name: table.share_of(unknown) for name, table in tables.items() if unknown is not None}
    if any(share > MANY_UNKNOWN for share in shares.values()):
        listed = ", ".join(f"{share:.1%} in {name}" for name, share in shares.items())
        reporter.say(
            f"words that the encoder {config.encoder} does not know (scripts, emoji): {listed} of the tokens. All of "
            "them look the same to it; a multilingual encoder may know them."
        )


def _other_texts(config: RunConfig, say: Callable[[str], None] = lambda line: None) -> dict[str, Texts]:
    """The texts from elsewhere, by name."""
    where = cache_of(config), config.text_column, say, config.encoding
    return {name: load_other_texts(path, *where) for name, path in config.ood.items()}


def _conclude(folder: RunFolder, work: CellWork, training: dict[str, Any], failures: Failures) -> None:
    """Write the noise examples and `metrics.json`."""
    config, data, noise = work.config, work.data, work.noise
    cells = [cell for cell in all_cells(folder, config) if cell.name in training]
    earlier: dict[str, Any] = {}  # has the noise of methods that this call does not ask for
    with contextlib.suppress(EbmcalError):
        earlier = read_document(folder)
    test_sets = [name for name in data.splits if name.startswith("test")]
    if noise:
        write_json(folder.noise_examples, noise.examples)
    judged = judge_run(folder, cells, load_config(folder.config, {}).posthoc)
    document = {
        "format": 1,
        "task": data.task_name,
        "task_metric": data.metric,
        "label_names": list(data.label_names),
        "encoder": config.encoder,
        "encoder_about": ABOUT_ENCODERS.get(config.encoder),
        "noise_source": config.noise if noise else earlier.get("noise_source"),
        "versions": versions(),
        "seeds": list(dict.fromkeys(cell.seed for cell in all_cells(folder, config))),
        "fingerprints": fingerprints_of(data),
        "data": data.audit | {"truncated": {name: table.n_truncated for name, table in work.tables.items()}},
        "noise": noise.facts if noise else earlier.get("noise"),
        "rows": judged["rows"] + failures.rows(test_sets),
        "over_seeds": judged["over_seeds"],
        "paired": judged["paired"],
        "paired_over_seeds": judged["paired_over_seeds"],
        "detection": judged["detection"],
        "not_fitted": judged["not_fitted"],
        "training": training,
        "advice": advise(folder, cells, n_test=len(data.splits["test"]), not_fitted=judged["not_fitted"]),
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
