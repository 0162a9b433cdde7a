"""`ebmcal abstain`: fit a rule that answers or abstains, with guarantees, and store it with the model."""

from pathlib import Path
from typing import Annotated

import typer

from ebmcal.cli.calibrate import predict_raw
from ebmcal.cli.options import DataFile, LabelColumn, Normalize, PredictionsFile
from ebmcal.errors import EbmcalError


def abstain(
    model: Annotated[
        Path | None, typer.Argument(help="Model or run directory, which stores the rule. None: a rule for a file.")
    ] = None,
    predictions: PredictionsFile = None,
    data: DataFile = None,
    max_error: Annotated[float | None, typer.Option(help="Maximum share of wrong answers.")] = None,
    confidence: Annotated[float, typer.Option(help="Probability that the error guarantee holds.")] = 0.9,
    score: Annotated[str, typer.Option(help="Score of the threshold: confidence, energy or both.")] = "confidence",
    coverage: Annotated[
        float | None, typer.Option(help="Probability that a label set contains the true label.")
    ] = None,
    sets: Annotated[str, typer.Option(help="split, or class-conditional: coverage in each class.")] = "split",
    ood: Annotated[
        float | None,
        typer.Option(help="Share of in-distribution texts that may be flagged as OOD; 0: no OOD test. [default: 0.05]"),
    ] = None,
    ood_score: Annotated[
        str | None,
        typer.Option(
            help="knn, mahalanobis, energy or max_prob. [default: knn if training texts are known, else energy]"
        ),
    ] = None,
    answer_ood: Annotated[bool, typer.Option("--answer-ood", help="Answer OOD texts as well.")] = False,
    training: Annotated[
        Path | None, typer.Option(help="Training texts for knn and mahalanobis. [default: those of the model's run]")
    ] = None,
    normalize: Normalize = False,
    label_column: LabelColumn = "label",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the rule to this JSON file.")
    ] = None,
    evaluate: Annotated[
        Path | None, typer.Option(help="Predictions for other labelled rows, on which to evaluate the rule.")
    ] = None,
) -> None:
    """Fit an abstention rule on held-out predictions: answer or abstain, label sets, OOD texts, with guarantees."""
    from ebmcal.calibration.persistence import check_model_dir
    from ebmcal.run_dir import CARD_FILE
    from ebmcal.selective import fit_abstention, save_rule
    from ebmcal.selective.fitting import predictions_for_rule

    model = None if model is None else check_model_dir(model)
    _check_options(model, predictions, data, output)
    rows = predictions if data is None or model is None else predict_raw(model, data, label_column)
    assert rows is not None  # checked by _check_options
    rule = fit_abstention(
        rows, max_error=max_error, confidence=confidence, score=score, coverage=coverage, sets=sets, ood=ood,
        ood_score=ood_score, answer_ood=answer_ood, model=model, training=training, normalize=normalize,
    )  # fmt: skip
    lines = rule.describe()
    if evaluate is not None:
        others = predictions_for_rule(model, evaluate, rule, normalize=normalize)
        lines += [f"On {evaluate}: {line}" for line in rule.evaluate(others)]
    for line in lines:
        typer.echo(line)
    if model is not None:
        replaced = _describe_stored(model)
        save_rule(model, rule)
        typer.echo(f"{replaced}Stored in {model / CARD_FILE}.")
    if output is not None:
        rule.write(output)
        typer.echo(f"Written to {output}.")


def _describe_stored(model: Path) -> str:
    """A sentence about the rule that is about to be replaced; empty if there is none."""
    from ebmcal.selective import read_rule

    try:
        stored = read_rule(model)
    except EbmcalError:
        return "Replaced a rule that was no longer valid. "
    return "" if stored is None else f"Replaced the rule: {' '.join(stored.describe())} "


def _check_options(model: Path | None, predictions: Path | None, data: Path | None, output: Path | None) -> None:
    """Raise for a rule that would not be stored, or would replace a file that is not a rule."""
    from ebmcal.storage import check_writable, read_json

    if (predictions is None) == (data is None):
        raise EbmcalError("Pass exactly one of --predictions and --data (labelled texts, predicted first).")
    if data is not None and model is None:
        raise EbmcalError("--data needs a model: ebmcal abstain MODEL --data FILE …")
    if model is None and output is None:
        raise EbmcalError("Where should the rule be stored? Name a model directory, or a JSON file with --output.")
    if output is None:
        return
    check_writable(output, "--output")
    if output.suffix != ".json":
        raise EbmcalError(f"--output {output}: expected a .json file.")
    if output.exists():
        try:
            stored = read_json(output)
        except EbmcalError:
            stored = None
        if not isinstance(stored, dict) or "abstention" not in stored:
            raise EbmcalError(f"--output {output} exists and is not an abstention rule. Choose another name.")
