"""A `Rule`: when to answer and when to abstain, which labels to offer, which texts are unusual. JSON on disk.

`fitting` makes one from labelled predictions that the model was not trained on; `Rule.decide` applies it to others.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from ebmcal.decisions.conformal import prediction_sets
from ebmcal.decisions.risk import Promise
from ebmcal.decisions.scores import Score
from ebmcal.decisions.unusual import NAMES, Unusual
from ebmcal.errors import EbmcalError, errors_of
from ebmcal.predictions import Predictions
from ebmcal.storage.atomic import read_json, write_json

FORMAT = 2
READ = (1, FORMAT)


@dataclass(frozen=True)
class Abstention:
    """Answer where the score reaches the threshold of the promise."""

    score: Score
    promise: Promise


@dataclass(frozen=True)
class LabelSets:
    """Sets that hold the right label with probability `coverage`, overall (split) or in each class."""

    kind: str
    coverage: float
    limits: tuple[float, ...]  # of 1 − P(y|x), for each class


@dataclass(frozen=True, eq=False)
class Decisions:
    """What a rule says about n rows; None for what the rule has no part for.

    For example:

        found = rule.decide(predictions)
        predictions.rows(found.answers)  # the rows that get an answer
    """

    answers: np.ndarray | None  # [n] bool; False = abstain
    reasons: list[str]  # [n]; why it abstains, "" where it answers
    scores: np.ndarray | None  # [n] that the threshold is on
    p_values: np.ndarray | None  # [n]; small = unusual
    unusual: np.ndarray | None  # [n] bool
    sets: list[tuple[str, ...]] | None  # [n] label names, the most probable first

    def columns(self) -> dict[str, list[Any]]:
        """One list for each column of a table: decision, reason, unusual, unusual_p, label_set."""
        found: dict[str, list[Any]] = {}
        if self.answers is not None:
            found |= {"decision": ["answer" if a else "abstain" for a in self.answers], "reason": list(self.reasons)}
        if self.unusual is not None and self.p_values is not None:
            found |= {"unusual": self.unusual.tolist(), "unusual_p": self.p_values.tolist()}
        return found | ({"label_set": [list(names) for names in self.sets]} if self.sets is not None else {})


@dataclass(frozen=True, eq=False)
class Rule:
    """A fitted rule; `decide` applies it, `write` and `read` keep it as JSON.

    `model` and `calibrator` are fingerprints of what made the predictions it was fitted on, None where only a file of
    predictions was known; `calibrated_by` is what those predictions say of their calibrator.

    >>> rule = Rule(("no", "yes"), 99, sets=LabelSets("split", 0.9, (0.7, 0.7)))
    >>> rule.decide(Predictions([-1], ("no", "yes"), probs=[[0.1, 0.9]])).sets
    [('yes',)]
    """

    label_names: tuple[str, ...]
    n_rows: int
    abstention: Abstention | None = None
    sets: LabelSets | None = None
    unusual: Unusual | None = None
    calibrated_by: dict[str, Any] | None = None
    model: str | None = None
    calibrator: str | None = None
    notes: tuple[str, ...] = field(default=())

    def decide(self, predictions: Predictions) -> Decisions:
        """Answer or abstain, label set, unusual or not, for each row of the same model's predictions.

        >>> rule = Rule(("no", "yes"), 99, sets=LabelSets("split", 0.9, (0.7, 0.7)))
        >>> rule.decide(Predictions([-1], ("no", "yes"), probs=[[0.4, 0.6]])).sets
        [('yes', 'no')]
        """
        self._require_same(predictions)
        probs = predictions.probabilities()
        scores = self.abstention.score(predictions) if self.abstention else None
        answers = self._answers(scores, predictions.n_rows)
        p = self.unusual.p_values(predictions) if self.unusual else None
        return Decisions(
            answers,
            [self._reason(i, scores, answers) for i in range(predictions.n_rows)],
            scores,
            p,
            p <= self.unusual.false_alarms if self.unusual and p is not None else None,
            self._sets(probs) if self.sets else None,
        )

    def judge(self, predictions: Predictions) -> list[str]:
        """What the rule does on labelled rows it was not fitted on, a sentence for each part."""
        return _judged(self, predictions.labelled())

    def describe(self) -> list[str]:
        """What the rule promises, a sentence for each part."""
        return [*_described(self), *self.notes]

    def write(self, path: str | PathLike[str]) -> None:
        """Write as JSON with a checksum: a file that was changed by hand is damaged."""
        write_json(path, self.to_json(), checked=True)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Rule":
        """The rule that `write` wrote; refuses what is damaged, changed by hand, or of another format."""
        return _read(path)

    def to_json(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"abstention": None, "sets": None, "unusual": None}
        if self.abstention:
            parts["abstention"] = {"score": self.abstention.score.to_json(), **self.abstention.promise.to_json()}
        if self.sets:
            parts["sets"] = {**asdict(self.sets), "limits": list(self.sets.limits)}
        if self.unusual:
            parts["unusual"] = self.unusual.to_json()
        names = ("model", "calibrator", "calibrated_by", "n_rows")
        about = {"rule": "ebmcal decision", "format": FORMAT, "label_names": list(self.label_names)}
        return {**about, **{name: getattr(self, name) for name in names}, "notes": list(self.notes), **parts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Rule":
        given, sets, unusual = (value[name] for name in ("abstention", "sets", "unusual"))
        promise = None if given is None else Promise(**{k: v for k, v in given.items() if k != "score"})
        return cls(
            label_names=tuple(map(str, value["label_names"])),
            n_rows=int(value["n_rows"]),
            abstention=None if promise is None else Abstention(Score.from_json(given["score"]), promise),
            sets=None if sets is None else LabelSets(sets["kind"], sets["coverage"], tuple(sets["limits"])),
            unusual=None if unusual is None else Unusual.from_json(unusual),
            calibrated_by=value["calibrated_by"],
            model=value["model"],
            calibrator=value["calibrator"],
            notes=tuple(value["notes"]),
        )

    def _answers(self, scores: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        if scores is None or self.abstention is None:
            return None
        threshold = self.abstention.promise.threshold
        return np.ones(n_rows, dtype=bool) if threshold is None else scores >= threshold

    def _reason(self, i: int, scores: np.ndarray | None, answers: np.ndarray | None) -> str:
        if answers is None or scores is None or self.abstention is None or answers[i]:
            return ""
        name = REASONS[self.abstention.score.name]
        return f"{name} is {scores[i]:.4g}, below {self.abstention.promise.threshold:.4g}"

    def _sets(self, probs: np.ndarray) -> list[tuple[str, ...]]:
        assert self.sets is not None
        inside, order = prediction_sets(probs, np.array(self.sets.limits)), np.argsort(-probs, axis=1, kind="stable")
        return [tuple(self.label_names[c] for c in by if row[c]) for row, by in zip(inside, order, strict=True)]

    def _require_same(self, predictions: Predictions) -> None:
        if predictions.label_names != self.label_names:
            raise EbmcalError(
                f"The rule is for the classes {', '.join(self.label_names)}; these predictions have "
                f"{', '.join(predictions.label_names)}. Fit a rule on predictions of the same model."
            )
        came = predictions.meta.get("calibrator")
        if (came or None) != (self.calibrated_by or None):
            raise EbmcalError(
                f"The rule was fitted on predictions {_by(self.calibrated_by)}; these are {_by(came)}. "
                "Decide on predictions made the same way, or fit the rule again (ebmcal decide)."
            )


#: How a score is called in a reason.
REASONS = {
    "confidence": "confidence",
    "energy": "minus the energy",
    "both": "the score of confidence and energy",
}


def _described(rule: Rule) -> list[str]:
    said = []
    if rule.abstention:
        p, name = rule.abstention.promise, rule.abstention.score.name
        where = "always" if p.threshold is None else f"where {REASONS[name]} is at least {p.threshold:.4g}"
        said.append(
            f"Answers {where}: {p.n_answered / p.n_tested:.1%} of the {p.n_tested:,} held-out rows that tested it, "
            f"{p.n_wrong} of {p.n_answered:,} answers wrong. Promise: at most {p.max_error:.1%} of the answers are "
            f"wrong, with confidence {p.confidence:g}."
        )
    if rule.sets:
        where = "" if rule.sets.kind == "split" else ", in every class"
        said.append(f"Label sets hold the right label with probability {rule.sets.coverage:g} or more{where}.")
    if rule.unusual:
        said.append(
            f"Unusual: {NAMES[rule.unusual.by]} that at most {rule.unusual.false_alarms:.1%} of usual texts reach "
            f"(p-values against {len(rule.unusual.scores):,} calibration texts)."
        )
    return said


def _judged(rule: Rule, rows: Predictions) -> list[str]:
    found, said = rule.decide(rows), []
    if found.answers is not None:
        wrong = (rows.predicted() != rows.labels)[found.answers]
        share = f", {wrong.mean():.1%} of them wrong" if len(wrong) else ""
        said.append(f"answers {found.answers.mean():.1%} of {rows.n_rows:,} rows{share}.")
    if found.sets is not None:
        held = [rows.label_names[y] in names for y, names in zip(rows.labels, found.sets, strict=True)]
        size = np.mean([len(names) for names in found.sets])
        said.append(f"{np.mean(held):.1%} of the label sets hold the right label; {size:.2f} labels on average.")
    if found.unusual is not None:
        said.append(f"{found.unusual.mean():.1%} are unusual.")
    return said


def _by(calibrator: Any) -> str:
    return (
        f"calibrated by {calibrator['name']} ({calibrator['n_rows']:,} rows)" if calibrator else "without a calibrator"
    )


def _read(path: str | PathLike[str]) -> Rule:
    value = read_json(path, must_be_checked=True)
    if not isinstance(value, dict) or "rule" not in value:
        raise EbmcalError(f"{path} does not hold a decision rule. Write one with `ebmcal decide`.")
    if value.get("format") not in READ:
        known = " and ".join(map(str, READ))
        raise EbmcalError(f"{path} has format {value.get('format')}; this version reads {known}. Fit the rule again.")
    try:
        with errors_of(path):
            return Rule.from_json(value)
    except EbmcalError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EbmcalError(f"{path} is damaged ({error!r}). Fit the rule again: ebmcal decide.") from error
