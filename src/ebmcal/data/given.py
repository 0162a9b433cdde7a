"""What a model is asked about: texts of whatever they come in, a list, an iterator, a file, a table."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.data.in_memory import as_table_file
from ebmcal.data.load import load_texts
from ebmcal.data.parts import check_file
from ebmcal.data.texts import TextRow
from ebmcal.data.values import Columns, has_surrogates
from ebmcal.errors import EbmcalError


@dataclass(frozen=True)
class GivenRows:
    """Rows, where they came from, and their labels, -1 where there are none."""

    name: str
    texts: list[TextRow]
    labels: np.ndarray  # [n]
    ids: np.ndarray  # [n]
    meta: dict[str, str]


def given_rows(texts: Any, columns: Columns, label_names: tuple[str, ...]) -> GivenRows:
    """Texts of whatever they come in: a list, an iterator, a file, a table."""
    if isinstance(texts, str) and not os.path.exists(texts) and (" " in texts or not Path(texts).suffix):
        raise EbmcalError(f"There is no file {texts!r:.80}. If it is a text, give a list of one: [text].")
    if _is_listed(texts, columns):
        listed = [_row(i, given) for i, given in enumerate(texts)]
        _check_listed(listed)
        return GivenRows(f"{len(listed):,} texts", listed, np.full(len(listed), -1), np.arange(len(listed)), {})
    with tempfile.TemporaryDirectory() as scratch:
        path, columns = as_table_file(texts, Path(scratch), columns)
        rows = load_texts(path, Path(scratch), columns.text, columns.pair, columns.label, label_names)
        labels, ids = (np.array(values) for values in (rows.labels, rows.ids))
        is_file = isinstance(texts, str | os.PathLike)
        name, meta = (path.name, {"file": str(path)}) if is_file else (f"{len(rows):,} texts", {})
        return GivenRows(name, rows.texts(), labels, ids, meta)


def check_given(texts: Any) -> None:
    """Refuse a file of texts that is not there or empty, before a model is loaded for it."""
    if isinstance(texts, str | os.PathLike) and not os.path.isdir(texts):
        check_file(Path(texts))


def _is_listed(texts: Any, columns: Columns) -> bool:
    """Whether it is texts one after the other, without labels: they need no detour over a file."""
    two = isinstance(texts, tuple) and len(texts) == 2  # (texts, labels), or what looks like a pair
    return isinstance(texts, list | tuple | Iterator) and not two and columns.wanted() == [columns.text]


def _row(i: int, given: Any) -> TextRow:
    parts = (given,) if isinstance(given, str) else given
    if isinstance(parts, tuple | list) and len(parts) in (1, 2) and all(isinstance(part, str) for part in parts):
        if any(has_surrogates(part) for part in parts):
            raise EbmcalError(
                f"Row {i} has a lone surrogate, half a character, which is no text: {given!r:.80}. Clean it."
            )
        if len(parts) == 2 or isinstance(given, str):
            return parts[0], parts[1] if len(parts) == 2 else None
    raise EbmcalError(f"Row {i} is {given!r:.80} ({type(given).__name__}); a text or a (text, text) pair is expected.")


def _check_listed(rows: list[TextRow]) -> None:
    if not rows:
        raise EbmcalError("The data is empty: no text came.")
    odd = next((i for i, (_, pair) in enumerate(rows) if (pair is None) != (rows[0][1] is None)), None)
    if odd is not None:
        kinds = ("a single text", "a pair")
        first, other = kinds if rows[0][1] is None else reversed(kinds)
        raise EbmcalError(f"Row {odd} is {other} and row 0 is {first}; give one kind.")
