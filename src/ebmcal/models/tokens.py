"""Texts tokenised once: flat memory-mapped arrays of token ids and segment numbers, with offsets.

Sits between `data` (texts) and the trainer (token ids). A table is written in streaming fashion, is complete or absent,
and is keyed by tokenizer, texts and length limit, so that every method, seed and epoch shares it.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.storage.atomic import read_json, write_json
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.sealing import writing_folder

#: Rows tokenised at a time: bounds memory, whatever the number of rows.
CHUNK = 2048

Row = tuple[str, str | None]


@dataclass(frozen=True)
class TokenTable:
    """Token ids of n texts; `table[i]` gives (ids, segment numbers) of text i."""

    ids: np.ndarray  # [T] int32
    types: np.ndarray  # [T] uint8
    offsets: np.ndarray  # [n + 1] int64
    n_truncated: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        span = slice(self.offsets[i], self.offsets[i + 1])
        return self.ids[span], self.types[span]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def share_of(self, token: int) -> float:
        """The share of the tokens that are this one."""
        count = sum(int((self.ids[i : i + 2**20] == token).sum()) for i in range(0, len(self.ids), 2**20))
        return count / max(1, len(self.ids))

    @classmethod
    def open(cls, folder: Path) -> "TokenTable | None":
        """The table in `folder`, memory-mapped, or None when it is absent or its files do not fit together."""
        try:
            meta = read_json(folder / "meta.json")
            ids, types, offsets = (np.load(folder / f"{n}.npy", mmap_mode="r") for n in ("ids", "types", "offsets"))
            whole = len(ids) == len(types) == meta["n_tokens"] == offsets[-1]
            return cls(ids, types, np.asarray(offsets), meta["n_truncated"]) if whole else None
        except Exception:  # anything unreadable means: make it again
            return None


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A key that changes with anything that changes the token ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return fingerprint(sorted(tokenizer.get_vocab().items()))
    # It also keeps the truncation and padding of its last call, which `tokenize` sets anew.
    return fingerprint({k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")})


def tokenize(rows: Iterable[Row], tokenizer: Any, max_length: int, folder: Path) -> TokenTable:
    """Tokenise rows of (text, second text or None) into `folder` and open it."""
    with writing_folder(folder) as aside:
        lengths, n_truncated = _write_flat(aside, rows, tokenizer, max_length)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        np.save(aside / "offsets.npy", offsets)
        _as_npy(aside / "ids", np.dtype(np.int32), int(offsets[-1]))
        _as_npy(aside / "types", np.dtype(np.uint8), int(offsets[-1]))
        write_json(aside / "meta.json", {"n_tokens": int(offsets[-1]), "n_truncated": n_truncated})
    table = TokenTable.open(folder)
    if table is None:
        raise OSError(f"{folder} could not be read back after writing")
    return table


def tokenize_in_memory(rows: Iterable[Row], tokenizer: Any, max_length: int) -> TokenTable:
    """The table that `tokenize` writes, for rows that are in memory themselves."""
    encoded = [row for chunk in _chunks(rows) for row in encode(chunk, tokenizer, max_length)]
    ids, types, truncated = zip(*encoded, strict=True)
    return TokenTable(
        ids=np.concatenate([np.asarray(row, dtype=np.int32) for row in ids]),
        types=np.concatenate([np.asarray(row, dtype=np.uint8) for row in types]),
        offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        n_truncated=sum(truncated),
    )


def _write_flat(folder: Path, rows: Iterable[Row], tokenizer: Any, max_length: int) -> tuple[list[int], int]:
    lengths: list[int] = []
    n_truncated = 0
    with open(folder / "ids", "wb") as ids_file, open(folder / "types", "wb") as types_file:
        for chunk in _chunks(rows):
            for ids, types, truncated in encode(chunk, tokenizer, max_length):
                ids_file.write(np.asarray(ids, dtype=np.int32).tobytes())
                types_file.write(np.asarray(types, dtype=np.uint8).tobytes())
                lengths.append(len(ids))
                n_truncated += truncated
    return lengths, n_truncated


def encode(
    chunk: Sequence[Row], tokenizer: Any, max_length: int
) -> Iterator[tuple[Sequence[int], Sequence[int], bool]]:
    """Token ids and segment numbers of rows that are all pairs or all single, and whether each was cut."""
    firsts = [text for text, _ in chunk]
    seconds = [pair or "" for _, pair in chunk] if chunk[0][1] is not None else None
    encoded = tokenizer(
        firsts, seconds, truncation=True, max_length=max_length, return_token_type_ids=True,
        return_attention_mask=False, return_overflowing_tokens=False,
    )  # fmt: skip
    for i, ids in enumerate(encoded["input_ids"]):
        # A fast tokenizer keeps what it cut off; without one, a full row is taken as cut.
        truncated = bool(encoded.encodings[i].overflowing) if encoded.encodings else len(ids) >= max_length
        yield ids, encoded["token_type_ids"][i], truncated


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _as_npy(raw: Path, dtype: np.dtype, size: int) -> None:
    """Turn a raw file into an .npy file. Not by a memory map: a full disk would end the process with a bus error."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (size,)}
    with open(raw, "rb") as source, open(raw.with_suffix(".npy"), "wb") as target:
        np.lib.format.write_array_header_1_0(target, header)
        shutil.copyfileobj(source, target)
    raw.unlink()
