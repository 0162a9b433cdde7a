"""A rule kept with a model, as `decision_rule.json` beside its calibrator, and bound to both.

`decide` fits one on held-out predictions and keeps it: what `ebmcal decide` does. A rule that was fitted for other
weights or another calibrator is refused: its promise is not for them.
"""

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ebmcal.calibrators import Calibrator, attached
from ebmcal.calibrators.base import logits_in
from ebmcal.calibrators.held_out import require_held_out
from ebmcal.calibrators.in_model import (
    held_out_rows,
    label_names,
    model_folder,
    require_same_fold,
)
from ebmcal.calibrators.weights import folded_temperature, model_fingerprint
from ebmcal.decisions.fitting import check_settings, fit_rule
from ebmcal.decisions.rule import Rule
from ebmcal.decisions.scores import energies_of
from ebmcal.decisions.unusual import TrainingFeatures
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.sealing import require_whole

RULE_FILE = "decision_rule.json"

#: A model folder and rows → the rows with their distances and the features these are of; None where there are none.
Measure = Callable[[Path, Predictions], tuple[Predictions, TrainingFeatures | None]]

#: Calibrators of one number: fitted on the rows of the rule, they leave its promise standing (tests measure it).
HARMLESS = ("temperature",)


def decide(
    model: str | PathLike[str] | None,
    on: Predictions | str | PathLike[str],
    *,
    output: str | PathLike[str] | None = None,
    max_error: float | None = None,
    confidence: float = 0.9,
    score: str = "confidence",
    coverage: float | None = None,
    sets: str = "split",
    false_alarms: float | None = None,
    unusual_by: str | None = None,
    normalize: bool = False,
    measure: Measure | None = None,
) -> Rule:
    """Fit a rule on a model's predictions for labelled rows it was not trained on, and keep it in the model's folder.

    With no model the rule is for the predictions as they are in the file. `output` writes it there as well. What is
    promised: see `ebmcal.decisions.fitting.fit_rule`. `normalize` is for probabilities that were rounded. Needs no
    torch: for `unusual_by` a distance, `measure` adds it to the rows, and has the features that it is measured from
    (see `ebmcal.deciding`, which is `ebmcal.decide`).

        decide("model", "calibration.parquet", max_error=0.05).decide(predictions).answers
    """
    check_settings(max_error, confidence, coverage, false_alarms, score, sets, unusual_by)
    promises: dict[str, Any] = {"max_error": max_error, "confidence": confidence, "score": score}
    promises |= {"coverage": coverage, "sets": sets, "false_alarms": false_alarms, "unusual_by": unusual_by}
    if model is None:
        rows = on if isinstance(on, Predictions) else Predictions.read(on, normalize=normalize)
        rule = fit_rule(rows, **promises)
    else:
        folder = model_folder(Path(model))
        require_whole(folder)
        rows = held_out_rows(on, folder, normalize=normalize)
        require_same_fold(rows, folded_temperature(folder), folder)
        if measure is not None:
            rows, promises["training"] = measure(folder, rows)
        rule = bound_rule(folder, rows, attached(folder), **promises)
        attach_rule(folder, rule)
    if output is not None:
        rule.write(output)
    return rule


def attach_rule(model_dir: str | PathLike[str], rule: Rule) -> Path:
    """Keep a rule in a model folder, in place of one that is there; returns the file.

    For example:

        attach_rule("model", rule)
    """
    path = model_folder(Path(model_dir)) / RULE_FILE
    rule.write(path)
    return path


def attached_rule(model_dir: str | PathLike[str]) -> Rule | None:
    """The rule of a model folder, or None; refuses one that was fitted for another model or calibrator.

    For example:

        attached_rule("model").decide(predictions)
    """
    path = Path(model_dir) / RULE_FILE
    if not path.exists():
        return None
    rule = Rule.read(path)
    require_bound(rule, Path(model_dir), attached(Path(model_dir)), path)
    return rule


def require_bound(rule: Rule, model_dir: Path, calibrator: Calibrator | None, where: object) -> None:
    """Refuse a rule that was fitted for another model or calibrator."""
    wanted = {"model": model_fingerprint(model_dir), "calibrator": calibrator_fingerprint(calibrator)}
    for what, now in wanted.items():
        if getattr(rule, what) != now:
            raise EbmcalError(
                f"{where} was fitted for another {what} than {model_dir} has now, so its promise does not hold. Fit "
                f"it again (ebmcal decide {model_dir} --on …), or delete the file."
            )


def calibrator_fingerprint(calibrator: Calibrator | None) -> str | None:
    """What stands for a fitted calibrator."""
    return None if calibrator is None else fingerprint(calibrator.to_json())


def bound_rule(folder: Path, rows: Predictions, calibrator: Calibrator | None, **promises: Any) -> Rule:
    """A rule fitted on a model's own predictions, put through its calibrator first; bound to both."""
    note = "The model has no calibrator: confidence is the model's own."
    if calibrator is not None:
        note = _same_rows_note(calibrator, rows)
    return replace(
        fit_rule(_calibrated(rows, calibrator), **promises),
        model=model_fingerprint(folder),
        calibrator=calibrator_fingerprint(calibrator),
        notes=(note,) if note else (),
    )


def predictions_as_decided(model: Path | None, source: str | PathLike[str], *, normalize: bool = False) -> Predictions:
    """A file of predictions as a rule of the model takes them: put through its calibrator, unless they are already."""
    if model is None:
        return Predictions.read(source, normalize=normalize)
    rows = Predictions.read(source, label_names=label_names(model), normalize=normalize)
    require_held_out(rows, model, source)  # training rows or another model's would show what the rule does not do
    return rows if rows.meta.get("calibrator") else _calibrated(rows, attached(model))


def _calibrated(rows: Predictions, calibrator: Calibrator | None) -> Predictions:
    """The same rows by the calibrator, with the energies of the logits as they were."""
    if calibrator is None:
        return rows
    energies = energies_of(rows) if rows.energies is not None or rows.logits is not None else None
    probs = calibrator.predict_proba(logits_in(rows), energies)
    return replace(rows, energies=energies).with_probs(probs, calibrator=calibrator.description)


def _same_rows_note(calibrator: Calibrator, rows: Predictions) -> str:
    """Refuse rows that taught a flexible calibrator: its confidences on them are too good to be promised."""
    share = calibrator.fitted_on_.share_among(logits_in(rows), rows.ids)
    if not share:
        return ""
    if calibrator.name in HARMLESS:
        return f"The {calibrator.name} was fitted on {share:.0%} of the same rows: one number, the promise stands."
    raise EbmcalError(
        f"{share:.0%} of these rows taught the model's {calibrator.name} calibrator, so it flatters itself on them and "
        "nothing can be promised. Cut the file in two, calibrate on one half and decide on the other; or calibrate by "
        "temperature."
    )
