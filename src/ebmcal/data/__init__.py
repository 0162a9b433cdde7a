"""Texts and labels: files, in-memory objects and built-in tasks become splits of `datasets.Dataset` with an audit.

`load` turns a request into splits and is the place to start. `files` reads text formats, `tables` reads any table and
keeps it as memory-mapped Arrow, `memory` accepts Python objects, `columns` cleans values and maps labels to classes,
`tasks` has the built-in tasks, `splits` cuts, and `audit` reports.
Importing this package is cheap: `datasets`, pyarrow and pandas are imported when data is read.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebmcal.data.audit import audit_messages
    from ebmcal.data.load import COLUMNS, DataConfig, TaskData, as_dataset, load_task
    from ebmcal.data.splits import dataset_fingerprint, stratified_folds, stratified_split, stratified_subset, text_keys
    from ebmcal.data.tasks import TASKS, Task, find_task

_MODULES = {
    "audit": ("audit_messages",),
    "load": ("COLUMNS", "DataConfig", "TaskData", "as_dataset", "load_task"),
    "splits": ("dataset_fingerprint", "stratified_folds", "stratified_split", "stratified_subset", "text_keys"),
    "tasks": ("TASKS", "Task", "find_task"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "COLUMNS",
    "TASKS",
    "DataConfig",
    "Task",
    "TaskData",
    "as_dataset",
    "audit_messages",
    "dataset_fingerprint",
    "find_task",
    "load_task",
    "stratified_folds",
    "stratified_split",
    "stratified_subset",
    "text_keys",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
