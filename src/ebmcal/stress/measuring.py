"""Models set on changed texts: what is left of accuracy and calibration, where energies go, which tests fail.

Everything a page or a table shows is in one document:

    conditions [{"model", "change", "title", "unit", "strength", "n_rows", "metrics": {name: {"value", "low", "high"}},
                 "confidence", "energy", "unusual", "changed_label"}]         strength 0: the texts as they are
    tests      [{"model", "suite", "test", "kind", "strength", "n_cases", "n_failed", "share", "low", "high",
                 "failures": [{"text", "changed", "expected", "got"}]}]
    examples   {change: [{"strength", "text", "changed"}]}
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ebmcal.decisions.conformal import kept_scores
from ebmcal.decisions.unusual import ENERGY, Unusual
from ebmcal.judging import Measures, judge
from ebmcal.metrics import FewRowsWarning
from ebmcal.metrics.bins import wilson
from ebmcal.predictions import Predictions
from ebmcal.stress.changes import CHANGES, Tokens
from ebmcal.stress.suites import SuiteTest

Row = tuple[str, str | None]

#: Of each condition, with intervals over few resamples: there are many conditions.
MEASURES = Measures(("accuracy", "ece_top_label", "nll"), n_resamples=200)

FALSE_ALARMS = 0.05  # of texts as usual as the calibration texts, called unusual
SHOWN = 5  # examples of a change, failures of a test


@dataclass(frozen=True)
class Subject:
    """A model under test: what it says about texts, and how it tells unusual ones."""

    name: str
    predict: Callable[[Sequence[Row]], Predictions]
    usual: Unusual | None = None  # None: by the energies of the unchanged texts

    def unusual(self, predictions: Predictions, clean: Predictions) -> np.ndarray | None:
        """Which texts are unusual, at one false-alarm rate for all models; None where that cannot be told."""
        usual = self.usual or usual_energies(clean)
        if usual is None or (usual.by == ENERGY and predictions.energies is None):
            return None
        return usual.p_values(predictions) <= FALSE_ALARMS


def usual_energies(rows: Predictions) -> Unusual | None:
    """The energies of rows as those of usual texts; None where there are too few."""
    if rows.energies is None or rows.n_rows < 1 / FALSE_ALARMS:
        return None
    return Unusual(FALSE_ALARMS, kept_scores(rows.energies, FALSE_ALARMS))


@dataclass(frozen=True)
class Changed:
    """The rows of one change at one strength, the same for every model."""

    change: str
    title: str
    unit: str
    strength: float
    rows: list[Row]
    test: SuiteTest | None = None


def changed_texts(
    rows: Sequence[Row], changes: Sequence[str], tests: Sequence[SuiteTest], tokens: Tokens, seed: int
) -> Iterator[Changed]:
    """Every change and every test with a change, at every strength; the same seed gives the same texts."""
    for name in changes:
        change = CHANGES[name]
        for strength in change.strengths:
            rng = np.random.default_rng([seed, *name.encode(), round(1000 * strength)])
            made = [_each(row, lambda text: change.apply(text, strength, rng, tokens)) for row in rows]  # noqa: B023
            yield Changed(name, change.title, change.unit, strength, made)
    for test in (test for test in tests if not test.cases):
        for strength in test.strengths:
            rng = np.random.default_rng([seed, *test.name.encode(), strength])
            made = [(test.change(text, strength, rng), pair) for text, pair in rows]
            unit = "words changed" if test.replace else "sentences added"
            yield Changed(f"{test.suite}: {test.name}", test.name, unit, strength, made, test)


def _each(row: Row, change: Callable[[str], str]) -> Row:
    return change(row[0]), None if row[1] is None else change(row[1])


def measure(
    subjects: Sequence[Subject],
    rows: Sequence[Row],
    labels: np.ndarray,
    changed: Sequence[Changed],
    tests: Sequence[SuiteTest],
    advance: Callable[[int], None] = lambda n: None,
) -> dict[str, Any]:
    """The document of all models on all changed texts and all tests."""
    document: dict[str, Any] = {"conditions": [], "tests": [], "examples": _examples(rows, changed)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)  # for each condition; the table has the number
        for subject in subjects:
            _measure_one(document, subject, rows, labels, changed, tests, advance)
    return document


def _measure_one(
    document: dict[str, Any], subject: Subject, rows: Sequence[Row], labels: np.ndarray, changed: Sequence[Changed],
    tests: Sequence[SuiteTest], advance: Callable[[int], None],
) -> None:  # fmt: skip
    clean = replace(subject.predict(rows), labels=labels)
    advance(len(rows))
    start = Changed("", "As they are", "", 0.0, list(rows))
    document["conditions"].append(_condition(subject, start, clean, clean))
    for one in changed:
        found = replace(subject.predict(one.rows), labels=labels)
        advance(len(rows))
        if one.test is None or one.test.kind == "invariance":
            document["conditions"].append(_condition(subject, one, found, clean))
        if one.test is not None:
            document["tests"].append(_test(subject, one, one.test, found, clean, rows))
    document["tests"] += [_cases(subject, test) for test in tests if test.cases]


def _condition(subject: Subject, one: Changed, found: Predictions, clean: Predictions) -> dict[str, Any]:
    unusual = subject.unusual(found, clean)
    return {
        "model": subject.name, "change": one.change, "title": one.title, "unit": one.unit, "strength": one.strength,
        "n_rows": found.n_rows, "metrics": judge(found, MEASURES, method=subject.name)["metrics"],
        "confidence": float(found.confidences().mean()),
        "energy": None if found.energies is None else float(found.energies.mean()),
        "unusual": None if unusual is None else float(unusual.mean()),
        "changed_label": float((found.predicted() != clean.predicted()).mean()),
    }  # fmt: skip


def _test(
    subject: Subject, one: Changed, test: SuiteTest, found: Predictions, clean: Predictions, rows: Sequence[Row]
) -> dict[str, Any]:
    """Invariance: the label changed. Directional: a probability went the wrong way by more than the tolerance."""
    touched = np.array([a != b for a, b in zip(rows, one.rows, strict=True)])
    if test.expect is None:
        failed = found.predicted() != clean.predicted()
        expected = [f"{name}, as before" for name in clean.labels_]
        got = list(found.labels_)
    else:
        expect, n = test.expect, np.arange(found.n_rows)
        index = clean.predicted() if expect.label == "predicted" else clean.label_names.index(expect.label)
        before, after = (p.probabilities()[n, index] for p in (clean, found))
        failed = (after - before) * (-1 if expect.moves == "up" else 1) > expect.tolerance
        names = np.array(clean.label_names)[np.broadcast_to(index, n.shape)]
        expected = [f"P({name}) {expect.moves} from {p:.2f}" for name, p in zip(names, before, strict=True)]
        got = [f"{p:.2f}" for p in after]
    shown = [
        {"text": rows[i][0], "changed": one.rows[i][0], "expected": expected[i], "got": str(got[i])}
        for i in np.flatnonzero(failed & touched)[:SHOWN]
    ]
    return _outcome(subject, test, one.strength, int(touched.sum()), int((failed & touched).sum()), shown)


def _cases(subject: Subject, test: SuiteTest) -> dict[str, Any]:
    found = subject.predict([(text, None) for text, _ in test.cases])
    wrong = [i for i, (_, label) in enumerate(test.cases) if found.labels_[i] != label]
    shown = [
        {
            "text": test.cases[i][0], "changed": test.cases[i][0], "expected": test.cases[i][1],
            "got": f"{found.labels_[i]} ({found.confidences()[i]:.2f})",
        }
        for i in wrong[:SHOWN]
    ]  # fmt: skip
    return _outcome(subject, test, 0, len(test.cases), len(wrong), shown)


def _outcome(
    subject: Subject, test: SuiteTest, strength: float, n_cases: int, n_failed: int, failures: list[dict[str, str]]
) -> dict[str, Any]:
    low, high = (float(x) for x in wilson(np.array(n_failed), np.array(n_cases))) if n_cases else (None, None)
    share = n_failed / n_cases if n_cases else None
    return {
        "model": subject.name, "suite": test.suite, "test": test.name, "kind": test.kind, "strength": strength,
        "n_cases": n_cases, "n_failed": n_failed, "share": share, "low": low, "high": high, "failures": failures,
    }  # fmt: skip


def _examples(rows: Sequence[Row], changed: Sequence[Changed]) -> Mapping[str, list[dict[str, Any]]]:
    """Some changed texts of every change and strength, as they were and as they are."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in changed:
        places = [i for i in range(len(rows)) if rows[i] != one.rows[i]][:2]
        shown = [{"strength": one.strength, "text": rows[i][0], "changed": one.rows[i][0]} for i in places]
        found.setdefault(one.change, []).extend(shown)
    return found
