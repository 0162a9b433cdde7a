"""`EbmcalError`: a problem the user can fix. The message states what is wrong, what was expected and what to do.

It is the only exception that the command line prints without a traceback. This module imports nothing heavy.
"""

import contextlib
import difflib
import importlib.util
from collections.abc import Iterable, Iterator


class EbmcalError(ValueError):
    """A problem the user can fix; a ValueError, as scikit-learn and others expect.

    >>> try:
    ...     raise unknown_name("method", "hiden", ["hidden"])
    ... except EbmcalError as error:
    ...     print(error)
    Unknown method 'hiden'. Did you mean 'hidden'? Available: hidden.
    """


class RowError(EbmcalError):
    """A problem at an index of an array or a column, the row first, counting from 0; files name the line instead.

    >>> print(RowError("probs", " sums to 0.9.", 3))
    probs[3] sums to 0.9.
    """

    def __init__(self, what: str, problem: str, *index: int) -> None:
        super().__init__(f"{what}[{', '.join(map(str, index))}]{problem}")
        self.what, self.problem, self.row = what, problem, int(index[0])


class Interrupted(EbmcalError):
    """The user or the system stopped the work; finished work is on disk."""


@contextlib.contextmanager
def error_context(name: object) -> Iterator[None]:
    """Prefix error messages with a name, for example the file that is being read, unless they start with it.

    >>> with error_context("mine.csv"):
    ...     raise EbmcalError("No row has a label.")
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: mine.csv: No row has a label.
    """
    try:
        yield
    except EbmcalError as error:
        raise EbmcalError(str(error) if str(error).startswith(str(name)) else f"{name}: {error}") from error


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> EbmcalError:
    """The error for a name that is not in a table, with close matches first.

    >>> print(unknown_name("method", "hiden", ["hidden", "scalar"]))
    Unknown method 'hiden'. Did you mean 'hidden'? Available: hidden, scalar.
    """
    allowed, name = list(allowed), name if len(name) <= 60 else f"{name[:57]}..."
    plain = {option.casefold(): option for option in reversed(allowed)}
    close = [plain[match] for match in difflib.get_close_matches(name.casefold(), plain, n=3, cutoff=0.5)]
    guess = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    shown = ", ".join(allowed[:50]) + (", …" if len(allowed) > 50 else "")
    return EbmcalError(f"Unknown {kind} {name!r}.{guess} Available: {shown}.")


def require_extra(extra: str, *modules: str) -> None:
    """Raise unless the packages of an optional extra are installed; the message names the extra."""
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        raise EbmcalError(
            f"This needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed. "
            f"Install with, in the clone of ebmcal: pip install --constraint constraints.txt --editable '.[{extra}]'"
        )


def plural(n: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
