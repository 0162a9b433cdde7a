"""How long work tells what it is doing: stages with a bar, and lines that also go to the log.

The library is silent by default; the command line passes a `Console`. It imports rich only when it draws.
"""

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ebmcal.storage.atomic import explaining_disk

Advance = Callable[..., None]


class Reporter:
    """Says nothing; base of what does."""

    def say(self, text: str) -> None:
        """A line for the reader."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None) -> Iterator[Advance]:
        """A stage of `total` units, None where nobody knows; yields `advance(n=1, note="")`."""
        yield lambda n=1, note="": None


class Console(Reporter):
    """Bars and lines on the terminal (standard error), and every line with its time in `log`."""

    def __init__(self, log: Path | None = None) -> None:
        from rich.console import Console as RichConsole

        self.log, self.console = log, RichConsole(stderr=True)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)
        self._write(text)

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None) -> Iterator[Advance]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        columns += [TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}")]
        self._write(f"{title}: begun")
        with Progress(*columns, console=self.console, transient=False) as bars:
            bar = bars.add_task(title, total=total, note="")

            def advance(n: int = 1, note: str | None = None) -> None:
                fields: dict[str, Any] = {} if note is None else {"note": note}
                bars.update(bar, advance=n, **fields)

            yield advance
            bars.update(bar, completed=total)
        self._write(f"{title}: done")

    def _write(self, text: str) -> None:
        if self.log is not None:
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
            with explaining_disk(self.log):
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with open(self.log, "a", encoding="utf-8") as handle:
                    handle.write(f"{now} {text}\n")


def console_of_main_process(log: Path | None = None) -> Reporter:
    """A `Console` in the first process of a torchrun, silence in the others."""
    return Console(log) if os.environ.get("RANK", "0") == "0" else Reporter()
