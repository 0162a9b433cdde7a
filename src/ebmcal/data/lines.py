"""Text files as lines, in bounded memory: BOM, invalid UTF-8, NUL bytes and any line ending are taken care of."""

import io
from collections.abc import Iterator
from pathlib import Path

from ebmcal.data.tally import Tally
from ebmcal.errors import EbmcalError

MAX_LINE = 20_000_000  # characters; a longer "line" is a binary file or a file with no line ends
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")


def text_lines(path: Path, tally: Tally) -> Iterator[str]:
    """The lines of a file with their endings; bytes that are not UTF-8 arrive as lone surrogates."""
    try:
        with open(path, "rb") as raw:
            _refuse_other_encodings(path, raw.peek(4096)[:4096])
            # utf-8-sig drops a BOM; newline="" ends a line at \n, \r\n or \r and leaves the ending in place
            handle = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
            yield from _bounded(path, handle, tally)
    except OSError as error:
        raise EbmcalError(f"Could not read {path}: {error.strerror or error}.") from error


def _bounded(path: Path, handle: io.TextIOWrapper, tally: Tally) -> Iterator[str]:
    number = 0
    while line := handle.readline(MAX_LINE):
        number += 1
        if len(line) >= MAX_LINE:
            raise EbmcalError(f"{path}, line {number} is longer than {MAX_LINE:,} characters: not a text table.")
        if "\0" in line:  # the csv module of Python 3.10 cannot take them
            tally.add("cleaned", "NUL characters turned to spaces", number)
            line = line.replace("\0", " ")
        yield line


def _refuse_other_encodings(path: Path, head: bytes) -> None:
    if head.startswith(_WIDE_BOMS) or head.count(0) > len(head) // 4:
        raise EbmcalError(
            f"{path} is not UTF-8 text (it looks like UTF-16 or a binary file). Save it as UTF-8, "
            f"for example: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}"
        )
