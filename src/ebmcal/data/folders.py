"""A local folder → the files of a task: the GLUE layout, the hub's Parquet layout, or what `save_to_disk` wrote."""

from pathlib import Path
from typing import Any

from ebmcal.data.parts import PartFiles
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import read_json
from ebmcal.tasks import Task

_OPTIONAL = ("dev_mismatched",)


def find_parts(task: Task, data_dir: Path, given: tuple[str | None, ...] = (None, None, None)) -> dict[str, PartFiles]:
    """The parts of a task under `data_dir`, or under its folder for the task; the layout is recognised.

    `given`: names of the text, pair and label columns where they are not the usual ones.
    """
    if not data_dir.is_dir():
        problem = "is a file, not a folder" if data_dir.exists() else "does not exist"
        raise EbmcalError(f"data_dir {data_dir} {problem}.")
    for folder in _candidates(task, data_dir):
        for layout in (_glue, _saved, _parquet):
            parts = layout(task, folder, given)
            if parts:
                return _complete(task, folder, parts)
    raise _nothing_found(task, data_dir)


def hub_columns(task: Task) -> Columns:
    """The columns of the hub's copy of a task."""
    return Columns(task.hub.text_column, task.hub.pair_column, task.hub.label_column)


def _candidates(task: Task, data_dir: Path) -> list[Path]:
    """The task's folder inside `data_dir`, whatever its case, then `data_dir` itself."""
    names = {name.lower() for name in (task.folder, task.hub.config, task.name) if name}
    inside = sorted(path for path in data_dir.iterdir() if path.is_dir() and path.name.lower() in names)
    return [*inside, data_dir]


def _glue(task: Task, folder: Path, given: tuple[Any, ...]) -> dict[str, PartFiles]:
    found = {part: folder / name for part, name in task.files.items() if (folder / name).is_file()}
    columns = Columns(task.text_column, task.pair_column, task.label_column).override(*given)
    return {part: PartFiles((path,), "glue", columns, task.header) for part, path in found.items()}


def _saved(task: Task, folder: Path, given: tuple[Any, ...]) -> dict[str, PartFiles]:
    if not (folder / "dataset_dict.json").is_file():
        return {}
    parts = {}
    for part, split in task.hub.splits.items():
        if (folder / split / "state.json").is_file():
            parts[part] = PartFiles(_arrow_files(folder / split), "arrow", hub_columns(task).override(*given))
    return parts


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    state = read_json(folder / "state.json")
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise EbmcalError(f"{folder / 'state.json'} does not list its data files. Save the data set again.") from error
    if not names or any(Path(name).name != name for name in names):
        raise EbmcalError(f"{folder / 'state.json'} names files outside its folder. Save the data set again.")
    return tuple(folder / name for name in names)


def _parquet(task: Task, folder: Path, given: tuple[Any, ...]) -> dict[str, PartFiles]:
    parts = {}
    for part, split in task.hub.splits.items():
        paths = [p for where in (folder, folder / "data") for p in sorted(where.glob(f"{split}-*.parquet"))]
        single = folder / f"{split}.parquet"
        paths = paths or ([single] if single.is_file() else [])
        if paths:
            parts[part] = PartFiles(tuple(paths), "parquet", hub_columns(task).override(*given))
    return parts


def _complete(task: Task, folder: Path, parts: dict[str, PartFiles]) -> dict[str, PartFiles]:
    expected = task.files or task.hub.splits
    missing = [part for part in expected if part not in parts and part not in _OPTIONAL]
    if missing:
        names = ", ".join(expected[part] for part in missing)
        raise EbmcalError(
            f"{folder} has only part of {task.name}: {names} is missing (needed for {', '.join(missing)})."
        )
    return parts


def _nothing_found(task: Task, data_dir: Path) -> EbmcalError:
    names = sorted(path.name for path in data_dir.iterdir())[:12]
    wanted = f"{task.folder}/{task.files['train']}" if task.folder else "train.parquet"
    return EbmcalError(
        f"{data_dir} has no {task.name}: looked for {wanted}, for Parquet files named "
        f"{task.hub.splits['train']}-*.parquet and for a data set saved by `save_to_disk`. "
        f"The folder holds {', '.join(names) or 'nothing'}."
    )
