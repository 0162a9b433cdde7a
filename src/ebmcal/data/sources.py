"""What the user requested → the tables to read: own files and objects, a task in a local folder, or the hub.

All mistakes in a request are found here, before any row is read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebmcal.data.builtin import reviews_source
from ebmcal.data.memory import as_source
from ebmcal.data.tables import TableSource
from ebmcal.data.tasks import Task, find_task
from ebmcal.data.text_files import check_encoding
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError, error_context, require_extra

_OPTIONAL = ("dev_mismatched",)

Part = tuple[TableSource, Columns]


@dataclass(frozen=True)
class DataConfig:
    """Where the data is: a built-in `task` (with `data_dir` or `hub`), or own data in `train` (and more).

    `train`, `calibration` and `test` are paths or objects as in `as_dataset`. Without `test`, a tenth of the training
    rows is split off. Without `calibration`, `calibration_share` of them is; None splits off no calibration rows.

    >>> DataConfig(train="train.csv", text_column="review").task is None
    True
    """

    task: str | None = None
    data_dir: Path | None = None
    hub: bool = False
    train: Any = None
    calibration: Any = None
    test: Any = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    encoding: str | None = None
    max_train_rows: int | None = None
    max_eval_rows: int | None = None
    split_seed: int = 0
    calibration_share: float | None = None

    @property
    def columns(self) -> Columns:
        """The columns that were named."""
        return Columns(self.text_column, self.text_pair_column, self.label_column, self.id_column)


@dataclass(frozen=True)
class TaskSources:
    """The tables of a task by part: "train" and "dev" (to be cut in two), or "train", "calibration", "test"."""

    name: str
    metric: str
    label_names: tuple[str, ...]  # empty: taken from the training data
    parts: dict[str, Part]


def resolve_sources(data: DataConfig) -> TaskSources:
    """Find the tables of a request and check their headers."""
    _check_request(data)
    task = find_task(data.task) if data.task else None
    if task is not None:
        _check_pair_columns(data, task)
    if data.train is not None:
        parts = _own_parts(data, task)
    else:
        assert task is not None
        found = _task_parts(data, task)
        parts = {part: (source, source.resolve(columns)) for part, (source, columns) in found.items()}
    if task is None:
        return TaskSources(_own_name(parts["train"][0]), "accuracy", (), parts)
    return TaskSources(task.name, task.metric, task.label_names, parts)


def _check_request(data: DataConfig) -> None:
    has_own = data.train is not None
    if not has_own and (data.calibration is not None or data.test is not None):
        raise EbmcalError("Calibration or test data needs training data: set train too.")
    if data.task is None and not has_own:
        raise EbmcalError("No data given. Set task to a built-in task (see `ebmcal tasks`) or train to a file.")
    if has_own and (data.data_dir or data.hub):
        raise EbmcalError("Set either train (own data), data_dir or hub, not several of them.")
    if data.data_dir and data.hub:
        raise EbmcalError("Set either data_dir or hub, not both.")
    for name in ("max_train_rows", "max_eval_rows"):
        value = getattr(data, name)
        if value is not None and value < 1:
            raise EbmcalError(f"{name} is {value}; expected at least 1, or None for all rows.")
    if data.split_seed < 0:
        raise EbmcalError(f"split_seed is {data.split_seed}; expected 0 or more.")
    if data.calibration_share is not None and not 0 < data.calibration_share < 0.9:
        raise EbmcalError(f"calibration_share is {data.calibration_share}; expected between 0 and 0.9, or None.")
    check_encoding(data.encoding)


def _check_pair_columns(data: DataConfig, task: Task) -> None:
    if not task.is_pair and data.text_pair_column:
        raise EbmcalError(f"{task.name} has single texts, but text_pair_column is {data.text_pair_column!r}.")
    if task.is_pair and (data.text_column is None) != (data.text_pair_column is None):
        raise EbmcalError(
            f"{task.name} has pairs of texts, but only one text column is set. Set both text_column and "
            f"text_pair_column, or neither (then {task.text_column!r} and {task.text_pair_column!r} are read)."
        )


def _own_parts(data: DataConfig, task: Task | None) -> dict[str, Part]:
    usual = (
        Columns(task.text_column, task.text_pair_column, task.label_column) if task else Columns(None, None, "label")
    )
    columns = usual.override(data.columns)
    given = {"train": data.train, "calibration": data.calibration, "test": data.test}
    parts = {}
    for part, value in given.items():
        if value is not None:
            with error_context(f"{part} data"):
                parts[part] = as_source(value, columns, data.encoding)
    if len({columns.pair is None for _, columns in parts.values()}) > 1:
        raise EbmcalError(f"Some of the data ({', '.join(parts)}) has pairs and some has single texts. Use one kind.")
    return parts


def _own_name(source: TableSource) -> str:
    """A name for the user's task: that of the file, or of its directory if the file is just called train."""
    if not source.paths:
        return "in-memory data"
    path = source.paths[0]
    stem = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
    return path.resolve().parent.name or stem if stem.lower() in ("train", "training", "data") else stem


def _task_parts(data: DataConfig, task: Task) -> dict[str, Part]:
    if data.hub:
        return _hub_parts(task, data.columns)
    if data.data_dir is not None:
        return _folder_parts(task, Path(data.data_dir).expanduser(), data.columns)
    if not task.folder:
        usual = Columns(task.text_column, None, task.label_column, where=("source", "rotten_tomatoes"))
        return {"train": (reviews_source(), usual.override(data.columns))}
    on_hub = f", or hub to download {task.hub.dataset}" if task.hub else ""
    raise EbmcalError(
        f"Where is {task.name}? Set data_dir to a folder with {task.folder}/{task.files['train']}{on_hub}."
    )


def _folder_parts(task: Task, data_dir: Path, named: Columns) -> dict[str, Part]:
    """The parts of a task in `data_dir` or in its subfolder of the task; the layout is detected."""
    if not data_dir.is_dir():
        problem = "is a file; expected a directory" if data_dir.exists() else "does not exist"
        raise EbmcalError(f"data_dir {data_dir} {problem}.")
    config = task.hub.config if task.hub else None
    names = {name.lower() for name in (task.folder, config, task.name) if name}
    inside = sorted(path for path in data_dir.iterdir() if path.is_dir() and path.name.lower() in names)
    for folder in [*inside, data_dir]:
        for layout in (_task_files, _saved_dataset, _hub_parquet):
            parts = layout(task, folder)
            if parts:
                _check_complete(task, folder, parts)
                return {part: (source, columns.override(named)) for part, (source, columns) in parts.items()}
    wanted = [f"{task.folder}/{task.files['train']}"] if task.folder else []
    wanted += [f"{task.hub.splits['train']}-*.parquet", "a dataset saved by `save_to_disk`"] if task.hub else []
    found = ", ".join(sorted(path.name for path in data_dir.iterdir())[:12]) or "nothing"
    raise EbmcalError(f"{data_dir} does not contain {task.name}: expected {' or '.join(wanted)}; found {found}.")


def _task_files(task: Task, folder: Path) -> dict[str, Part]:
    columns = Columns(task.text_column, task.text_pair_column, task.label_column)
    paths = {part: folder / name for part, name in task.files.items() if (folder / name).is_file()}
    return {part: (TableSource(str(path), (path,), task.format, task.header), columns) for part, path in paths.items()}


def _saved_dataset(task: Task, folder: Path) -> dict[str, Part]:
    """What `DatasetDict.save_to_disk` wrote."""
    if task.hub is None or not (folder / "dataset_dict.json").is_file():
        return {}
    paths = {part: tuple(sorted((folder / split).glob("data*.arrow"))) for part, split in task.hub.splits.items()}
    return {part: (TableSource(str(files[0]), files), _hub_columns(task)) for part, files in paths.items() if files}


def _hub_parquet(task: Task, folder: Path) -> dict[str, Part]:
    """Parquet files with the names of the hub."""
    parts: dict[str, Part] = {}
    for part, split in task.hub.splits.items() if task.hub else ():
        paths = [p for where in (folder, folder / "data") for p in sorted(where.glob(f"{split}-*.parquet"))]
        paths = paths or [p for p in [folder / f"{split}.parquet"] if p.is_file()]
        if paths:
            parts[part] = TableSource(str(paths[0]), tuple(paths), "parquet"), _hub_columns(task)
    return parts


def _check_complete(task: Task, folder: Path, parts: dict[str, Part]) -> None:
    expected = task.files or (task.hub.splits if task.hub else {})
    missing = [part for part in expected if part not in parts and part not in _OPTIONAL]
    if missing:
        names = ", ".join(expected[part] for part in missing)
        raise EbmcalError(f"{folder} has only a part of {task.name}: {names} is missing.")


def _hub_columns(task: Task) -> Columns:
    assert task.hub is not None
    return Columns(task.hub.text_column, task.hub.text_pair_column, task.hub.label_column)


def _hub_parts(task: Task, named: Columns) -> dict[str, Part]:
    """Download a task with `datasets`, or find it in its cache."""
    if task.hub is None:
        raise EbmcalError(f"{task.name} is not available from the hub. Set data_dir.")
    require_extra("train", "datasets")
    columns = _hub_columns(task).override(named)
    parts: dict[str, Part] = {}
    for part, split in task.hub.splits.items():
        paths = _download(task, split)
        parts[part] = TableSource(f"{task.hub.dataset} ({split})", paths), columns
    return parts


def _download(task: Task, split: str) -> tuple[Path, ...]:
    import datasets

    assert task.hub is not None
    try:
        loaded = datasets.load_dataset(task.hub.dataset, task.hub.config, split=split)
    except Exception as error:  # network, offline mode, a renamed dataset: each library has its own exceptions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        local = f" Or set data_dir to a folder with {task.folder}/{task.files['train']}." if task.folder else ""
        raise EbmcalError(
            f"Could not load {task.hub.dataset} ({task.hub.config or 'default'}) from the hub: {reason}. Check the "
            f"network and that HF_HUB_OFFLINE is not set, or download it once with a network.{local}"
        ) from error
    return tuple(Path(entry["filename"]) for entry in loaded.cache_files)
