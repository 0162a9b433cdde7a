"""What every part raises when the user has to act: what came, what is allowed, what to do next.

`EbmcalError` is the only exception the command line prints without a traceback. It imports nothing
of ebmcal and nothing heavy, so that every module may use it.
"""

import contextlib
import difflib
import importlib.util
from collections.abc import Iterable, Iterator


class EbmcalError(ValueError):
    """A mistake the user can mend; its message says how. A ValueError, as scikit-learn and others expect.

    >>> try:
    ...     raise unknown_name("method", "hiden", ["hidden"])
    ... except EbmcalError as error:
    ...     print(error)
    Unknown method 'hiden'. Did you mean 'hidden'? Known: hidden.
    """


class Interrupted(EbmcalError):
    """The user or the system stopped the work; what was done is on disk."""


@contextlib.contextmanager
def errors_of(name: object) -> Iterator[None]:
    """Put a name, of the file for example, in front of what is wrong with it.

    >>> with errors_of("mine.csv"):
    ...     raise EbmcalError("No row has a label.")
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: mine.csv: No row has a label.
    """
    try:
        yield
    except EbmcalError as error:
        raise EbmcalError(f"{name}: {error}") from error


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> EbmcalError:
    """An error for a name that is not in a table, with the close matches first.

    >>> print(unknown_name("method", "hiden", ["hidden", "scalar"]))
    Unknown method 'hiden'. Did you mean 'hidden'? Known: hidden, scalar.
    """
    allowed = list(allowed)
    close = difflib.get_close_matches(name, allowed, n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return EbmcalError(f"Unknown {kind} {name!r}.{guess} Known: {', '.join(allowed)}.")


def require_extra(extra: str, *modules: str) -> None:
    """Raise unless the packages of an optional extra are installed; says which extra to install."""
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        raise EbmcalError(
            f"This needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed. "
            f"Install with: pip install 'ebmcal[{extra}]'"
        )
