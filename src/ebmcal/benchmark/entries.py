"""The entries under `tasks` in a benchmark's YAML: names of built-in tasks, or settings; and the list of mistakes."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.tasks import find_task

EXAMPLE = "for example `tasks: [sst2, {task: rte, noise_ratio: 1}, {name: reviews, train: reviews.csv}]`"


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


def own_settings(entries: Any, mistakes: Mistakes) -> dict[str, dict[str, Any]]:
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


def is_packaged(task: str) -> bool:
    """Whether the texts of a built-in task come with a package, not from a GLUE folder.

    >>> is_packaged("rotten-tomatoes"), is_packaged("RTE"), is_packaged("mine")
    (True, False, False)
    """
    try:
        return find_task(str(task)).folder is None
    except EbmcalError:
        return False
