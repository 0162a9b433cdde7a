"""The YAML file of a benchmark → its tasks, each with the config of its run. Nothing starts before all of it is right.

output: runs/glue
tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]
encoder: roberta-base          # any setting of a run: for all tasks
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ebmcal.config import RunConfig, load_config, read_yaml
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.noise_setting import parse_noise
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.tasks import find_task

EXAMPLE = "for example `tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]`"

#: Settings that belong to one task.
NOT_SHARED = ("task", "train", "calibration", "test")

#: A task's own setting takes the place of these shared ones: they say the same thing in another way.
REPLACES = {
    "train": ("data_dir", "hub"),
    "data_dir": ("hub",),
    "hub": ("data_dir",),
    "steps": ("epochs",),
    "epochs": ("steps",),
}


@dataclass(frozen=True)
class BenchmarkTask:
    """One run of a benchmark. `fingerprints` (split → contents) is None when it is not to be run this time."""

    name: str
    config: RunConfig
    fingerprints: dict[str, str] | None = None

    @property
    def is_chosen(self) -> bool:
        return self.fingerprints is not None

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.config.require_output())

    @property
    def cells(self) -> list[Cell]:
        return [Cell(method, seed) for seed in self.config.seeds for method in self.config.methods]


@dataclass(frozen=True)
class Benchmark:
    """Where the results go, and every task of the file, chosen or not."""

    output: Path
    tasks: tuple[BenchmarkTask, ...]

    @property
    def chosen(self) -> list[BenchmarkTask]:
        return [task for task in self.tasks if task.is_chosen]


@dataclass
class Mistakes:
    """What is wrong and for whom: a mistake that several tasks share is told once."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, where: str, what: object) -> None:
        self.found.setdefault(str(what), []).append(where)

    def has(self, where: str) -> bool:
        return any(where in places for places in self.found.values())

    @contextlib.contextmanager
    def catching(self, where: str) -> Iterator[None]:
        try:
            yield
        except EbmcalError as error:
            self.add(where, error)

    def raise_any(self, path: Path) -> None:
        if self.found:
            lines = [f"{', '.join(where)}: {what}".replace("\n", "\n    ") for what, where in self.found.items()]
            raise EbmcalError("\n  - ".join([f"The benchmark {path} has mistakes; nothing was started:", *lines]))


def load_benchmark(path: Path, output: Path | None = None, only: Sequence[str] = ()) -> Benchmark:
    """Read and check a benchmark: settings, models, data and output folders. One error has the mistakes of all tasks.

    `output` takes the place of the file's. Tasks that `only` does not name are kept with their settings alone: their
    data need not be here.

        load_benchmark(Path("benchmarks/glue-small.yaml"), only=["rte"])
    """
    shared, mistakes = read_yaml(path), Mistakes()
    written, entries = shared.pop("output", None), shared.pop("tasks", None)
    root = _output(output or written, mistakes)
    for name in [n for n in NOT_SHARED if n in shared]:
        mistakes.add("all tasks", f"{name} belongs to one task; put it under tasks, {EXAMPLE}.")
        del shared[name]
    own = _own_settings(entries, mistakes)
    configs = _configs(shared, own, root, mistakes)
    chosen = _chosen(only, own, mistakes)
    tasks = [_checked(name, config, mistakes) if name in chosen else BenchmarkTask(name, config)
             for name, config in configs.items()]  # fmt: skip
    mistakes.raise_any(path)
    return Benchmark(root, tuple(tasks))


def _output(given: Any, mistakes: Mistakes) -> Path:
    if given is None:
        mistakes.add("output", "say where the runs should go: `output: runs/NAME` in the file, or --output.")
    elif not isinstance(given, (str, Path)):
        mistakes.add("output", f"must be a folder; {given!r} came.")
    return Path(str(given)).expanduser()


def _configs(
    shared: dict[str, Any], own: Mapping[str, dict[str, Any]], root: Path, mistakes: Mistakes
) -> dict[str, RunConfig]:
    """Name → config, of the tasks whose settings are right, alone and together with the shared ones."""
    common = _attempt("all tasks", shared, mistakes)
    configs = {}
    for name, settings in own.items():
        alone = _attempt(name, settings, mistakes)
        values = {**_inherited(shared, settings), **settings, "output": root / name}
        config = _attempt(name, values, mistakes) if common and alone else None
        if config:
            configs[name] = config
        else:
            _check_data(name, values, mistakes)
    return configs


def _check_data(name: str, values: dict[str, Any], mistakes: Mistakes) -> None:
    """What is wrong with the data of a task whose other settings are wrong already: it is told along with them."""
    from ebmcal.data.sources import DataSource, resolve_source
    from ebmcal.pipeline.stages import source_of

    about_data = {k: v for k, v in values.items() if k in DataSource.__dataclass_fields__}
    config = _attempt(name, about_data, Mistakes())  # its own mistakes have been told
    if config:
        with mistakes.catching(name):
            resolve_source(source_of(config))


def _inherited(shared: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The shared settings that hold for a task with these settings of its own."""
    replaced = {other for name in settings for other in REPLACES.get(name, ())}
    if settings.get("task") and _is_packaged(settings["task"]):
        replaced.add("data_dir")  # that is the folder of the other tasks
    return {name: value for name, value in shared.items() if name not in replaced}


def _attempt(where: str, values: dict[str, Any], mistakes: Mistakes) -> RunConfig | None:
    with mistakes.catching(where):
        return load_config(None, values)


def _chosen(only: Sequence[str], own: Mapping[str, Any], mistakes: Mistakes) -> set[str]:
    wanted = {_plain(name): name for name in only}
    for name in set(wanted) - set(map(_plain, own)):
        mistakes.add("--only", unknown_name("task of this benchmark", wanted[name], own))
    return {name for name in own if not only or _plain(name) in wanted}


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _checked(name: str, config: RunConfig, mistakes: Mistakes) -> BenchmarkTask:
    """The task with its config resolved, after a look at its models, data and folder."""
    from ebmcal.pipeline.ownership import check_folder, fingerprints_of
    from ebmcal.pipeline.stages import prepare
    from ebmcal.progress import Reporter

    task = BenchmarkTask(name, config, {})
    for look in _looks(config):
        with mistakes.catching(name):
            look()
    if mistakes.has(name):
        return task
    with mistakes.catching(name):
        config, data = prepare(config, Reporter(), lambda line: print(line, file=sys.stderr))
        check_folder(task.folder, config, data)
        task = BenchmarkTask(name, config, fingerprints_of(data))
    return task


def _looks(config: RunConfig) -> list[Callable[[], Any]]:
    """What `prepare` would stop at, one by one."""
    from ebmcal.data import load_other_texts
    from ebmcal.data.sources import resolve_source
    from ebmcal.models.loading import check_encoder, check_language_model
    from ebmcal.pipeline.cache import cache_of
    from ebmcal.pipeline.stages import source_of
    from ebmcal.training.methods import find_method

    looks = [lambda: check_encoder(config.encoder, config.trust_remote_code)]
    if any(find_method(method).uses_noise for method in config.methods):
        models = [part.of for part in parse_noise(config.noise or "splice") if not part.is_online]
        looks += [partial(check_language_model, name, config.trust_remote_code) for name in models]
    looks.append(lambda: resolve_source(source_of(config)))
    return looks + [
        partial(load_other_texts, path, cache_of(config), config.text_column) for path in config.ood.values()
    ]


def _own_settings(entries: Any, mistakes: Mistakes) -> dict[str, dict[str, Any]]:
    """Name → the settings of its own, for each entry under `tasks`."""
    if not isinstance(entries, list) or not entries:
        mistakes.add("tasks", f"must be a list of tasks, {EXAMPLE}; {type(entries).__name__} came.")
        return {}
    own: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            name, settings = _named(entry)
        except EbmcalError as error:
            mistakes.add(f"entry {number} of tasks", error)
            continue
        if name.lower() in (other.lower() for other in own):
            mistakes.add(name, "two tasks have this name, and so one folder; give one of them a `name` of its own.")
        own[name] = settings
    return own


def _named(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name of an entry and its settings; `name` itself is no setting of a run."""
    if isinstance(entry, str):
        entry = {"task": entry}
    if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
        raise EbmcalError(f"must be a name or settings, {EXAMPLE}; {entry!r} came.")
    settings = {key.replace("-", "_"): value for key, value in entry.items()}
    if "output" in settings:
        raise EbmcalError("output is one for the whole benchmark; each task gets a folder of its name in it.")
    name = settings.pop("name", None) or _usual_name(settings)
    if not re.fullmatch(r"\w[\w.+-]*", str(name)):
        raise EbmcalError(f"the name {name!r} becomes a folder: use letters, digits and . _ - + only.")
    return str(name), settings


def _usual_name(settings: Mapping[str, Any]) -> str:
    task, train = settings.get("task"), settings.get("train")
    if train is not None:
        return Path(str(train)).stem
    if task is None:
        raise EbmcalError("neither task (built in: see `ebmcal tasks`) nor train (a file of yours) is given.")
    try:
        return find_task(str(task)).name
    except EbmcalError as error:
        raise EbmcalError(f"{error} A task from files of yours: {{name: {task}, train: FILE}}.") from None


def _is_packaged(task: str) -> bool:
    """Whether the texts of a built-in task come with a package, not from a GLUE folder.

    >>> _is_packaged("rotten-tomatoes"), _is_packaged("RTE"), _is_packaged("mine")
    (True, False, False)
    """
    try:
        return find_task(str(task)).folder is None
    except EbmcalError:
        return False
