"""What a report is about: the models of a run directory with their predictions, and the one to describe first."""

import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ebmcal.calibration import make_calibrator
from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions import Predictions
from ebmcal.reports import tables
from ebmcal.reports.page import Table
from ebmcal.reports.plots import History
from ebmcal.run_dir import RunDir
from ebmcal.storage import PathLike, read_json

if TYPE_CHECKING:
    from ebmcal.evaluation import Evaluation

#: Where a calibrator was fitted: the ending of its name → the split and how its rows are called.
FITTED_ON = {"dev": ("calibration", "calibration rows"), "cross-fit": ("out_of_fold", "out-of-fold rows")}


@dataclass(frozen=True)
class Subject:
    """A trained model, or a file of predictions."""

    method: str
    seed: int | None
    splits: Mapping[str, Predictions]
    versions: Mapping[str, Predictions] = field(default_factory=dict)  # calibrator → the test split with it
    history: History = ()

    @property
    def name(self) -> str:
        return self.method if self.seed is None else f"{self.method}-seed{self.seed}"

    @property
    def title(self) -> str:
        """The name for people."""
        return tables.model_title(self.name)

    @property
    def test(self) -> Predictions | None:
        """The first test set."""
        return next((rows for split, rows in self.splits.items() if split.startswith("test")), None)

    def calibrated(self, calibrator: str | None, rows: Predictions | None) -> Predictions | None:
        """Rows with a calibrator such as "temperature (dev)"; None if it cannot be fitted."""
        if calibrator in self.versions:
            return self.versions[str(calibrator)]
        found = re.fullmatch(r"(.+) \((dev|cross-fit)\)", calibrator or "")
        held_out = self.splits.get(FITTED_ON[found[2]][0]) if found else None
        if found is None or rows is None or held_out is None:
            return None
        with contextlib.suppress(EbmcalError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few rows: the advice says so
            return make_calibrator(found[1]).fit_predictions(held_out.labelled()).apply(rows)
        return None

    def first_calibrated(self, calibrator: str) -> Predictions | None:
        """The test set with a calibrator fitted on out-of-fold or calibration rows, if there are any."""
        found = (self.calibrated(f"{calibrator} ({source})", self.test) for source in ("cross-fit", "dev"))
        return next((rows for rows in found if rows is not None), None)


@dataclass(frozen=True)
class RunData:
    """Everything a report is made from; `document` is `results.json`."""

    title: str
    evaluation: "Evaluation"
    subjects: list[Subject]
    document: Mapping[str, Any] = field(default_factory=dict)
    root: Path | None = None

    @property
    def first_seeds(self) -> list[Subject]:
        """The first seed of each method."""
        return list({subject.method: subject for subject in reversed(self.subjects)}.values())[::-1]

    @property
    def histories(self) -> list[tuple[str, History]]:
        return [(subject.method, subject.history) for subject in self.subjects]

    def part(self, name: str) -> Mapping[str, Any]:
        """An object of `results.json`, empty if it is absent."""
        value = self.document.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def label_issues(self) -> list[Mapping[str, Any]]:
        """Training rows whose label may be wrong."""
        found = self.document.get("label_issues")
        return [issue for issue in found if isinstance(issue, Mapping)] if isinstance(found, list) else []

    @property
    def config(self) -> str:
        """The text of `config.yaml`, empty if it is absent."""
        path = self.root / "config.yaml" if self.root else None
        return path.read_text(encoding="utf-8", errors="replace") if path and path.exists() else ""

    def energy_examples(self, subject: Subject, n: int = 5) -> Table:
        """The test texts of lowest and highest energy of a model, compared with the baseline of the same seed."""
        baseline = next((s for s in self.subjects if s.method == "baseline" and s.seed == subject.seed), subject)
        before = None if baseline is subject else baseline.test
        return tables.energy_examples(subject.test, before, n) if subject.test is not None else Table(pd.DataFrame())


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
        return tables.row_name(self.subject.method, self.calibrator if self.after is not None else None)

    @property
    def rows(self) -> Predictions:
        return self.before if self.after is None else self.after


def find_focus(data: RunData) -> Focus | None:
    """The recommended model with its labelled test rows; None if no model has any."""
    key, trial = tables.recommended_key(data.evaluation), data.part("recommended").get("trial")
    labelled = [s for s in data.subjects if s.test is not None and (s.test.labels >= 0).any()]
    subject = min(labelled, key=lambda s: (key is None or s.method != key[0], s.name != trial), default=None)
    if subject is None or subject.test is None:
        return None
    is_chosen = key is not None and subject.method == key[0]
    calibrator = key[1] if key and is_chosen else next(iter(subject.versions), None)
    after = subject.calibrated(calibrator, subject.test)
    return Focus(subject, calibrator, subject.test.labelled(), after and after.labelled(), is_chosen)


def read_run(root: PathLike) -> RunData:
    """Read a finished run directory; an `EbmcalError` if it is none or if a file is corrupt."""
    run = RunDir(Path(root))
    document, evaluation = read_results(run)
    subjects = []
    for trial in run.trials():
        splits = {name: Predictions.read(run.predictions(trial, name)) for name in run.splits(trial) if name != "train"}
        subjects.append(Subject(trial.method, trial.seed, splits, history=list(read_history(run.history(trial)))))
    title = str(evaluation.meta.get("task") or run.root.resolve().name)
    return RunData(title, evaluation, subjects, document, run.root)


def read_results(run: RunDir) -> "tuple[dict[str, Any], Evaluation]":
    """`results.json` and the evaluation in it."""
    from ebmcal.evaluation import Evaluation

    if not run.results.exists():
        raise EbmcalError(
            f"{run.root} has no results.json. Expected the output directory of a finished `ebmcal run`; for prediction "
            "files use `ebmcal evaluate --report`."
        )
    document = read_json(run.results)
    with error_context(run.results):
        return document, Evaluation.from_json(document)


def read_history(path: Path) -> Iterator[Mapping[str, Any]]:
    """The entries of `history.jsonl`. A stopped run may leave an incomplete line, which is skipped."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            yield json.loads(line)
