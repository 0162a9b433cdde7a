"""The YAML file of a benchmark as tasks, each with the config of its run. All mistakes are reported at once.

output: runs/glue
tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]
encoder: roberta-base          # any setting of a run: for all tasks
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebmcal.config import RunConfig, load_config, read_yaml
from ebmcal.data.tasks import find_task
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.run_dir import RunDir, Trial

EXAMPLE = "for example `tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]`"

#: Settings that belong to a single task.
TASK_SETTINGS = ("task", "train", "calibration", "test")

#: A setting of a task replaces these shared ones, which say the same in another way.
REPLACES = {
    "train": ("data_dir", "hub"),
    "data_dir": ("hub",),
    "hub": ("data_dir",),
    "steps": ("epochs",),
    "epochs": ("steps",),
}


@dataclass(frozen=True)
class BenchmarkTask:
    """One run of a benchmark; only a selected task is run."""

    name: str
    config: RunConfig
    is_selected: bool = True

    @property
    def directory(self) -> RunDir:
        assert self.config.output is not None
        return RunDir(self.config.output)

    @property
    def trials(self) -> list[Trial]:
        return [Trial(method, seed) for seed in self.config.seeds for method in self.config.methods]


@dataclass(frozen=True)
class Benchmark:
    """The output directory and all tasks of the file."""

    output: Path
    tasks: tuple[BenchmarkTask, ...]

    @property
    def selected(self) -> list[BenchmarkTask]:
        return [task for task in self.tasks if task.is_selected]


@dataclass
class _Mistakes:
    """Mistakes and the tasks that have them; a mistake of several tasks is reported once."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, place: str, mistake: object) -> None:
        places = self.found.setdefault(str(mistake), [])
        places += [] if place in places else [place]

    @contextlib.contextmanager
    def collect(self, place: str) -> Iterator[None]:
        try:
            yield
        except EbmcalError as error:
            self.add(place, error)

    def raise_if_any(self, path: Path) -> None:
        if self.found:
            lines = [f"{', '.join(places)}: {what}".replace("\n", "\n    ") for what, places in self.found.items()]
            raise EbmcalError("\n  - ".join([f"The benchmark {path} has mistakes; nothing was started:", *lines]))


def load_benchmark(path: Path, output: Path | None = None, only: Sequence[str] = ()) -> Benchmark:
    """Read and check a benchmark: settings, models and data of all tasks. One error lists all mistakes.

    `output` replaces that of the file. Tasks that `only` does not name are not selected; their data is not needed.

        load_benchmark(Path("benchmarks/glue-small.yaml"), only=["rte"])
    """
    shared, mistakes = read_yaml(path), _Mistakes()
    written, entries = shared.pop("output", None), shared.pop("tasks", None)
    root = _output(output or written, mistakes)
    for name in [n for n in TASK_SETTINGS if n in shared and not _is_shared_calibration(n, shared[n])]:
        mistakes.add("all tasks", f"{name} belongs to one task; put it under tasks, {EXAMPLE}.")
        del shared[name]
    own = _task_settings(entries, mistakes)
    selected = _selected(only, own, mistakes)
    tasks = []
    for name, settings in own.items():
        values = {**_inherited(shared, settings), **settings, "output": root / name}
        with mistakes.collect(name):
            tasks.append(BenchmarkTask(name, load_config(None, values), name in selected))
    for task in tasks:
        for check in (_check_encoder, _check_data) if task.is_selected else ():
            with mistakes.collect(task.name):
                check(task.config)
    mistakes.raise_if_any(path)
    return Benchmark(root, tuple(tasks))


def _check_encoder(config: RunConfig) -> None:
    from ebmcal.modeling.pretrained import check_encoder

    check_encoder(config.encoder, config.trust_remote_code)


def _check_data(config: RunConfig) -> None:
    from ebmcal.data import load_task
    from ebmcal.pipeline.workspace import data_config
    from ebmcal.progress import Reporter
    from ebmcal.storage import cache_dir

    load_task(data_config(config, {}), cache_dir(config.cache_dir), Reporter())


def _output(given: Any, mistakes: _Mistakes) -> Path:
    if given is None:
        mistakes.add("output", "missing; write `output: runs/NAME` in the file, or use --output.")
    elif not isinstance(given, str | Path):
        mistakes.add("output", f"expected a directory, got {given!r}.")
    return Path(str(given)).expanduser()


def _is_shared_calibration(name: str, value: Any) -> bool:
    """`calibration: cross-fit` or `holdout` is a way to calibrate, not a file."""
    return name == "calibration" and value in ("auto", "cross-fit", "holdout")


def _inherited(shared: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The shared settings that apply to a task with these settings of its own."""
    replaced = {other for name in settings for other in REPLACES.get(name, ())}
    with contextlib.suppress(EbmcalError):
        if settings.get("task") and find_task(str(settings["task"])).folder is None:
            replaced.add("data_dir")  # an installed task; the directory is for the others
    return {name: value for name, value in shared.items() if name not in replaced}


def _selected(only: Sequence[str], own: Mapping[str, Any], mistakes: _Mistakes) -> set[str]:
    names = {name.lower(): name for name in own}
    for name in only:
        if name.lower() not in names:
            mistakes.add("--only", unknown_name("task of this benchmark", name, own))
    return {names[name.lower()] for name in only if name.lower() in names} if only else set(own)


def _task_settings(entries: Any, mistakes: _Mistakes) -> dict[str, dict[str, Any]]:
    """The entries of `tasks`: name → settings."""
    if not isinstance(entries, list) or not entries:
        mistakes.add("tasks", f"expected a list of tasks, {EXAMPLE}, got {type(entries).__name__}.")
        return {}
    own: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, start=1):
        with mistakes.collect(f"entry {number} of tasks"):
            name, settings = _named_settings(entry)
            if name.lower() in (other.lower() for other in own):
                raise EbmcalError(f"two tasks are called {name}; give one of them another `name`.")
            own[name] = settings
    return own


def _named_settings(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name of an entry, which becomes a directory, and its settings."""
    if isinstance(entry, str):
        entry = {"task": entry}
    if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
        raise EbmcalError(f"expected a name or settings, {EXAMPLE}, got {entry!r}.")
    settings = {key.replace("-", "_"): value for key, value in entry.items()}
    if "output" in settings:
        raise EbmcalError("output is set once for the whole benchmark; each task gets a directory in it.")
    name = str(settings.pop("name", None) or _default_name(settings))
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise EbmcalError(f"the name {name!r} becomes a directory: use letters, digits and . _ - + only.")
    return name, settings


def _default_name(settings: Mapping[str, Any]) -> str:
    task, train = settings.get("task"), settings.get("train")
    if train is not None:
        return Path(str(train)).stem
    if task is None:
        raise EbmcalError("expected task (built in: see `ebmcal tasks`) or train (a file), got neither.")
    try:
        return find_task(str(task)).name
    except EbmcalError as error:
        raise EbmcalError(f"{error} For your own file: {{name: {task}, train: FILE}}.") from None
