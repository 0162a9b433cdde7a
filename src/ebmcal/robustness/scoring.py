"""Scores of models on perturbed texts and on suites, as rows of tidy tables.

conditions   model, perturbation, title, unit, strength (0: the original texts), n_rows, accuracy, ece_top_label and
             nll (each with _low and _high), confidence, energy, ood (share), changed_label (share)
tests        model, suite, test, kind, strength, n_cases, n_failed, failed (share), failed_low, failed_high
failures     model, suite, test, strength, text, expected, got
examples     perturbation, strength, text, perturbed
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ebmcal import metrics
from ebmcal.metrics.calibration import wilson
from ebmcal.predictions import Predictions
from ebmcal.robustness.perturbations import PERTURBATIONS, TokenSource
from ebmcal.robustness.suite import Expectation, SuiteTest

Text = str | tuple[str, str]
Record = dict[str, Any]

METRIC_NAMES = ("accuracy", "ece_top_label", "nll")
N_RESAMPLES = 200  # there are many conditions

#: Share of texts like the training data that are flagged as OOD, the same for all models.
FALSE_ALARM_RATE = 0.05
N_EXAMPLES, N_FAILURES = 2, 5


@dataclass(frozen=True)
class Subject:
    """A model under test: how it predicts, and which predictions it flags as OOD (default: by energy)."""

    name: str
    predict: Callable[[Sequence[Text]], Predictions]
    is_ood: Callable[[Predictions], np.ndarray] | None = None

    def ood_share(self, predictions: Predictions, original: Predictions) -> float | None:
        """The share of texts flagged as OOD; without a rule, by the energies of the original texts."""
        flag = self.is_ood or energy_threshold(original)
        return None if flag is None else float(flag(predictions).mean())


def energy_threshold(reference: Predictions) -> Callable[[Predictions], np.ndarray] | None:
    """Flags energies above those of all but `FALSE_ALARM_RATE` of the reference; None with too few energies."""
    if reference.energies is None or reference.n_rows < 1 / FALSE_ALARM_RATE:
        return None
    limit = np.quantile(reference.energies, 1 - FALSE_ALARM_RATE, method="higher")
    return lambda predictions: predictions.require_energies() > limit


@dataclass(frozen=True)
class Condition:
    """The texts of one perturbation at one strength, the same for all models."""

    perturbation: str
    title: str
    unit: str
    strength: float
    texts: list[Text]
    test: SuiteTest | None = None


@dataclass
class Records:
    """The rows of the four tables."""

    conditions: list[Record] = field(default_factory=list)
    tests: list[Record] = field(default_factory=list)
    failures: list[Record] = field(default_factory=list)
    examples: list[Record] = field(default_factory=list)


def make_conditions(
    texts: Sequence[Text], names: Sequence[str], tests: Sequence[SuiteTest], tokens: TokenSource, seed: int
) -> Iterator[Condition]:
    """Every perturbation and every perturbing test at every strength; a seed always gives the same texts."""
    for name in names:
        perturbation = PERTURBATIONS[name]
        for strength in perturbation.strengths:
            rng = np.random.default_rng([seed, *name.encode(), round(1000 * strength)])
            perturbed = [_apply(text, lambda t: perturbation.apply(t, strength, rng, tokens)) for text in texts]  # noqa: B023
            yield Condition(name, perturbation.title, perturbation.unit, strength, perturbed)
    for test in tests:
        for amount in test.strengths if test.kind != "minimum-functionality" else ():
            rng = np.random.default_rng([seed, *test.name.encode(), amount])
            perturbed = [_apply_first(text, lambda t: test.perturb(t, amount, rng)) for text in texts]  # noqa: B023
            unit = "words replaced" if test.replace else "sentences added"
            yield Condition(f"{test.suite}: {test.name}", test.name, unit, amount, perturbed, test)


def _apply(text: Text, perturb: Callable[[str], str]) -> Text:
    return perturb(text) if isinstance(text, str) else (perturb(text[0]), perturb(text[1]))


def _apply_first(text: Text, perturb: Callable[[str], str]) -> Text:
    return perturb(text) if isinstance(text, str) else (perturb(text[0]), text[1])


def score(
    subjects: Sequence[Subject],
    texts: Sequence[Text],
    labels: np.ndarray,
    conditions: Sequence[Condition],
    tests: Sequence[SuiteTest],
    advance: Callable[[int], None] = lambda n: None,
) -> Records:
    """All models on all conditions and tests."""
    records = Records(examples=[row for condition in conditions for row in _examples(texts, condition)])
    originals = Condition("", "Original texts", "", 0.0, list(texts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few rows: the tables state how many there are
        for subject in subjects:
            original = subject.predict(texts).replace(labels=labels)
            records.conditions.append(_condition_record(subject, originals, original, original))
            advance(len(texts))
            for condition in conditions:
                found = subject.predict(condition.texts).replace(labels=labels)
                advance(len(texts))
                if condition.test is None or condition.test.kind == "invariance":
                    records.conditions.append(_condition_record(subject, condition, found, original))
                if condition.test is not None:
                    _add_test(records, subject, condition, condition.test, found, original, texts)
            for test in tests:
                if test.kind == "minimum-functionality":
                    _add_cases(records, subject, test)
    return records


def _condition_record(subject: Subject, condition: Condition, found: Predictions, original: Predictions) -> Record:
    values: Record = {}
    for name, interval in metrics.summarize(found, METRIC_NAMES, N_RESAMPLES, warn=False).items():
        values |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {
        "model": subject.name, "perturbation": condition.perturbation, "title": condition.title,
        "unit": condition.unit, "strength": condition.strength, "n_rows": found.n_rows, **values,
        "confidence": float(found.confidence.mean()),
        "energy": None if found.energies is None else float(found.energies.mean()),
        "ood": subject.ood_share(found, original),
        "changed_label": float((found.predicted != original.predicted).mean()),
    }  # fmt: skip


def _add_test(
    records: Records, subject: Subject, condition: Condition, test: SuiteTest, found: Predictions,
    original: Predictions, texts: Sequence[Text],
) -> None:  # fmt: skip
    """Score a test on the texts that it changes."""
    changed = np.array([a != b for a, b in zip(texts, condition.texts, strict=True)])
    if test.expect is None:
        failed = found.predicted != original.predicted
        expected, got = [f"{name}, as before" for name in original.predicted_labels], list(found.predicted_labels)
    else:
        failed, expected, got = _directional(test.expect, found, original)
    failed &= changed
    shown = [(condition.texts[i], expected[i], str(got[i])) for i in np.flatnonzero(failed)[:N_FAILURES]]
    _add_outcome(records, subject, test, condition.strength, int(changed.sum()), int(failed.sum()), shown)


def _directional(
    expect: Expectation, found: Predictions, original: Predictions
) -> tuple[np.ndarray, list[str], list[str]]:
    """Fails if the probability moves against the expectation by more than the tolerance."""
    rows = np.arange(found.n_rows)
    index = original.predicted if expect.label == "predicted" else original.label_names.index(expect.label)
    before, after = original.probs[rows, index], found.probs[rows, index]
    failed = (after - before) * (-1 if expect.moves == "up" else 1) > expect.tolerance
    names = np.array(original.label_names)[np.broadcast_to(index, rows.shape)]
    expected = [f"P({name}) {expect.moves} from {p:.2f}" for name, p in zip(names, before, strict=True)]
    return failed, expected, [f"{p:.2f}" for p in after]


def _add_cases(records: Records, subject: Subject, test: SuiteTest) -> None:
    cases = test.all_cases()
    found = subject.predict([case.text for case in cases])
    wrong = [i for i, case in enumerate(cases) if found.predicted_labels[i] != case.label]
    got = [f"{label} ({p:.2f})" for label, p in zip(found.predicted_labels, found.confidence, strict=True)]
    shown: list[tuple[Text, str, str]] = [(cases[i].text, cases[i].label, got[i]) for i in wrong[:N_FAILURES]]
    _add_outcome(records, subject, test, 0, len(cases), len(wrong), shown)


def _add_outcome(
    records: Records, subject: Subject, test: SuiteTest, strength: float, n_cases: int, n_failed: int,
    failures: Sequence[tuple[Text, str, str]],
) -> None:  # fmt: skip
    low, high = (float(x) for x in wilson(np.array(n_failed), np.array(n_cases))) if n_cases else (None, None)
    key = {"model": subject.name, "suite": test.suite, "test": test.name}
    records.tests.append(
        key | {"kind": test.kind, "strength": strength, "n_cases": n_cases, "n_failed": n_failed,
               "failed": n_failed / n_cases if n_cases else None, "failed_low": low, "failed_high": high}
    )  # fmt: skip
    records.failures += [
        key | {"strength": strength, "text": _shown(text), "expected": expected, "got": got}
        for text, expected, got in failures
    ]


def _examples(texts: Sequence[Text], condition: Condition) -> list[Record]:
    changed = [i for i in range(len(texts)) if texts[i] != condition.texts[i]][:N_EXAMPLES]
    key = {"perturbation": condition.perturbation, "strength": condition.strength}
    return [key | {"text": _shown(texts[i]), "perturbed": _shown(condition.texts[i])} for i in changed]


def _shown(text: Text) -> str:
    return text if isinstance(text, str) else " ⏐ ".join(text)
