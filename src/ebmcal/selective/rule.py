"""`AbstentionRule`: when to answer and when to abstain, which labels to offer, which texts are OOD.

`fitting` creates one from labelled held-out predictions; `AbstentionRule.apply` applies it to others. On disk it is
JSON plus arrays (calibration scores, training features): one JSON file, or `ebmcal.json` and `abstention.npz`.
"""

import base64
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.selective.conformal import prediction_sets
from ebmcal.selective.ood import OOD_SCORES, OodTest, checksum, training_features_from
from ebmcal.selective.risk_control import Guarantee
from ebmcal.selective.scores import SCORES, Score
from ebmcal.storage import PathLike, fingerprint, read_json, write_json


@dataclass(frozen=True)
class LabelSets:
    """Sets that contain the true label with probability `coverage`, overall (split) or in each class."""

    kind: str
    coverage: float
    limits: tuple[float, ...]  # of 1 − P(y|x), for each class


@dataclass(frozen=True, eq=False)
class Decisions:
    """What a rule decides for n rows; None for parts that the rule does not have.

    decisions = rule.apply(predictions)
    predictions.rows(decisions.answered)  # the rows that get an answer
    """

    answered: np.ndarray  # [n] bool; False = abstain
    reason: list[str]  # [n]; why it abstains, "" where it answers
    score: np.ndarray | None  # [n], compared with the threshold
    p_values: np.ndarray | None  # [n]; small = OOD
    is_ood: np.ndarray | None  # [n] bool
    ood_score: np.ndarray | None  # [n], high = unlike the training data
    label_sets: list[tuple[str, ...]] | None  # [n] label names, the most probable first

    def columns(self) -> dict[str, list[Any]]:
        """One list per column of a table: decision, reason, is_ood, ood_p_value, label_set."""
        found: dict[str, list[Any]] = {"decision": ["answer" if a else "abstain" for a in self.answered]}
        found["reason"] = list(self.reason)
        if self.is_ood is not None and self.p_values is not None:
            found |= {"is_ood": self.is_ood.tolist(), "ood_p_value": self.p_values.tolist()}
        return found | ({} if self.label_sets is None else {"label_set": [list(names) for names in self.label_sets]})


@dataclass(frozen=True, eq=False)
class AbstentionRule:
    """A fitted rule; `apply` it to predictions, `write` and `read` it as one JSON file.

    `model` and `calibrator` are fingerprints of what made the predictions it was fitted on, None if only a prediction
    file was given; `calibrated_by` describes the calibrator of those predictions. Unless `answer_ood`, the rule
    abstains on OOD texts.

    >>> rule = AbstentionRule(("no", "yes"), 99, sets=LabelSets("split", 0.9, (0.7, 0.7)))
    >>> rule.apply(Predictions([-1, -1], ("no", "yes"), probs=[[0.1, 0.9], [0.4, 0.6]])).label_sets
    [('yes',), ('yes', 'no')]
    """

    label_names: tuple[str, ...]
    n_rows: int
    score: Score | None = None
    guarantee: Guarantee | None = None
    sets: LabelSets | None = None
    ood: OodTest | None = None
    answer_ood: bool = False
    calibrated_by: dict[str, Any] | None = None
    model: str | None = None
    calibrator: str | None = None
    notes: tuple[str, ...] = ()

    def apply(self, predictions: Predictions) -> Decisions:
        """Answer or abstain, label set, OOD or not, for each row of the same model's predictions."""
        self._check_same(predictions)
        scores = None if self.score is None else self.score(predictions)
        ood_scores = None if self.ood is None else self.ood.scores(predictions)
        p = None if self.ood is None or ood_scores is None else self.ood.p_values(ood_scores)
        is_ood = None if self.ood is None or p is None else p <= self.ood.rate
        threshold = None if self.guarantee is None else self.guarantee.threshold
        answered = np.ones(predictions.n_rows, dtype=bool)
        reason = [""] * predictions.n_rows
        if scores is not None and self.score is not None and threshold is not None:
            answered &= scores >= threshold
            for i in np.flatnonzero(~answered):
                reason[i] = f"{REASONS[self.score.name]} is {scores[i]:.4g}, below {threshold:.4g}"
        if is_ood is not None and p is not None and not self.answer_ood:
            for i in np.flatnonzero(is_ood):
                reason[i] = f"out-of-distribution (p = {p[i]:.2g})" + (f"; {reason[i]}" if reason[i] else "")
            answered &= ~is_ood
        return Decisions(answered, reason, scores, p, is_ood, ood_scores, self._label_sets(predictions.probs))

    @property
    def needs_features(self) -> bool:
        """Whether predictions need distances, measured from the model's features."""
        return self.ood is not None and self.ood.needs_features

    def add_distances(self, predictions: Predictions, features: np.ndarray | None) -> Predictions:
        """Predictions with the distances that the rule needs, measured from features [n, H] of the same texts."""
        if self.ood is None or features is None or not self.needs_features:
            return predictions
        return self.ood.add_distances(predictions, features)

    def evaluate(self, predictions: Predictions) -> list[str]:
        """What the rule does on labelled rows it was not fitted on, one sentence per part."""
        rows = predictions.labelled()
        found, wrong = self.apply(rows), rows.predicted != rows.labels
        share = f", {wrong[found.answered].mean():.1%} of the answers are wrong" if found.answered.any() else ""
        lines = [f"answers {found.answered.mean():.1%} of {rows.n_rows:,} rows{share}."]
        if found.label_sets is not None:
            held = [rows.label_names[y] in names for y, names in zip(rows.labels, found.label_sets, strict=True)]
            size = np.mean([len(names) for names in found.label_sets])
            lines.append(f"{np.mean(held):.1%} of the label sets contain the true label; {size:.2f} labels on average.")
        if found.is_ood is not None:
            lines.append(f"{found.is_ood.mean():.1%} are flagged as OOD.")
        return lines

    def describe(self) -> list[str]:
        """The guarantees of the rule, one sentence per part."""
        return [*_describe(self), *self.notes]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the rule: calibration scores, and features and labels of training texts."""
        if self.ood is None:
            return {}
        training = self.ood.training
        more = {} if training is None else {"features": training.features, "labels": training.labels}
        return {"ood_scores": self.ood.stored} | more

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays, of which it has a checksum, as JSON values."""
        names = ("n_rows", "answer_ood", "calibrated_by", "model", "calibrator")
        ood = None if self.ood is None else {"rate": self.ood.rate, "score": self.ood.score}
        value: dict[str, Any] = {name: getattr(self, name) for name in names}
        value |= {"label_names": list(self.label_names), "notes": list(self.notes), "ood": ood}
        value |= {name: _as_dict(getattr(self, name)) for name in ("score", "guarantee", "sets")}
        value["arrays"] = {name: checksum(array) for name, array in self.arrays().items()}
        return value | {"checksum": fingerprint(value)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], arrays: Mapping[str, np.ndarray], where: object) -> "AbstentionRule":
        """The rule that `to_json` and `arrays` describe; an error that names `where` if it was damaged or edited."""
        try:
            return _rule_from(value, arrays)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EbmcalError(
                f"The abstention rule in {where} is damaged or was edited ({error!r}), so its guarantee does not hold. "
                "Fit it again: ebmcal abstain."
            ) from error

    def write(self, path: PathLike) -> None:
        """Write as one JSON file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **self.arrays())  # type: ignore[arg-type]
        write_json(path, {"abstention": self.to_json(), "npz": base64.b64encode(buffer.getvalue()).decode("ascii")})

    @classmethod
    def read(cls, path: PathLike) -> "AbstentionRule":
        """The rule that `write` wrote; an error if it is damaged or was edited."""
        value = read_json(path)
        if not isinstance(value, dict) or "abstention" not in value:
            raise EbmcalError(f"{path} does not contain an abstention rule. Write one with `ebmcal abstain`.")
        try:
            content = base64.b64decode(value["npz"])
        except (KeyError, TypeError, ValueError) as error:
            raise EbmcalError(f"{path} is damaged ({error!r}). Fit the rule again: ebmcal abstain.") from error
        return cls.from_json(value["abstention"], arrays_from(content, path), path)

    def _label_sets(self, probs: np.ndarray) -> list[tuple[str, ...]] | None:
        if self.sets is None:
            return None
        inside, order = prediction_sets(probs, np.array(self.sets.limits)), np.argsort(-probs, axis=1, kind="stable")
        return [tuple(self.label_names[c] for c in by if row[c]) for row, by in zip(inside, order, strict=True)]

    def _check_same(self, predictions: Predictions) -> None:
        if predictions.label_names != self.label_names:
            raise EbmcalError(
                f"The rule is for the classes {', '.join(self.label_names)}; these predictions have "
                f"{', '.join(predictions.label_names)}. Fit a rule on predictions of the same model."
            )
        given = predictions.meta.get("calibrator")
        if (given or None) != (self.calibrated_by or None):
            raise EbmcalError(
                f"The rule was fitted on predictions {_calibration(self.calibrated_by)}; these are "
                f"{_calibration(given)}. Pass predictions made the same way, or fit the rule again (ebmcal abstain)."
            )


def arrays_from(content: bytes, where: object) -> dict[str, np.ndarray]:
    """The arrays in the bytes of an NPZ file; an error that names `where` if it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception as error:  # whatever damaged bytes make numpy raise
        raise EbmcalError(f"{where} is damaged ({error!r}). Fit the rule again: ebmcal abstain.") from error


#: How a score is called in a reason.
REASONS = {
    "confidence": "confidence",
    "energy": "the negative energy",
    "both": "the score of confidence and energy",
}


def _as_dict(part: Any) -> Any:
    return None if part is None else {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(part).items()}


def _rule_from(value: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> AbstentionRule:
    rest = {key: part for key, part in value.items() if key != "checksum"}
    if value["checksum"] != fingerprint(rest):
        raise ValueError("the checksum differs")
    if value["arrays"] != {name: checksum(arrays[name]) for name in value["arrays"]}:
        raise ValueError("the arrays differ")
    score, guarantee, sets, ood = (value[name] for name in ("score", "guarantee", "sets", "ood"))
    if (score is not None and score["name"] not in SCORES) or (ood is not None and ood["score"] not in OOD_SCORES):
        raise ValueError("unknown score")
    return AbstentionRule(
        label_names=tuple(map(str, value["label_names"])),
        score=None if score is None else Score.from_json(score),
        guarantee=None if guarantee is None else Guarantee(**guarantee),
        sets=None if sets is None else LabelSets(sets["kind"], sets["coverage"], tuple(sets["limits"])),
        ood=None
        if ood is None
        else OodTest(ood["rate"], ood["score"], arrays["ood_scores"], training_features_from(arrays)),
        notes=tuple(value["notes"]),
        **{name: value[name] for name in ("n_rows", "answer_ood", "calibrated_by", "model", "calibrator")},
    )


def _describe(rule: AbstentionRule) -> list[str]:
    lines = []
    if rule.guarantee and rule.score:
        g = rule.guarantee
        where = "always" if g.threshold is None else f"if {REASONS[rule.score.name]} is at least {g.threshold:.4g}"
        tested = "held-out rows" if rule.ood is None or rule.answer_ood else "held-out rows that are not OOD"
        lines.append(
            f"Answers {where}: {g.n_answered / g.n_tested:.1%} of {g.n_tested:,} {tested}, {g.n_wrong} of "
            f"{g.n_answered:,} answers wrong. Guarantee: at most {g.max_error:.1%} of the answers are wrong, with "
            f"confidence {g.confidence:g}."
        )
    if rule.sets:
        where = "" if rule.sets.kind == "split" else ", in every class"
        lines.append(f"Label sets contain the true label with probability {rule.sets.coverage:g} or more{where}.")
    if rule.ood:
        action = "They are answered." if rule.answer_ood else "The rule abstains on them."
        lines.append(
            f"OOD texts: {OOD_SCORES[rule.ood.score]} is so high that at most {rule.ood.rate:.1%} of texts like the "
            f"{len(rule.ood.stored):,} calibration texts reach it. {action}"
        )
    return lines


def _calibration(calibrator: Any) -> str:
    if not calibrator:
        return "without a calibrator"
    return f"calibrated by {calibrator['name']} ({calibrator['n_rows']:,} rows)"
