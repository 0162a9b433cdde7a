"""What the user asked for → which files to read: a GLUE folder, a folder in the hub's layout, or the user's own files.

Everything that can be wrong with the request is found here, before anything is read.
"""

from dataclasses import dataclass
from pathlib import Path

from ebmcal.data.builtin import rotten_tomatoes
from ebmcal.data.folders import find_parts
from ebmcal.data.hub import hub_parts
from ebmcal.data.in_memory import IN_MEMORY
from ebmcal.data.parts import PartFiles, check_file, format_of
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError
from ebmcal.tasks import Task, find_task


@dataclass
class DataSource:
    """Where data comes from: a built-in `task` (with `data_dir` or `hub`), or `train` (and other) files.

    >>> DataSource(train=Path("train.csv"), text_column="text", label_column="label").task is None
    True
    """

    task: str | None = None
    data_dir: Path | None = None
    hub: bool = False
    train: Path | None = None
    calibration: Path | None = None
    test: Path | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    max_train_rows: int | None = None
    max_eval_rows: int | None = None
    split_seed: int = 0
    encoding: str | None = None

    def __post_init__(self) -> None:
        for name in ("data_dir", "train", "calibration", "test"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else Path(value).expanduser())


@dataclass(frozen=True)
class ResolvedSource:
    """Files for each part. `parts` has train and, with the published rule, dev (cut in two), else calibration, test."""

    name: str
    metric: str
    label_names: tuple[str, ...] | None
    parts: dict[str, PartFiles]


def resolve_source(source: DataSource) -> ResolvedSource:
    """Resolve and check a `DataSource`; opens files only to look at their headers."""
    _check_request(source)
    task = find_task(source.task) if source.task else None
    parts = _task_parts(source, task) if task and source.train is None else _own_files(source, task)
    for part in parts.values():
        part.check()
    if task is None:
        return ResolvedSource(_own_name(parts["train"].paths[0]), "accuracy", None, parts)
    return ResolvedSource(task.name, task.metric, task.label_names, parts)


def _own_name(train: Path) -> str:
    """A name for the user's own task: the file's, or its folder's when the file is just called train."""
    if train.name.startswith(IN_MEMORY):
        return "texts in memory"
    plain = train.stem.lower() in ("train", "training", "data")
    return train.resolve().parent.name or train.stem if plain else train.stem


def _check_request(source: DataSource) -> None:
    if source.train is None and (source.calibration or source.test):
        raise EbmcalError("A calibration or test file needs a training file beside it: give train too.")
    if source.task is None and source.train is None:
        raise EbmcalError("No data was named. Give a built-in task (see `ebmcal tasks`) or a training file.")
    if source.train is not None and (source.data_dir or source.hub):
        raise EbmcalError("Give either files of your own (train, …) or data_dir or hub, not both.")
    if source.data_dir is not None and source.hub:
        raise EbmcalError("Give either data_dir or hub, not both.")
    if source.text_pair_column is not None and source.text_pair_column == source.text_column:
        raise EbmcalError(f"Both texts of a pair were given as column {source.text_column!r}; they must differ.")
    for name in ("max_train_rows", "max_eval_rows"):
        if getattr(source, name) is not None and getattr(source, name) < 1:
            raise EbmcalError(f"{name} is {getattr(source, name)}; it must be at least 1, or left out for all rows.")
    if source.split_seed < 0:
        raise EbmcalError(f"split_seed is {source.split_seed}; it must be 0 or more.")


def _own_files(source: DataSource, task: Task | None) -> dict[str, PartFiles]:
    columns = Columns(task.text_column, task.pair_column, task.label_column) if task else Columns("text", None, "label")
    columns = columns.override(*_given_columns(source, task))
    files = {"train": source.train, "calibration": source.calibration, "test": source.test}
    given = {part: path for part, path in files.items() if path is not None}
    for path in given.values():
        check_file(path)
    return {
        part: PartFiles((path,), format_of(path), columns, encoding=source.encoding) for part, path in given.items()
    }


def _given_columns(source: DataSource, task: Task | None) -> tuple[str | None, str | None, str | None]:
    """The columns the user named; a pair task needs both texts or neither."""
    if task and not task.is_pair and source.text_pair_column:
        raise EbmcalError(f"{task.name} has single texts, but text_pair_column={source.text_pair_column!r} was given.")
    if task and task.is_pair and (source.text_column is None) != (source.text_pair_column is None):
        raise EbmcalError(
            f"{task.name} is a pair task, but only one text column was given. Give both text_column and "
            f"text_pair_column, or neither (then {task.text_column!r} and {task.pair_column!r} are read)."
        )
    return source.text_column, source.text_pair_column, source.label_column


def _task_parts(source: DataSource, task: Task) -> dict[str, PartFiles]:
    given = _given_columns(source, task)
    if source.hub:
        return hub_parts(task, given)
    if source.data_dir is not None:
        return find_parts(task, source.data_dir, given)
    if task.folder is None:
        return {"train": rotten_tomatoes(given)}
    raise EbmcalError(
        f"Where is {task.name}? Give data_dir, a folder in the GLUE layout (with {task.folder}/{task.files['train']}), "
        f"or ask for the hub to download {task.hub.dataset}."
    )
