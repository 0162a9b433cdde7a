"""A run folder read for its report: what is there, and sentences for what is not.

A half-finished run is no error; only a damaged file is, and it is named.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebmcal.config import read_yaml
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json
from ebmcal.storage.sealing import SEAL, damage
from ebmcal.tables.document import check_document, method_rank

_SPLITS_SHOWN = re.compile(r"test|noise$|ood_")


@dataclass(frozen=True)
class Subject:
    """One trained model (or one prediction file) with what a report shows of it."""

    method: str
    seed: int | None = None
    splits: Mapping[str, Predictions] = field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return self.method if self.seed is None else f"{self.method}, seed {self.seed}"

    def test_sets(self) -> dict[str, Predictions]:
        return {name: rows for name, rows in self.splits.items() if name.startswith("test")}


@dataclass(frozen=True)
class Material:
    """Everything a report is made from."""

    title: str
    document: Mapping[str, Any]
    subjects: tuple[Subject, ...]
    config: str | None = None
    noise_records: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[str, ...] = ()


def read_run(root: str | Path) -> Material:
    """Read a run folder; an `EbmcalError` if it is none or if one of its files is damaged."""
    folder = RunFolder(Path(root))
    _check_folder(folder)
    _check_damage(folder)
    document = read_document(folder)
    subjects = [_subject(folder, cell) for cell in _cells(folder)]
    subjects.sort(key=lambda subject: (method_rank(subject.method), subject.seed))
    config = _read_text(folder.config) if folder.config.exists() else None
    if config is not None:
        read_yaml(folder.config)  # a damaged one is named
    noise = _noise_records(folder)
    missing = _missing(folder, document, subjects, config, noise)
    title = str(document.get("task") or folder.root.resolve().name)
    return Material(title, document, tuple(subjects), config, tuple(noise), tuple(missing))


def read_document(folder: RunFolder) -> Mapping[str, Any]:
    """The checked `metrics.json`, empty where there is none yet."""
    return check_document(read_json(folder.metrics), str(folder.metrics)) if folder.metrics.exists() else {}


def _check_folder(folder: RunFolder) -> None:
    if not folder.root.is_dir():
        raise EbmcalError(f"{folder.root} is not a folder. Give the output folder of an `ebmcal run`.")
    if not folder.metrics.exists() and not (folder.root / "predictions").is_dir():
        raise EbmcalError(
            f"{folder.root} is not a run folder with results: it has neither metrics.json nor predictions/. "
            "Give the output folder of an `ebmcal run`, or use `ebmcal evaluate --report` for prediction files."
        )


def _check_damage(folder: RunFolder) -> None:
    """Refuse figures that are not those that were computed. A run that is not finished has no seal yet."""
    places = [folder.root, *sorted((folder.root / "predictions").glob("*-seed*"))]
    for place in (p for p in places if (p / SEAL).exists()):
        wrong = [line for line in damage(place) if not line.startswith(folder.report.name)]
        if wrong:
            raise EbmcalError(f"{place} is damaged: {', '.join(wrong)}. The same `ebmcal run` makes it again.")


def _cells(folder: RunFolder) -> list[Cell]:
    """Those with predictions or with a history."""
    names = {p.name for p in (folder.root / "predictions").glob("*-seed*") if p.is_dir()}
    names |= {p.stem for p in (folder.root / "history").glob("*-seed*.jsonl")}
    return [Cell.parse(name) for name in sorted(names) if re.search(r".-seed-?\d+$", name)]


def _subject(folder: RunFolder, cell: Cell) -> Subject:
    shown = [split for split in folder.splits(cell) if _SPLITS_SHOWN.match(split)]
    splits = {split: _read_predictions(folder.predictions(cell, split)) for split in shown}
    return Subject(cell.method, cell.seed, splits, tuple(_read_history(folder.history(cell))))


def _read_predictions(path: Path) -> Predictions:
    try:
        return Predictions.read(path)
    except EbmcalError as error:
        if str(path) in str(error):
            raise
        raise EbmcalError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise EbmcalError(f"{path} is damaged: {error}. Delete it and run the same `ebmcal run` again.") from error


def _read_history(path: Path) -> list[Mapping[str, Any]]:
    """The lines of a history. A run that was stopped may leave half a last line, which is not an error."""
    if not path.exists():
        return []
    lines = [line for line in _read_text(path).splitlines() if line.strip()]
    return [entry for n, line in enumerate(lines) if (entry := _history_line(path, n, line, n == len(lines) - 1))]


def _history_line(path: Path, n: int, line: str, is_last: bool) -> Mapping[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError as error:
        if is_last:
            return None
        raise EbmcalError(
            f"{path}, line {n + 1} is not JSON: {error}. Delete the line to report without it."
        ) from error
    return entry if isinstance(entry, Mapping) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EbmcalError(f"{path} is not readable as UTF-8 text: {error}.") from error


def _noise_records(folder: RunFolder) -> list[Mapping[str, Any]]:
    if not folder.noise_examples.exists():
        return []
    records = read_json(folder.noise_examples)
    if not isinstance(records, list) or not all(isinstance(record, Mapping) for record in records):
        raise EbmcalError(
            f"{folder.noise_examples} is damaged: it must hold a list of objects. Delete it to report without."
        )
    return records


def _missing(
    folder: RunFolder, document: Mapping[str, Any], subjects: list[Subject], config: str | None, noise: list[Any]
) -> list[str]:
    found = []
    if not folder.metrics.exists():
        found.append("metrics.json is not written yet: the summary is computed here from the predictions.")
    if config is None:
        found.append("config.yaml is not there: the settings of this run are unknown.")
    found += [f"{s.name}: no predictions for a test set yet." for s in subjects if not s.test_sets()]
    found += [f"{s.name}: no training history." for s in subjects if not s.history]
    found += _missing_cells(document, subjects)
    if document.get("noise") and not noise:
        found.append("noise_examples.json is not there: no noise can be shown.")
    return found


def _missing_cells(document: Mapping[str, Any], subjects: list[Subject]) -> list[str]:
    """Cells that should be there: those with metrics, and every method with every seed of the run."""
    rows = document.get("rows") or []
    seeds = {*(document.get("seeds") or []), *(s.seed for s in subjects), *(row.get("seed") for row in rows)} - {None}
    methods = sorted({*(s.method for s in subjects), *(row["method"] for row in rows)}, key=method_rank)
    there, scored = {(s.method, s.seed) for s in subjects}, {(row["method"], row.get("seed")) for row in rows}
    failed = [f"{row['method']}, seed {row.get('seed')}: failed: {row['error']}" for row in rows if row.get("error")]
    cells = [(method, seed) for method in methods for seed in sorted(seeds)]
    absent = [f"{m}, seed {s}: not trained yet, or its predictions are gone." for m, s in cells if (m, s) not in there]
    unscored = [
        f"{m}, seed {s}: no metrics yet." for m, s in cells if rows and (m, s) in there and (m, s) not in scored
    ]
    return [*dict.fromkeys(failed), *absent, *unscored]
