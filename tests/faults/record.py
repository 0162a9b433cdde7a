"""What became of each case, kept on disk as it goes: fault injection is itself a long job that can be interrupted.

A case is a dictionary with "part" (kills, signals, ...), "key" (part and name: what `--only` takes), "ok" and facts.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def code_digest() -> str:
    """Changes with any module of the library: cases of other code are not mixed."""
    import ebmcal

    digest = hashlib.sha256()
    for path in sorted(Path(ebmcal.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Record:
    """Cases in a file, a JSON line each; the first line says what they belong to. Others' cases are dropped."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.cases = path, {}
        lines = list(_lines(path)) if path.exists() else []
        if lines and lines[0] == identity:
            self.cases = {case["key"]: case for case in lines[1:]}
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(identity) + "\n", encoding="utf-8")

    def add(self, case: Case) -> None:
        self.cases[case["key"]] = case
        with open(self.path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(case) + "\n")


def _lines(path: Path) -> Iterator[Any]:
    """The lines that are whole; the last may have been cut off."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
