"""One value of a file → a text or a label, whatever type the file gave it.

Texts are cleaned of what no tokenizer and no Arrow file can hold (bytes that are not UTF-8, NUL) and counted.
"""

import math
import re
from typing import Any

from ebmcal.data.tally import Tally
from ebmcal.errors import EbmcalError

# Bytes that were not UTF-8 arrive as lone surrogates ("surrogateescape"); JSON can also spell them out.
_SURROGATES = re.compile("[\ud800-\udfff]")


def as_text(value: Any, column: str, place: int, tally: Tally) -> str:
    """A text; null becomes "", numbers are written out, lists and objects are refused.

    >>> as_text(3, "text", 0, Tally())
    '3'
    """
    if type(value) is not str:
        value = _written_out(value, column, f"{tally.unit} {place}")
    if "\0" in value:
        tally.add("cleaned", "NUL characters turned to spaces", place)
        value = value.replace("\0", " ")
    if not value.isascii() and _SURROGATES.search(value):
        tally.add("cleaned", "invalid UTF-8 replaced", place)
        value = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


def as_label(value: Any, column: str, place: int, tally: Tally) -> str | None:
    """A label as text, None when missing; 1.0 and "1.0" are the class "1".

    >>> as_label(1.0, "label", 0, Tally()), as_label(" pos ", "label", 0, Tally()), as_label("", "label", 0, Tally())
    ('1', 'pos', None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    label = as_text(value, column, place, tally).strip()
    return (_WHOLE_FLOAT.sub(r"\1", label) if "." in label else label) or None


_WHOLE_FLOAT = re.compile(r"^(-?[0-9]{1,18})\.0+$")


def _written_out(value: Any, column: str, where: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | dict | tuple | bytes):
        kind = {"list": "a list", "dict": "an object", "tuple": "a list", "bytes": "binary data"}
        raise EbmcalError(
            f"Column {column!r} holds {kind[type(value).__name__]} at {where}; texts and labels must be strings or "
            "numbers. Choose another column or flatten this one."
        )
    return str(value)
