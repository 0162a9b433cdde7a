"""`stress_test`: one model, or two side by side, on a file of labelled texts that are changed in many ways.

What `ebmcal stress` does. The document it makes is laid out in `measuring`; tables and the page read it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.data.given import check_given, given_rows
from ebmcal.decisions.unusual import Unusual
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.model import Model, load
from ebmcal.predictions import Predictions
from ebmcal.progress import Console, Reporter
from ebmcal.runfolder import cell_of_model, predictions_of_model
from ebmcal.stress.changes import CHANGES, TokenizerTokens
from ebmcal.stress.measuring import FALSE_ALARMS, Row, Subject, changed_texts, measure, usual_energies
from ebmcal.stress.page import condition_table, test_table, write_page
from ebmcal.stress.suites import SuiteTest, read_suite, shipped_suites
from ebmcal.tables import Sheet


@dataclass(frozen=True, repr=False)
class StressTest:
    """What was found; `document` has all of it (see `ebmcal.stress.measuring`)."""

    document: dict[str, Any]

    def table(self) -> Sheet:
        """Accuracy, calibration, energy and share unusual against strength; and which tests failed how often."""
        tables = (condition_table(self.document), test_table(self.document))
        return Sheet(tuple(table for table in tables if table.rows))

    def to_json(self) -> str:
        return json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page with pictures and texts; returns where it is."""
        return write_page(Path(path), self.document)

    def __repr__(self) -> str:
        return str(self.table())


def stress_test(
    model: Model | str | Path,
    on: Any,
    *,
    beside: Model | str | Path | None = None,
    changes: Sequence[str] | None = None,
    suites: Sequence[str | Path] = (),
    shipped: bool = True,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str = "label",
    max_rows: int = 500,
    seed: int = 0,
    progress: bool = False,
) -> StressTest:
    """Set a model on changed texts: `on` is a file or table of labelled texts, at most `max_rows` of which are drawn.

    `changes` are names of `ebmcal.stress.changes.CHANGES` (all), `suites` files of your own tests beside the `shipped`
    ones, `beside` another model of the same labels on the same changed texts. The same seed gives the same texts.

        ebmcal.stress_test("model", "test.csv", beside="baseline").table()
    """
    for name in changes or ():
        if name not in CHANGES:
            raise unknown_name("change", name, CHANGES)
    files = [*(shipped_suites() if shipped else []), *suites]
    if changes is not None and not changes and not files:
        raise EbmcalError("There is nothing to test: no change (changes, --changes) and no suite.")
    tests = [test for file in files for test in read_suite(file)]
    check_given(on)
    models = [m if isinstance(m, Model) else load(m) for m in (model, beside) if m is not None]
    _check_models(models)
    first = models[0]
    given = given_rows(on, first.columns_of(text_column, text_pair_column, label_column), first.label_names)
    rows, labels = _drawn(given.texts, given.labels, max_rows, seed)
    fitting = [test for test in tests if test.fits(first.label_names) and (not test.cases or rows[0][1] is None)]
    chosen = list(CHANGES) if changes is None else list(changes)
    changed = list(changed_texts(rows, chosen, fitting, TokenizerTokens(first.tokenizer), seed))
    reporter = Console() if progress else Reporter()
    with reporter.stage("texts, changed and not", len(models) * len(rows) * (1 + len(changed))) as advance:
        subjects = [
            Subject(name, _predicts(m, first.label_names), _usual(m))
            for name, m in zip(_names(models), models, strict=True)
        ]
        document = measure(subjects, rows, labels, changed, fitting, advance)
    facts = {
        "format": 1, "models": _names(models), "texts": given.name, "n_rows": len(rows), "seed": seed,
        "false_alarms": FALSE_ALARMS, "skipped": _skipped(tests, fitting), "calibrated": list(map(_calibrated, models)),
        "usual_texts": ["calibration texts" if s.usual is not None else "the texts as they are" for s in subjects],
    }  # fmt: skip
    return StressTest(facts | document)


def _check_models(models: Sequence[Model]) -> None:
    names = [set(model.label_names) for model in models]
    if any(other != names[0] for other in names):
        raise EbmcalError(
            f"The models have other labels: {', '.join(models[0].label_names)} and {', '.join(models[1].label_names)}. "
            "Side by side, they must have the same."
        )


def _drawn(texts: Sequence[Row], labels: np.ndarray, max_rows: int, seed: int) -> tuple[list[Row], np.ndarray]:
    known = np.flatnonzero(labels >= 0)
    if not len(known) or max_rows < 1:
        raise EbmcalError("No text has a label; accuracy and calibration need labels (--label-column names theirs).")
    chosen = np.sort(np.random.default_rng(seed).permutation(known)[:max_rows])
    return [texts[i] for i in chosen], labels[chosen]


def _predicts(model: Model, label_names: Sequence[str]) -> Any:
    """Predictions with the classes in one order for all models: the labels of the texts are numbers of that order."""

    def predict(rows: Sequence[Row]) -> Predictions:
        return model.predict([text if pair is None else (text, pair) for text, pair in rows]).in_order(label_names)

    return predict


def _usual(model: Model) -> Unusual | None:
    """How calibration texts are: as the model's rule has it, or by their energies in its run; None if neither is."""
    if model.rule is not None and model.rule.unusual is not None:
        return model.rule.unusual
    path = predictions_of_model(model.folder, "calibration")
    return usual_energies(Predictions.read(path)) if path else None


def _calibrated(model: Model) -> str:
    if model.calibrator is not None:
        return f"calibrated by {model.calibrator.name}"
    return f"T = {model.folded_temperature:.4g} in its weights" if model.folded_temperature else "not calibrated"


def _names(models: Sequence[Model]) -> list[str]:
    """Short names: of the cell, or of the folder; a number where they are the same."""
    places = [cell_of_model(model.folder) for model in models]
    names = [p[1].name if p else m.folder.resolve().name for p, m in zip(places, models, strict=True)]
    return names if len(set(names)) == len(names) else [f"{name} ({i})" for i, name in enumerate(names, 1)]


def _skipped(tests: Sequence[SuiteTest], fitting: Sequence[SuiteTest]) -> list[str]:
    left = [test for test in tests if test not in fitting]
    return [f"{test.suite}: {test.name} (for the labels {', '.join(test.labels)}, single texts)" for test in left]
