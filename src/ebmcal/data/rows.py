"""What the readers share: which columns are wanted, what a row is, and the error for a column that is not there."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ebmcal.errors import EbmcalError, unknown_name


class Row(NamedTuple):
    """One row of a source: its number from 0, its texts, its label as written (None when missing)."""

    number: int
    text: str
    pair: str | None
    label: str | None


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; `where` keeps only rows whose column has that value."""

    text: str
    pair: str | None = None
    label: str | None = None
    where: tuple[str, str] | None = None

    def wanted(self) -> list[str]:
        names = [self.text, self.pair, self.label, self.where[0] if self.where else None]
        return [name for name in names if name is not None]

    def override(self, text: str | None, pair: str | None, label: str | None) -> "Columns":
        """These columns with the names that were given in their place."""
        return Columns(text or self.text, pair or self.pair, label or self.label, self.where)

    def check(self, path: Path, present: Sequence[str], hint: str = "") -> None:
        """Raise unless every wanted column is there exactly once."""
        counts = Counter(present)
        for name in self.wanted():
            if counts[name] == 0:
                raise _missing(path, name, present, hint)
            if counts[name] > 1:
                raise EbmcalError(f"{path} has {counts[name]} columns named {name!r}; rename all but one.")


def _missing(path: Path, name: str, present: Sequence[str], hint: str) -> EbmcalError:
    shown = [column if len(column) <= 60 else column[:57] + "..." for column in present[:30]]
    return EbmcalError(f"{path}: {unknown_name('column', name, shown)}{hint}")
