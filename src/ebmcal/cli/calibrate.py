"""`ebmcal calibrate`: fit a calibrator on held-out rows. `ebmcal abstain`: fit a rule that answers or abstains.

Both are stored with a model; without one, they are written to files for predictions of any classifier.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ebmcal.cli import options as shared
from ebmcal.cli.options import argument, check_outputs, flag, option
from ebmcal.errors import EbmcalError, plural, require_extra

if TYPE_CHECKING:
    from ebmcal.calibration import Calibrator
    from ebmcal.predictions import Predictions


def calibrate(
    model: Path | None = argument("Model or run directory, which stores the calibrator. None: any files.", None),
    predictions: Path | None = shared.PREDICTIONS,
    data: Path | None = shared.DATA,
    calibrator: str = option("Calibrator; settings may follow, as in scaling-binning:n_bins=15.", "temperature"),
    fold: bool = flag("Divide the model's last layer by the temperature.", "--fold"),
    save: Path | None = option("Write the calibrator to this JSON file."),
    load: Path | None = option("Use the calibrator in this JSON file instead of fitting."),
    apply: Path | None = option("Prediction file to calibrate; labels are not needed."),
    output: Path | None = option("Calibrated predictions: .parquet, .csv or .jsonl.", None, "--output", "-o"),
    allow_mismatch: bool = flag("Accept training rows or predictions of another model.", "--allow-mismatch"),
    normalize: bool = shared.NORMALIZE,
    label_column: str | None = shared.LABEL_COLUMN,
    overwrite: bool = shared.OVERWRITE,
) -> None:
    """Fit a calibrator on held-out predictions; store it with the model, or apply it to prediction files."""
    from ebmcal.calibration import apply_to_file, load_calibrator, make_calibrator, read_held_out
    from ebmcal.calibration.persistence import check_model_dir

    if sum(option is not None for option in (predictions, data, load)) != 1:
        raise EbmcalError("Pass exactly one of --predictions (to fit on), --data (texts to predict first) and --load.")
    if model is None and (data is not None or fold):
        raise EbmcalError("--data and --fold need a model: ebmcal calibrate MODEL …")
    if model is not None and load is not None:
        raise EbmcalError("--load is for prediction files; a model stores its own calibrator. Leave out one of them.")
    if (apply is None) != (output is None):
        raise EbmcalError("--apply (the file to calibrate) and --output (the result) go together.")
    if model is None and apply is None and save is None:
        raise EbmcalError("Nothing to write: name a model directory, or pass --apply and --output, or --save.")
    check_outputs({"--save": save, "--output": output}, [predictions, data, load, apply], overwrite=overwrite)
    if load is not None:
        fitted = load_calibrator(load)
    else:
        unfitted, model = make_calibrator(calibrator), None if model is None else check_model_dir(model)
        source = _rows(model, _split_file(model, predictions), data, label_column)
        rows = read_held_out(source, model, allow_mismatch=allow_mismatch, normalize=normalize)
        fitted = unfitted.fit_predictions(rows)
        _print_fit(fitted, rows, model)
        if model is not None:
            _store(model, fitted, fold)
    if save is not None:
        fitted.save(save)
        typer.echo(f"Calibrator written to {save}.")
    if apply is not None and output is not None:
        done = apply_to_file(fitted, apply, output, normalize=normalize)
        typer.echo(f"{done.n_rows:,} calibrated rows of {apply} written to {output}.")


def _rows(
    model: Path | None, predictions: Path | None, data: Path | None, label_column: str | None
) -> "Predictions | Path":
    """The predictions to fit on; those of labelled texts are computed, uncalibrated."""
    if predictions is not None:
        return predictions
    require_extra("train", "torch", "transformers", "datasets")
    from ebmcal.model import load

    assert model is not None  # --data needs a model
    loaded = load(model)
    return loaded.predict(data, label_column=label_column or loaded.label_column, calibrated=False, progress=None)


def _split_file(model: Path | None, given: Path | None) -> Path | None:
    """The file of predictions; the name of a split (test, calibration) means those of the model's own run."""
    if model is None or given is None or given.exists() or given.name != str(given):
        return given
    found = model.parent / f"{given}.parquet"
    if given.name == "calibration" and not found.is_file():
        raise EbmcalError(
            f"{model} has no calibration split: its run was cross-fitted, or it belongs to no run. Pass a file of "
            "predictions or --data FILE, or train with --calibration holdout."
        )
    return found if found.is_file() else given


def _store(model: Path, fitted: "Calibrator", fold: bool) -> None:
    """Store a calibrator with its model and print what changed."""
    from ebmcal.calibration import save_calibrator
    from ebmcal.reports.model_card import write_model_card
    from ebmcal.run_dir import CARD_FILE, read_card

    before = read_card(model)
    folded = save_calibrator(model, fitted, fold=fold)
    if isinstance(before.get("calibrator"), dict):
        typer.echo(f"Replaced the calibrator {before['calibrator'].get('calibrator')}.")
    if folded:
        typer.echo(
            f"Divided {' and '.join(folded)} by the temperature: the model's own probabilities are calibrated "
            "now, also without ebmcal."
        )
    else:
        typer.echo(f"Stored in {model / CARD_FILE}; ebmcal applies it whenever it loads this model.")
    if "abstention" in before and "abstention" not in read_card(model):
        options = f"--data HELD_OUT{_guarantees(before['abstention'])}"
        again = f"ebmcal abstain {model} {options}"
        typer.echo(f"Removed the abstention rule, which needs the old calibrator. Fit it again: {again}")
    if (model / "README.md").exists():
        try:
            write_model_card(model)
        except EbmcalError as error:  # the calibrator is already stored
            typer.echo(f"Note: README.md of the model was not updated. {error}", err=True)


def _guarantees(rule: Any) -> str:
    """The options of `ebmcal abstain`, each after a space, that ask for the guarantees of a stored rule (JSON)."""
    found = {"--max-error": ("guarantee", "max_error"), "--coverage": ("sets", "coverage")}
    return "".join(f" {name} {rule[part][key]:g}" for name, (part, key) in found.items() if rule.get(part))


def _print_fit(fitted: "Calibrator", rows: "Predictions", model: Path | None) -> None:
    """The NLL without a calibrator and with the fitted one, and with the one that the model has so far."""
    from ebmcal.calibration import read_calibrator
    from ebmcal.calibration.leakage import logits_in
    from ebmcal.metrics import nll

    before, after = nll(rows.labels, probs=rows.probs), nll(rows.labels, probs=fitted.predict_proba(logits_in(rows)))
    note, compared = f" ({fitted.note})" if fitted.note else "", ""
    with contextlib.suppress(EbmcalError):  # a damaged calibrator, or of other classes, is replaced
        stored = None if model is None else read_calibrator(model)
        if stored is not None:
            earlier = nll(rows.labels, probs=stored.predict_proba(logits_in(rows)))
            compared = f" (no calibrator → this one; {earlier:.4f} with the earlier {stored.name})"
    typer.echo(
        f"{fitted.name}{note} fitted on {rows.n_rows:,} rows: NLL {before:.4f} → {after:.4f}{compared} on these rows."
    )
    n_zero = int((rows.probs[range(rows.n_rows), rows.labels] == 0).sum())
    if n_zero and rows.logits is None:
        typer.echo(
            f"Warning: {plural(n_zero, 'row')} with probability 0 for the true label, which distorts the calibrator. "
            "Were the probabilities rounded? Write more decimals.",
            err=True,
        )


def abstain(
    model: Path | None = argument("Model or run directory, which stores the rule. None: a rule for a file.", None),
    predictions: Path | None = shared.PREDICTIONS,
    data: Path | None = shared.DATA,
    max_error: float | None = option("Maximum share of wrong answers."),
    confidence: float = option("Probability that the error guarantee holds.", 0.9),
    score: str = option("Score of the threshold: confidence or energy.", "confidence"),
    coverage: float | None = option("Probability that a label set contains the true label."),
    sets: str = option("split, or class-conditional: coverage in each class.", "split"),
    ood: float | None = option(
        "Share of in-distribution texts that may be flagged as OOD; 0: no OOD test. [default: 0.05]"
    ),
    ood_score: str | None = option(
        "combined (knn and energy), knn, mahalanobis, energy or max_prob. [default: combined if training texts are "
        "known, else energy]"
    ),
    answer_ood: bool = flag("Answer OOD texts as well.", "--answer-ood"),
    training: Path | None = option("Training texts for distances. [default: those of the model's run]"),
    normalize: bool = shared.NORMALIZE,
    label_column: str | None = shared.LABEL_COLUMN,
    output: Path | None = option("JSON file of the rule; with --apply, the decisions.", None, "--output", "-o"),
    load: Path | None = option("Use the rule in this JSON file instead of fitting; goes with --apply."),
    apply: Path | None = option("Prediction file to decide on with the rule of --load; labels are not needed."),
    evaluate: Path | None = option("Predictions for other labelled rows to evaluate the rule on; test: its run's."),
    overwrite: bool = shared.OVERWRITE,
) -> None:
    """Fit an abstention rule on held-out predictions: answer or abstain, label sets, OOD texts, with guarantees."""
    from ebmcal.calibration.persistence import check_model_dir
    from ebmcal.run_dir import CARD_FILE
    from ebmcal.selective import fit_abstention, predictions_for_rule, save_rule

    if load is not None or apply is not None:
        _decide(model or predictions or data, load, apply, output, normalize, overwrite)
        return
    if (predictions is None) == (data is None):
        raise EbmcalError("Pass exactly one of --predictions and --data (labelled texts, predicted first).")
    if data is not None and model is None:
        raise EbmcalError("--data needs a model: ebmcal abstain MODEL --data FILE …")
    if model is None and output is None:
        raise EbmcalError("Where should the rule be stored? Name a model directory, or a JSON file with --output.")
    model = None if model is None else check_model_dir(model)
    predictions, evaluate = _split_file(model, predictions), _split_file(model, evaluate)
    check_outputs({"--output": output}, [predictions, data, training, evaluate], overwrite=overwrite)
    if output is not None and output.suffix != ".json":
        raise EbmcalError(f"--output {output}: expected a .json file.")
    replaced = "" if model is None else _check_replaced(model, max_error, coverage, overwrite)
    rule = fit_abstention(
        _rows(model, predictions, data, label_column), max_error=max_error, confidence=confidence, score=score,
        coverage=coverage, sets=sets, ood=ood, ood_score=ood_score, answer_ood=answer_ood, model=model,
        training=training, normalize=normalize,
    )  # fmt: skip
    lines = rule.describe()
    if evaluate is not None:
        others = predictions_for_rule(model, evaluate, rule, normalize=normalize)
        lines += [f"On {evaluate}: {line}" for line in rule.evaluate(others)]
    typer.echo("\n".join(lines))
    if model is not None:
        save_rule(model, rule)
        typer.echo(f"{replaced}Stored in {model / CARD_FILE}.")
    if output is not None:
        rule.write(output)
        typer.echo(f"Written to {output}.")


def _decide(
    fit: Path | None, load: Path | None, apply: Path | None, output: Path | None, normalize: bool, overwrite: bool
) -> None:
    """Apply a rule of a JSON file to predictions of the same classifier."""
    from ebmcal.selective import AbstentionRule

    if load is None or apply is None or output is None:
        raise EbmcalError(
            "--load (the rule), --apply (the predictions) and --output (the decisions) go together. To fit a rule "
            "first: ebmcal abstain --predictions LABELLED --max-error 0.05 --output rule.json"
        )
    if fit is not None:
        raise EbmcalError(
            f"--load uses a fitted rule; leave out {fit}. For texts: ebmcal predict MODEL FILE --rule {load}"
        )
    check_outputs({"--output": output}, [load, apply], overwrite=overwrite)
    answered = AbstentionRule.read(load).apply_to_file(apply, output, normalize=normalize).answered
    typer.echo(f"Answers {answered.sum():,} of {len(answered):,} rows of {apply}. Decisions written to {output}.")


def _check_replaced(model: Path, max_error: float | None, coverage: float | None, overwrite: bool) -> str:
    """A sentence about the rule that is about to be replaced; an error if the new one guarantees less."""
    from ebmcal.selective import read_rule

    try:
        stored = read_rule(model)
    except EbmcalError:
        return "Replaced a rule that was no longer valid. "
    if stored is None:
        return ""
    held = {}  # option → what the earlier rule guarantees
    if stored.guarantee is not None:
        held["--max-error"] = f"an error of at most {stored.guarantee.max_error:.1%}"
    if stored.sets is not None:
        held["--coverage"] = f"label sets with a coverage of {stored.sets.coverage:g}"
    given = {"--max-error": max_error, "--coverage": coverage}
    lost = [name for name in held if given[name] is None]
    if lost and not overwrite:
        raise EbmcalError(
            f"{model} has a rule that guarantees {' and '.join(held[name] for name in lost)}; the new one would not. "
            f"Pass {' and '.join(lost)}, or --overwrite to replace it."
        )
    guaranteed = f", which guaranteed {' and '.join(held.values())}" if held else ""
    return f"Replaced the earlier rule{guaranteed}. "
