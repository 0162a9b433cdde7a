"""Progress reporting: progress bars and log lines.

The library is silent unless it gets a `Console`; rich is imported only when something is drawn.
"""

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ebmcal.storage import explain_disk_errors

Advance = Callable[..., None]


class Reporter:
    """Silent by default; with `log`, every message is appended to that file with its time."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log

    def info(self, text: str) -> None:
        """Report one line."""
        if self.log is not None:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
            with explain_disk_errors(self.log):
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with open(self.log, "a", encoding="utf-8") as handle:
                    handle.write(f"{now} {text}\n")

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Advance]:
        """A stage of `total` units (None if unknown); yields `advance(n=1, note="")`."""
        Reporter.info(self, f"{title}: started")
        yield lambda n=1, note="": None
        Reporter.info(self, f"{title}: finished")


class Console(Reporter):
    """Progress bars and lines on standard error (or in a notebook), and in the log."""

    def __init__(self, log: Path | None = None) -> None:
        from rich.console import Console as RichConsole

        super().__init__(log)
        self.console = RichConsole(stderr=True)

    def info(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)
        super().info(text)

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Advance]:
        from rich import progress as rich

        # Fits 80 columns with the longest title and note: the time left, and how long it took once finished.
        time = rich.TimeRemainingColumn(elapsed_when_finished=True)
        bar_and_count = (rich.TextColumn("{task.description}"), rich.BarColumn(10), rich.MofNCompleteColumn())
        columns = (*bar_and_count, time, rich.TextColumn("{task.fields[note]}"))
        with super().stage(title, total), rich.Progress(*columns, console=self.console) as bars:
            bar = bars.add_task(title, total=total, note="")

            def advance(n: int = 1, note: str | None = None) -> None:
                fields: dict[str, Any] = {} if note is None else {"note": note}
                bars.update(bar, advance=n, **fields)

            yield advance
            bars.update(bar, total=total or 1, completed=total or 1)


def make_reporter(progress: bool | None, log: Path | None = None) -> Reporter:
    """A `Console` in the main process if `progress` is true (None: on terminals and in notebooks), else silent."""
    if os.environ.get("RANK", "0") != "0":
        return Reporter()
    if progress is False:
        return Reporter(log)
    drawn = Console(log)
    return drawn if progress or drawn.console.is_terminal or drawn.console.is_jupyter else Reporter(log)
