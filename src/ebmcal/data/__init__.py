"""Texts and labels: files, in-memory objects and built-in tasks become splits of `datasets.Dataset` with an audit.

`sources` finds the tables of a request, `text_files` and `tables` read them, `memory` accepts Python objects, `store`
keeps them as memory-mapped Arrow, `labels`, `splits` and `audit` produce the splits, `load` puts it all together.
Importing this package is cheap: `datasets`, pyarrow and pandas are imported when data is read.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebmcal.data.audit import audit_messages, label_summary
    from ebmcal.data.builtin import imdb_reviews
    from ebmcal.data.load import COLUMNS, TaskData, as_dataset, load_task
    from ebmcal.data.sources import DataConfig
    from ebmcal.data.splits import stratified_folds, stratified_split, stratified_subset
    from ebmcal.data.store import dataset_fingerprint, text_keys
    from ebmcal.data.tasks import TASKS, Task, find_task

_MODULES = {
    "audit": ("audit_messages", "label_summary"),
    "builtin": ("imdb_reviews",),
    "load": ("COLUMNS", "TaskData", "as_dataset", "load_task"),
    "sources": ("DataConfig",),
    "splits": ("stratified_folds", "stratified_split", "stratified_subset"),
    "store": ("dataset_fingerprint", "text_keys"),
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
    "imdb_reviews",
    "label_summary",
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
