"""Runs from Python: `run` does all stages for one task, `open_run` opens a finished one; both give a `Run`.

The command line calls the same functions. Data may also be in memory: it is then written into the run folder, and
nothing is written anywhere else.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebmcal.config import RunConfig, load_config
from ebmcal.data.in_memory import as_table_file, is_stdin
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.model import Model, load
from ebmcal.pipeline.ownership import check_place
from ebmcal.pipeline.stages import run as run_stages
from ebmcal.pipeline.stages import train_only
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter, console_of_main_process
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json
from ebmcal.storage.temporary import TemporaryFolder
from ebmcal.tables import Sheet, list_test_sets, paired_table, summary_table
from ebmcal.tasks import find_task

#: Settings that name a file of labelled texts; they may be in memory, as may the texts of `ood`.
DATA_SETTINGS = ("train", "calibration", "test")


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder: its results, its models and what they predicted. Made by `run` and `open_run`.

    For example:

        run = ebmcal.open_run("runs/mine")
        run.results, run.advice, run.model("hidden"), run.predictions("hidden", "test")
    """

    folder: Path
    owner: Any = None  # of a temporary folder, which lives as long as this object

    @property
    def document(self) -> dict[str, Any]:
        """Everything that was measured: `metrics.json` of the folder."""
        if not self._paths.metrics.exists():
            raise EbmcalError(f"The run {self.folder} is not finished: it has no metrics.json. Call ebmcal.run again.")
        return read_json(self._paths.metrics)

    @property
    def results(self) -> list[dict[str, Any]]:
        """What the table shows: a dictionary for each method, seed and calibrator.

        Its keys are `method`, `posthoc` (None or as in "temperature (dev)"), `seed`, `test_set`, `n_rows`, `note` and
        `metrics`, which has `value`, `low` and `high` by name.
        """
        return self.document["rows"]

    @property
    def report(self) -> Path:
        """The page of the run, which needs no other file."""
        return self._paths.report

    @property
    def cells(self) -> list[Cell]:
        """Method and seed of every model."""
        folders = sorted((self.folder / "checkpoints").glob("*-seed*/model"))
        return [Cell.parse(folder.parent.name) for folder in folders]

    @property
    def advice(self) -> list[str]:
        """What the calibration split suggests: which row to use, and whether the energy helped."""
        return list((self.document.get("advice") or {}).get("sentences", ()))

    def table(self, metrics: Sequence[str] | None = None) -> Sheet:
        """Methods × metrics over seeds, for each test set, and the paired tests; it prints itself."""
        document = self.document
        sets = [summary_table(document, test_set=name, metrics=metrics) for name in list_test_sets(document)]
        return Sheet(tuple(table for table in (*sets, paired_table(document)) if table.rows))

    def model(self, method: str | None = None, seed: int | None = None) -> Model:
        """The trained model of a method (the only one by default) and a seed (the first by default)."""
        return replace(load(self._paths.model(self._cell(method, seed))), owner=self)

    def predictions(self, method: str | None = None, split: str = "test", seed: int | None = None) -> Predictions:
        """What a model said about a split: train, calibration, test, noise, ood_NAME."""
        cell = self._cell(method, seed)
        if split not in self._paths.splits(cell):
            raise unknown_name(f"split of {cell.name}", split, self._paths.splits(cell))
        return Predictions.read(self._paths.predictions(cell, split))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {', '.join(cell.name for cell in self.cells)})"

    @property
    def _paths(self) -> RunFolder:
        return RunFolder(self.folder)

    def _cell(self, method: str | None, seed: int | None) -> Cell:
        methods = dict.fromkeys(cell.method for cell in self.cells)
        if method is None and len(methods) != 1:
            raise EbmcalError(f"Say which method: {self.folder} has {', '.join(methods) or 'none yet'}.")
        method = next(iter(methods)) if method is None else method
        if method not in methods:
            raise unknown_name(f"method of {self.folder}", method, methods)
        seeds = sorted(cell.seed for cell in self.cells if cell.method == method)
        if seed is not None and seed not in seeds:
            raise EbmcalError(f"{self.folder} has no {method} of seed {seed}; there is {', '.join(map(str, seeds))}.")
        return Cell(method, seeds[0] if seed is None else seed)


def open_run(folder: str | Path) -> Run:
    """A run that was made before, by `run` or on the command line.

    For example:

        ebmcal.open_run("runs/mine").table()
    """
    folder = Path(folder).expanduser()
    if not RunFolder(folder).config.is_file():
        raise EbmcalError(f"{folder} is not a run folder: it has no config.yaml. Give the output of a run.")
    return Run(folder)


def _with_settings(function: Callable[..., Run]) -> Callable[..., Run]:
    """Show every field of `RunConfig` in the signature, so that help and completion know them."""
    first = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    fields = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=field.annotation,
            default=field.get_default(call_default_factory=True),
        )
        for name, field in RunConfig.model_fields.items()
    ]  # fmt: skip
    shown = inspect.Signature([*first, *fields], return_annotation=Run)
    function.__signature__ = shown  # type: ignore[attr-defined]  # what `inspect` looks for
    return function


@_with_settings
def run(
    config: RunConfig | str | Path | None = None, *, progress: bool = False, shared_cache: bool = False, **settings: Any
) -> Run:
    """Train and judge the models of a task; the same call on the same `output` goes on where it stopped.

    Keyword arguments are the fields of `RunConfig`, over those of `config`, if given (a `RunConfig` or a YAML file).
    `train`, `calibration`, `test` and the texts of `ood` are paths, tuples (texts, labels), dicts of columns,
    `datasets.Dataset`, or tables of pandas, polars, pyarrow or duckdb. Without `output` the run lives in a temporary
    folder, as long as the object that is returned. Noise and tokens lie in `cache_dir`, in $EBMCAL_CACHE, in the
    user's cache (`shared_cache`, as on the command line), or else in the run folder.

        run = ebmcal.run(train=(texts, labels), encoder="minilm", methods=["baseline", "hidden"])
        run.results, run.model("hidden").predict(["a text"]).probs
    """
    ready, folder, owner = _prepared(config, settings, shared_cache)
    run_stages(ready, _reporter(folder, progress))
    return Run(folder.root, owner)


@_with_settings
def train(
    config: RunConfig | str | Path | None = None, *, progress: bool = False, shared_cache: bool = False, **settings: Any
) -> Run:
    """The models of a `run`, without predictions and report; under torchrun its processes share the work.

    For example:

        model = ebmcal.train(train="mine.csv", methods=["hidden"], output="runs/mine").model("hidden")
    """
    ready, folder, owner = _prepared(config, settings, shared_cache)
    train_only(ready, _reporter(folder, progress))
    return Run(folder.root, owner)


def _reporter(folder: RunFolder, progress: bool) -> Reporter:
    return console_of_main_process(folder.log) if progress else Reporter()


def _prepared(
    config: RunConfig | str | Path | None, settings: dict[str, Any], shared_cache: bool
) -> tuple[RunConfig, RunFolder, TemporaryFolder | None]:
    """The config with a place for everything and data in memory written there; the folder; who owns a temporary one."""
    if config is not None and not isinstance(config, RunConfig | str | Path):
        raise EbmcalError(
            f"config is a RunConfig or the path of a YAML file; {type(config).__name__} came. Settings go in by name."
        )
    ood = settings.get("ood") or {}
    if not isinstance(ood, Mapping):
        raise EbmcalError(
            f"ood takes a dictionary of names and texts or files, as in {{'books': 'books.csv'}}; {ood!r} came."
        )
    objects = {name: settings[name] for name in DATA_SETTINGS if _is_in_memory(settings.get(name))}
    others = {name: texts for name, texts in ood.items() if _is_in_memory(texts)}
    files = settings | {name: Path("in memory") for name in objects}
    if others:
        files["ood"] = {**ood, **{name: Path("in memory") for name in others}}
    if isinstance(config, RunConfig):
        config = load_config(None, config.model_dump() | files)
    else:
        config = load_config(None if config is None else Path(config).expanduser(), files)
    owner = None
    if config.output is None:
        owner = TemporaryFolder()
        folder = RunFolder(owner.path / "run")
    else:
        folder = RunFolder(config.output.expanduser())
    check_place(folder)
    changes: dict[str, Any] = {"output": folder.root}
    if config.cache_dir is None and not shared_cache and not os.environ.get("EBMCAL_CACHE"):
        changes["cache_dir"] = folder.cache
    for name, data in objects.items():
        changes[name], columns = as_table_file(data, folder.data, _columns(config))
        changes |= {"text_column": columns.text, "text_pair_column": columns.pair, "label_column": columns.label}
    if others:
        written = {name: as_table_file(texts, folder.data)[0] for name, texts in others.items()}
        changes["ood"] = config.ood | written
    return config.model_copy(update=changes), folder, owner


def _is_in_memory(data: Any) -> bool:
    return data is not None and (is_stdin(data) or not isinstance(data, str | os.PathLike))


def _columns(config: RunConfig) -> Columns:
    """The columns of labelled texts: those that were named, or of the task, or the usual ones."""
    task = find_task(config.task) if config.task else None
    usual = Columns(task.text_column, task.pair_column, task.label_column) if task else Columns("text", None, "label")
    return usual.override(config.text_column, config.text_pair_column, config.label_column)
