"""`AbstentionRule`: when to answer and when to abstain, which labels to offer, which texts are OOD.

On disk it is JSON plus arrays (calibration scores, training features): one JSON file, or, in a model directory,
`ebmcal.json` (entry "abstention") and `abstention.npz`. A rule that was fitted for other weights or another calibrator
than those of the directory is refused: its guarantee does not hold for them.
"""

import base64
import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ebmcal.calibration import Calibrator, read_calibrator
from ebmcal.calibration.persistence import calibrator_fingerprint, check_model_dir
from ebmcal.errors import EbmcalError, error_context
from ebmcal.predictions import Predictions
from ebmcal.predictions.files import FileColumns, read_columns, write_columns
from ebmcal.run_dir import CARD_FILE, RULE_ARRAYS_FILE, read_card, update_card, weights_fingerprint
from ebmcal.selective.ood import OOD_SCORES, OodTest, TrainingFeatures, energies_of, p_values, parts_of
from ebmcal.storage import PathLike, atomic_write, fingerprint, read_json, write_json

#: Scores of the threshold [n], higher = more trustworthy.
SCORES: dict[str, Callable[[Predictions], np.ndarray]] = {
    "confidence": lambda predictions: predictions.confidence,
    "energy": lambda predictions: -energies_of(predictions),
}

#: How a score is called in a sentence.
SCORE_NAMES = {"confidence": "confidence", "energy": "the negative energy"}


@dataclass(frozen=True)
class Guarantee:
    """Answering where score ≥ `threshold` (everywhere if it is None) errs at most `max_error`, at this confidence."""

    threshold: float | None
    max_error: float
    confidence: float
    n_tested: int  # rows that tested the thresholds
    n_answered: int  # of them, those above the threshold
    n_wrong: int  # of those, the wrong ones
    bound: float  # Clopper-Pearson: the error is below this at this confidence, had only this threshold been tested
    n_planned: int = 0  # rows that set the thresholds


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
    ood_score_name: list[str] | None  # [n]; for a combined score, the part that the p-value comes from
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
    score: str | None = None
    guarantee: Guarantee | None = None
    sets: LabelSets | None = None
    ood: OodTest | None = None
    answer_ood: bool = False
    calibrated_by: dict[str, Any] | None = None
    model: str | None = None
    calibrator: str | None = None
    notes: tuple[str, ...] = ()
    n_copies: int = 0  # exact duplicates of the `n_rows` rows
    n_training: int = 0  # rows with training texts, left out

    def apply(self, predictions: Predictions) -> Decisions:
        """Answer or abstain, label set, OOD or not, for each row of the same model's predictions."""
        self._check_same(predictions)
        answered, reason = np.ones(predictions.n_rows, dtype=bool), [""] * predictions.n_rows
        scores = None if self.score is None else SCORES[self.score](predictions)
        if self.score is not None and scores is not None and self.guarantee and self.guarantee.threshold is not None:
            answered = scores >= self.guarantee.threshold
            for i in np.flatnonzero(~answered):
                name = SCORE_NAMES[self.score]
                reason[i] = f"{name} is {scores[i]:.4g}, below {self.guarantee.threshold:.4g}"
        ood_scores = names = p = is_ood = None
        if self.ood is not None:
            found = self.ood.scores(predictions)
            p, which = p_values(found, self.ood.ranking)
            ood_scores = found[which, np.arange(predictions.n_rows)]
            names = [parts_of(self.ood.score)[part] for part in which]
            is_ood = p <= self.ood.rate
            n, least = self.ood.n_texts, f"the least with {self.ood.n_texts:,} held-out texts"
            for i in np.flatnonzero(is_ood) if not self.answer_ood else ():
                shown = f"p = {p[i]:.2g}" if p[i] * (n + 1) > 1.5 else f"p ≤ {p[i]:.2g}, {least}"
                why = f"out-of-distribution by {OOD_SCORES[names[i]]} ({shown})"
                reason[i] = why + (f"; {reason[i]}" if reason[i] else "")
                answered[i] = False
        return Decisions(answered, reason, scores, p, is_ood, ood_scores, names, self._label_sets(predictions.probs))

    def apply_to_file(self, source: PathLike, output: PathLike, *, normalize: bool = False) -> Decisions:
        """Write a prediction file, which needs no labels, with the decisions as further columns; returns them.

        A column of the file that has the name of a new one becomes `input_<name>`.

        For example:

            AbstentionRule.read("rule.json").apply_to_file("new.csv", "decisions.csv")
        """
        table = read_columns(source)
        with error_context(source):
            rows = Predictions.from_columns(table, self.label_names, normalize=normalize, labels_required=False)
            found = self.apply(rows)
        decisions, columns = found.columns(), dict[str, Any]()
        for name, values in table.columns.items():
            while name in decisions or name in columns:
                name = f"input_{name}"
            columns[name] = values
        write_columns(output, FileColumns(columns | decisions, rows.label_names, rows.meta))
        return found

    @property
    def needs_features(self) -> bool:
        """Whether predictions need distances, measured from the model's features."""
        return self.ood is not None and self.ood.training is not None

    def add_distances(self, predictions: Predictions, features: np.ndarray | None) -> Predictions:
        """Predictions with the distances that the rule needs, measured from features [n, H] of the same texts."""
        return predictions if self.ood is None or features is None else self.ood.add_distances(predictions, features)

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
        """The rule, its guarantees and the rows it was fitted on, one line per part."""
        lines, g, name = [], self.guarantee, SCORE_NAMES.get(self.score or "")
        if g:
            is_strict = self.ood is not None and not self.answer_ood
            conditions = [] if g.threshold is None else [f"{name} is at least {g.threshold:.4g}"]
            conditions += ["the text is not OOD"] * is_strict
            condition = f"if {' and '.join(conditions)}, otherwise abstain" if conditions else "always"
            share = g.n_answered / g.n_tested * (g.n_planned + g.n_tested) / self.n_rows
            lines += [
                f"Rule: answer {condition}.",
                f"Guarantee: at most {g.max_error:.1%} of the answers are wrong, with confidence {g.confidence:g}. "
                f"Among the rows that tested the rule, {g.n_wrong:,} of {g.n_answered:,} answers were wrong.",
                f"Share: about {share:.0%} of texts like the held-out rows get an answer.",
            ]
        if self.sets:
            where = "" if self.sets.kind == "split" else ", in every class"
            lines.append(f"Label sets contain the true label with probability {self.sets.coverage:g} or more{where}.")
        if self.ood:
            action = "They are answered." if self.answer_ood else "The rule abstains on them."
            most, why = "at most", ""
            if self.ood.is_approximate:
                most, why = "about", " (not guaranteed: these are out-of-fold predictions, of the models of the folds)"
            lines.append(
                f"OOD texts: {OOD_SCORES[self.ood.score]} is so high that {most} {self.ood.rate:.1%} of texts like "
                f"the held-out rows reach it{why}. {action}"
            )
        return [*lines, self._describe_rows(), *self.notes]

    def _describe_rows(self) -> str:
        """How many rows the rule was fitted on, and why others were not used."""
        g, used = self.guarantee, "used"
        n_used = self.n_rows if g is None else g.n_planned + g.n_tested
        if g is not None:
            used = f"used, {g.n_planned:,} to choose the threshold and {g.n_tested:,} to test it"
        reasons = {"training rows": self.n_training, "exact duplicates": self.n_copies, "OOD": self.n_rows - n_used}
        others = ", ".join(f"{n:,} {reason}" for reason, n in reasons.items() if n)
        n_all = self.n_rows + self.n_copies + self.n_training
        return f"Rows: {n_used:,} of {n_all:,} held-out rows {used}{f'; not used: {others}' if others else ''}."

    def _label_sets(self, probs: np.ndarray) -> list[tuple[str, ...]] | None:
        if self.sets is None:
            return None
        order = np.argsort(-probs, axis=1, kind="stable")
        inside = 1.0 - probs <= np.array(self.sets.limits)
        np.put_along_axis(inside, order[:, :1], True, axis=1)  # the most probable label, which can only add coverage
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

    def arrays(self) -> bytes:
        """The arrays of the rule (calibration scores, features and labels of training texts) as an NPZ file."""
        parts: dict[str, Any] = {}
        if self.ood is not None:
            names = parts_of(self.ood.score)
            parts = {f"ood_{name}": values for name, values in zip(names, self.ood.ranking, strict=True)}
        if self.ood is not None and self.ood.training is not None:
            parts |= {"features": self.ood.training.features, "labels": self.ood.training.labels}
        buffer = io.BytesIO()
        np.savez(buffer, **parts)
        return buffer.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays, with a checksum of everything, as JSON values."""
        names = ("rate", "score", "is_approximate")
        ood = None if self.ood is None else {name: getattr(self.ood, name) for name in names}
        value = asdict(replace(self, ood=None)) | {"ood": ood}
        return value | {"checksum": _checksum(value, self.arrays())}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], arrays: bytes | str, where: object) -> "AbstentionRule":
        """The rule that `to_json` and `arrays` describe; an error that names `where` if it was damaged or edited."""
        try:
            arrays = base64.b64decode(arrays) if isinstance(arrays, str) else arrays
            fields = {key: part for key, part in value.items() if key != "checksum"}
            if value["checksum"] != _checksum(fields, arrays):
                raise ValueError("the checksum differs")
            return _rule_from(fields, arrays)
        except Exception as error:  # whatever damaged bytes make numpy raise
            raise EbmcalError(
                f"The abstention rule in {where} is damaged or was edited ({error!r}), so its guarantee does not hold. "
                "Fit it again: ebmcal abstain."
            ) from error

    def write(self, path: PathLike) -> None:
        """Write as one JSON file."""
        write_json(path, {"abstention": self.to_json(), "npz": base64.b64encode(self.arrays()).decode("ascii")})

    @classmethod
    def read(cls, path: PathLike) -> "AbstentionRule":
        """The rule that `write` wrote; an error if it is damaged or was edited."""
        value = read_json(path)
        if not isinstance(value, dict) or "abstention" not in value:
            raise EbmcalError(f"{path} does not contain an abstention rule. Write one with `ebmcal abstain`.")
        return cls.from_json(value["abstention"], str(value.get("npz")), path)


def _rule_from(value: Mapping[str, Any], npz: bytes) -> AbstentionRule:
    parts: dict[str, Any] = {name: tuple(value[name]) for name in ("label_names", "notes")}
    kinds: dict[str, Any] = {"guarantee": Guarantee, "sets": LabelSets}
    for name, kind in kinds.items():
        if value[name] is not None:
            parts[name] = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in value[name].items()})
    if value["ood"] is not None:
        with np.load(io.BytesIO(npz), allow_pickle=False) as arrays:
            features = [arrays[name] for name in ("features", "labels") if name in arrays]
            ranking = tuple(arrays[f"ood_{name}"] for name in parts_of(value["ood"]["score"]))
            training = TrainingFeatures(*features) if features else None
            parts["ood"] = OodTest(**value["ood"], ranking=ranking, training=training)
    return AbstentionRule(**{**value, **parts})


def _checksum(value: Mapping[str, Any], npz: bytes) -> str:
    return fingerprint(value, hashlib.sha256(npz).hexdigest())


def _calibration(calibrator: Any) -> str:
    if not calibrator:
        return "without a calibrator"
    return f"calibrated by {calibrator['name']} ({calibrator['n_rows']:,} rows)"


def save_rule(model_dir: PathLike, rule: AbstentionRule | None) -> None:
    """Store a rule in a model directory, replacing the one there; None removes it."""
    folder = check_model_dir(model_dir)
    if rule is None:
        if "abstention" in read_card(folder):
            update_card(folder, abstention=None)
        (folder / RULE_ARRAYS_FILE).unlink(missing_ok=True)
        return
    with atomic_write(folder / RULE_ARRAYS_FILE) as temporary:
        temporary.write_bytes(rule.arrays())
    update_card(folder, abstention=rule.to_json())


def read_rule(
    model_dir: PathLike, calibrator: Calibrator | Literal["stored"] | None = "stored"
) -> AbstentionRule | None:
    """The rule of a model directory, or None; an error if it was fitted for other weights or another calibrator.

    With a `calibrator` other than the one in the directory, for which the rule was fitted, there is no rule.
    """
    folder, value = Path(model_dir), read_card(model_dir).get("abstention")
    if value is None:
        return None
    where, arrays = folder / CARD_FILE, folder / RULE_ARRAYS_FILE
    rule = AbstentionRule.from_json(value, arrays.read_bytes() if arrays.is_file() else b"", where)
    stored = calibrator_fingerprint(read_calibrator(folder))
    current = {"model": (rule.model, weights_fingerprint(folder)), "calibrator": (rule.calibrator, stored)}
    for kind, (fitted_for, now) in current.items():
        if fitted_for != now:
            raise EbmcalError(
                f"The abstention rule in {where} was fitted for another {kind} than {folder} has now, so its guarantee "
                f"does not hold. Fit it again: ebmcal abstain {folder} --predictions FILE."
            )
    return rule if calibrator == "stored" or calibrator_fingerprint(calibrator) == stored else None
