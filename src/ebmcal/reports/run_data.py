"""What a report shows of a run directory: results, predictions and histories, and what is missing.

An unfinished run is not an error: its report lists what is missing.
"""

import functools
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ebmcal.calibration import make_calibrator
from ebmcal.config import read_yaml
from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions import Predictions
from ebmcal.reports.examples import energy_examples
from ebmcal.reports.table import Table
from ebmcal.reports.tables import recommended_key, row_name
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
    def test_set(self) -> str | None:
        """The first test set; None if there are no predictions of one."""
        return next((split for split in self.splits if split.startswith("test")), None)

    def read(self, split: str | None) -> Predictions | None:
        """The predictions of a split; None if there are none."""
        if split is None or split not in self.splits:
            return None
        return self.given[split] if split in self.given else _read(self.paths[split], _changed(self.paths[split]))

    def calibrated(self, calibrator: str | None, split: str) -> Predictions | None:
        """The predictions of a split with a calibrator such as "temperature (dev)"; None if it cannot be fitted."""
        if calibrator in self.versions and split == "test":
            return self.versions[str(calibrator)]
        found = re.fullmatch(r"(.+) \((train|dev|cross-fit)\)", calibrator or "")
        rows, held_out = self.read(split), self.read(FITTED_ON[found[2]]) if found else None
        if found is None or rows is None or held_out is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few rows: the advice says so
                return make_calibrator(found[1]).fit_predictions(held_out.labelled()).apply(rows)
        except EbmcalError:
            return None


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

    @property
    def first_seeds(self) -> list[Subject]:
        """The first seed of each method; the Python API draws the others."""
        return list({subject.method: subject for subject in reversed(self.subjects)}.values())[::-1]

    def part(self, name: str) -> Mapping[str, Any]:
        """An object of `results.json`, empty if it is absent."""
        value = self.document.get(name)
        return value if isinstance(value, Mapping) else {}

    def baseline_of(self, subject: Subject) -> Subject | None:
        """The baseline of the same seed; of prediction files without one of that name, the first."""
        named = [s for s in self.subjects if s.method == "baseline" and s.seed == subject.seed]
        found = next(iter(named or (self.subjects if subject.seed is None else ())), None)
        return None if found is subject else found

    def energy_examples(self, subject: Subject, n: int = 5) -> Table:
        """The test texts of lowest and highest energy of a model, compared with its baseline."""
        rows, baseline = subject.read(subject.test_set), self.baseline_of(subject)
        before = baseline.read(subject.test_set) if baseline else None
        return energy_examples(rows, before, n) if rows is not None else Table(pd.DataFrame())


@dataclass(frozen=True)
class Focus:
    """The model that the report is about: the recommended one, otherwise the first."""

    subject: Subject
    calibrator: str | None
    before: Predictions  # labelled rows of the test set
    after: Predictions | None  # with the calibrator
    is_recommended: bool

    @property
    def name(self) -> str:
        return row_name(self.subject.method, self.calibrator if self.after is not None else None)

    @property
    def rows(self) -> Predictions:
        return self.before if self.after is None else self.after


def find_focus(data: RunData) -> Focus | None:
    """The recommended model with its labelled test rows; None if no model has any."""
    key, trial = recommended_key(data.evaluation), data.part("recommended").get("trial")
    candidates = [s for s in data.subjects if s.test_set and key and s.method == key[0]]
    candidates.sort(key=lambda subject: subject.name != trial)
    for subject in [*candidates, *data.subjects]:
        rows = subject.read(subject.test_set)
        if rows is not None and (rows.labels >= 0).any():
            is_chosen = subject in candidates
            calibrator = key[1] if key and is_chosen else next(iter(subject.versions), None)
            after = subject.calibrated(calibrator, str(subject.test_set))
            return Focus(subject, calibrator, rows.labelled(), after and after.labelled(), is_chosen)
    return None


def read_run(root: PathLike) -> RunData:
    """Read a run directory; an `EbmcalError` if it is none or if a file is corrupt."""
    run = RunDir(Path(root))
    if not run.root.is_dir():
        raise EbmcalError(f"{run.root} is not a directory. Expected the output directory of `ebmcal run`.")
    subjects = tuple(
        Subject(
            trial.method, trial.seed, {split: run.predictions(trial, split) for split in run.splits(trial)},
            history=tuple(read_history(run.history(trial))),
        )
        for trial in run.trials()
    )  # fmt: skip
    if not subjects and not run.results.exists():
        raise EbmcalError(
            f"{run.root} has neither results.json nor predictions. Expected the output directory of `ebmcal run`; for "
            "prediction files use `ebmcal evaluate --report`."
        )
    document, settings = read_document(run), read_yaml(run.config) if run.config.exists() else {}
    evaluation = read_evaluation(run, document) if document else _evaluate(subjects)
    config = run.config.read_text(encoding="utf-8") if run.config.exists() else None
    examples = read_json(run.noise_examples) if run.noise_examples.exists() else []
    if not isinstance(examples, list):
        raise EbmcalError(f"{run.noise_examples} is corrupt: expected a list. Delete it to report without examples.")
    title = str(evaluation.meta.get("task") or run.root.resolve().name)
    missing = _missing(run, settings, subjects)
    return RunData(title, evaluation, subjects, document, run.root, config, tuple(examples), missing)


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


def _evaluate(subjects: tuple[Subject, ...]) -> "Evaluation":
    """The evaluation of a run that has not written `results.json` yet."""
    from ebmcal.evaluation import evaluate_trials

    predictions = {
        Trial(s.method, s.seed or 0): {name: rows for name in s.splits if (rows := s.read(name)) is not None}
        for s in subjects
        if s.test_set
    }
    return evaluate_trials(predictions, n_resamples=200)


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int) -> Predictions:
    try:
        return Predictions.read(path)
    except (OSError, KeyError, TypeError) as error:
        raise EbmcalError(f"{path} is corrupt: {error}. Delete it and run the same `ebmcal run` again.") from error


def read_history(path: Path) -> list[Mapping[str, Any]]:
    """The entries of `history.jsonl`. A stopped run may leave an incomplete last line, which is skipped."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise EbmcalError(f"{path}, line {number} is not JSON: {error}. Delete it to skip it.") from error
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _missing(run: RunDir, settings: Mapping[str, Any], subjects: tuple[Subject, ...]) -> tuple[str, ...]:
    found = [] if run.results.exists() else ["results.json is not written yet; results were computed for this report."]
    found += [] if run.config.exists() else ["config.yaml is missing: the settings of this run are unknown."]
    found += [f"{subject.name}: no predictions of the test split yet." for subject in subjects if not subject.test_set]
    methods, seeds = (value if isinstance(value := settings.get(name), list) else [] for name in ("methods", "seeds"))
    names = [f"{method}-seed{seed}" for method in methods for seed in seeds] if subjects else []
    trained = {subject.name for subject in subjects}
    return (*found, *(f"{name}: not trained yet." for name in names if name not in trained))
