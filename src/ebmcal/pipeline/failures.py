"""What becomes of an error in one cell of a run: it ends the run, or it is written down and the other cells go on.

`ebmcal run` stops at the first error; `ebmcal benchmark` keeps going. A signal always stops.
"""

import contextlib
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell

LONGEST_REASON = 400  # characters


class Failures:
    """The cells that failed and why; lets every error through unless it is to `keep_going`.

    The reporter tells of each at once; `log` gets the traceback of what nobody expected.

    >>> failures = Failures(keep_going=True)
    >>> with failures.of(Cell("hidden", 1)):
    ...     raise EbmcalError("Training diverged")
    >>> failures.reasons
    {Cell(method='hidden', seed=1): 'Training diverged'}
    """

    def __init__(self, keep_going: bool = False, reporter: Reporter | None = None, log: Path | None = None) -> None:
        self.keep_going, self.reporter, self.log = keep_going, reporter or Reporter(), log
        self.reasons: dict[Cell, str] = {}

    @contextlib.contextmanager
    def of(self, *cells: Cell) -> Iterator[None]:
        """Work that these cells need: when it fails, they have failed."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            if not self.keep_going:
                raise
            self.reasons |= dict.fromkeys(cells, reason_of(error))
            self.reporter.say(f"{', '.join(cell.name for cell in cells)} failed: {reason_of(error)}")
            self._log(error)

    def rows(self, test_sets: Iterable[str]) -> list[dict[str, Any]]:
        """A row of `metrics.json` for each failed cell and test set, with "error" in place of figures."""
        return [failed_row(cell, name, reason) for cell, reason in self.reasons.items() for name in test_sets]

    def _log(self, error: Exception) -> None:
        if self.log is not None and not isinstance(error, EbmcalError):
            with open(self.log, "a", encoding="utf-8") as handle:
                handle.write("".join(traceback.format_exception(error)))


def failed_row(cell: Cell, test_set: str, reason: str) -> dict[str, Any]:
    """The row of a cell that has no figures."""
    return {"method": cell.method, "posthoc": None, "seed": cell.seed, "test_set": test_set, "error": reason}


def reason_of(error: Exception) -> str:
    """One line that says what went wrong.

    >>> reason_of(ValueError("too  small"))
    'ValueError: too small'
    """
    text = " ".join(str(error).split())
    if not isinstance(error, EbmcalError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
