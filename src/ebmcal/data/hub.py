"""The hub through `datasets`: the only place of the data code that may use the network, and only when asked."""

from pathlib import Path

from ebmcal.data.folders import hub_columns
from ebmcal.data.parts import PartFiles
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.tasks import Task


def hub_parts(task: Task, given: tuple[str | None, ...] = (None, None, None)) -> dict[str, PartFiles]:
    """Download (or find in the hub's own cache) a task and return its Arrow files."""
    require_extra("train", "datasets")
    columns = hub_columns(task).override(*given)
    return {part: PartFiles(_files(task, split), "arrow", columns) for part, split in task.hub.splits.items()}


def _files(task: Task, split: str) -> tuple[Path, ...]:
    import datasets

    try:
        loaded = datasets.load_dataset(task.hub.dataset, task.hub.config, split=split)
    except Exception as error:  # network, offline mode, a moved data set: each library raises its own kind
        raise _explained(task, error) from error
    files = tuple(Path(entry["filename"]) for entry in loaded.cache_files)
    if not files:
        raise EbmcalError(f"{task.hub.dataset} was loaded but left no Arrow files on disk; unset keep_in_memory.")
    return files


def _explained(task: Task, error: Exception) -> EbmcalError:
    reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
    elsewhere = f"Or give data_dir, a local folder in the GLUE layout ({task.folder}/train.tsv)." if task.folder else ""
    return EbmcalError(
        f"Could not load {task.hub.dataset} ({task.hub.config or 'default'}) from the hub: {reason[0][:300]}. "
        "Check the network, and that HF_HUB_OFFLINE is not set, or download it once on a machine with a network. "
        f"{elsewhere}".strip()
    )
