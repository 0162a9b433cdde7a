"""What a report shows of a run directory: results, predictions and histories, and what is missing.

An unfinished run is not an error: its report lists what is missing.
"""

import functools
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.config import read_yaml
from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions import Predictions
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import PathLike, read_json

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation

#: Where a calibrator was fitted: the ending of its name → the split.
FITTED_ON = {"train": "train", "dev": "calibration", "cross-fit": "out_of_fold"}


@dataclass(frozen=True)
class Subject:
    """A trained model, or a file of predictions: its splits are read when they are needed."""

    method: str
    seed: int | None = None
    paths: Mapping[str, Path] = field(default_factory=dict)
    given: Mapping[str, Predictions] = field(default_factory=dict)
    versions: Mapping[str, Predictions] = field(default_factory=dict)  # calibrator → the test split with it
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return self.method if self.seed is None else f"{self.method}-seed{self.seed}"

    @property
    def splits(self) -> list[str]:
        return [*self.given, *self.paths]

    @property
    def test_sets(self) -> list[str]:
        return [split for split in self.splits if split.startswith("test")]

    def read(self, split: str) -> Predictions | None:
        """The predictions of a split; None if there are none."""
        if split in self.given:
            return self.given[split]
        return _read_predictions(self.paths[split]) if split in self.paths else None

    def calibrated(self, calibrator: str | None, split: str) -> Predictions | None:
        """The predictions of a split with a calibrator such as "temperature (dev)"; None if it cannot be fitted."""
        if calibrator is not None and calibrator in self.versions and split == "test":
            return self.versions[calibrator]
        rows, found = self.read(split), re.fullmatch(r"(.+) \((train|dev|cross-fit)\)", calibrator or "")
        held_out = self.read(FITTED_ON[found[2]]) if found else None
        if rows is None or held_out is None or found is None:
            return None
        return _calibrate(found[1], held_out, rows)


@dataclass(frozen=True)
class RunData:
    """Everything a report is made from; `document` is `results.json` without the evaluation."""

    title: str
    evaluation: "Evaluation"
    subjects: tuple[Subject, ...]
    document: Mapping[str, Any] = field(default_factory=dict)
    root: Path | None = None
    config: str | None = None
    noise_examples: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[str, ...] = ()

    def part(self, name: str) -> Mapping[str, Any]:
        """An object of `results.json`, empty if it is absent."""
        value = self.document.get(name)
        return value if isinstance(value, Mapping) else {}


def read_run(root: PathLike) -> RunData:
    """Read a run directory; an `EbmcalError` if it is none or if a file is corrupt."""
    run = RunDir(Path(root))
    if not run.root.is_dir():
        raise EbmcalError(f"{run.root} is not a directory. Expected the output directory of `ebmcal run`.")
    subjects = [_subject(run, trial) for trial in run.trials()]
    if not subjects and not run.results.exists():
        raise EbmcalError(
            f"{run.root} has neither results.json nor predictions. Expected the output directory of `ebmcal run`; for "
            "prediction files use `ebmcal evaluate --report`."
        )
    document = read_document(run)
    evaluation = read_evaluation(run, document) if document else _evaluate(subjects)
    config = _read_text(run.config) if run.config.exists() else None
    examples = read_json(run.noise_examples) if run.noise_examples.exists() else []
    if not isinstance(examples, list):
        raise EbmcalError(f"{run.noise_examples} is corrupt: expected a list. Delete it to report without examples.")
    title = str(evaluation.meta.get("task") or run.root.resolve().name)
    missing = _missing(run, document, subjects)
    return RunData(title, evaluation, tuple(subjects), document, run.root, config, tuple(examples), missing)


def read_document(run: RunDir) -> dict[str, Any]:
    """`results.json`; empty if the run has not written it yet."""
    document = read_json(run.results) if run.results.exists() else {}
    if not isinstance(document, dict):
        raise EbmcalError(f"{run.results} is corrupt: expected an object. Delete it and run the same command again.")
    return document


def read_evaluation(run: RunDir, document: Mapping[str, Any]) -> "Evaluation":
    """The evaluation in `results.json`."""
    from ebmcal.evaluation import Evaluation

    with error_context(run.results):
        return Evaluation.from_json(document)


def _evaluate(subjects: list[Subject]) -> "Evaluation":
    """The evaluation of a run that has not written `results.json` yet."""
    from ebmcal.evaluation import evaluate_trials

    predictions = {
        Trial(s.method, s.seed or 0): {name: rows for name in s.splits if (rows := s.read(name)) is not None}
        for s in subjects
        if s.test_sets
    }
    return evaluate_trials(predictions, posthoc=[], n_resamples=200)


def _subject(run: RunDir, trial: Trial) -> Subject:
    paths = {split: run.predictions(trial, split) for split in run.splits(trial)}
    return Subject(trial.method, trial.seed, paths, history=tuple(read_history(run.history(trial))))


@functools.lru_cache(maxsize=64)
def _read_cached(path: Path, changed: int) -> Predictions:
    try:
        return Predictions.read(path)
    except (OSError, KeyError, TypeError) as error:
        raise EbmcalError(f"{path} is corrupt: {error}. Delete it and run the same `ebmcal run` again.") from error


def _read_predictions(path: Path) -> Predictions:
    return _read_cached(path, path.stat().st_mtime_ns)


def _calibrate(name: str, held_out: Predictions, rows: Predictions) -> Predictions | None:
    import warnings

    from ebmcal.calibration import make_calibrator

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few rows: the advice says so
            return make_calibrator(name).fit_predictions(held_out.labelled()).apply(rows)
    except EbmcalError:
        return None


def read_history(path: Path) -> list[Mapping[str, Any]]:
    """The entries of `history.jsonl`. A stopped run may leave an incomplete last line, which is skipped."""
    lines = _read_text(path).splitlines() if path.exists() else []
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line) if line.strip() else None)
        except ValueError as error:
            if number < len(lines):
                raise EbmcalError(f"{path}, line {number} is not JSON: {error}. Delete it to skip it.") from error
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EbmcalError(f"{path} is not readable as UTF-8 text: {error}.") from error


def _missing(run: RunDir, document: Mapping[str, Any], subjects: list[Subject]) -> tuple[str, ...]:
    found = [] if run.results.exists() else ["results.json is not written yet; results were computed for this report."]
    found += [] if run.config.exists() else ["config.yaml is missing: the settings of this run are unknown."]
    found += [f"{subject.name}: no predictions of the test split yet." for subject in subjects if not subject.test_sets]
    settings = read_yaml(run.config) if run.config.exists() else {}
    methods, seeds = (settings.get(name) for name in ("methods", "seeds"))
    names = {subject.name for subject in subjects}
    for method, seed in itertools.product(methods or [], seeds or []) if isinstance(methods, list) else ():
        if subjects and f"{method}-seed{seed}" not in names:
            found.append(f"{method}-seed{seed}: not trained yet.")
    return tuple(found)
