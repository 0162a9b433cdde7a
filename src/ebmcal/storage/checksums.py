"""Numbers that stand for contents: the checksum of a file's bytes, the fingerprint of what made a thing."""

import hashlib
import json
from pathlib import Path
from typing import Any


def fingerprint(*parts: Any) -> str:
    """16 hex digits that depend on the JSON form of `parts`: a key for what made a thing.

    >>> fingerprint({"a": 1}) == fingerprint({"a": 1}), len(fingerprint("x"))
    (True, 16)
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def checksum(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(handle)


def _digest(handle: Any) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: handle.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()
