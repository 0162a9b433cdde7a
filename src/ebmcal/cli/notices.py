"""Warnings of the library as short lines on standard error, where a terminal user reads them."""

import contextlib
import warnings
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def as_notices() -> Iterator[None]:
    """Turn warnings raised inside into lines that begin with "Note:", each text once, also when an error follows.

    >>> with as_notices():
    ...     warnings.warn("few rows", stacklevel=1)
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
                typer.secho(f"Note: {text}", fg=typer.colors.YELLOW, err=True)
