"""`ebmcal decide`: fit a rule that answers or abstains, with a promise, and keep it with the model.

A thin call of `ebmcal.decide`; torch is loaded only for distances.
"""

from pathlib import Path
from typing import Annotated

import typer


def decide(
    on: Annotated[Path, typer.Option("--on", help="Predictions for labelled rows the model was not trained on.")],
    model: Annotated[
        Path | None, typer.Argument(help="A model folder, where the rule is kept. None: a rule for the file alone.")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option(help="Share of the answers that may be wrong; the others are abstained from.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Probability that the promised error is kept.")] = 0.9,
    score: Annotated[str, typer.Option(help="What the threshold is on: confidence, energy or both.")] = "confidence",
    coverage: Annotated[
        float | None, typer.Option(help="Label sets that hold the right label with this probability.")
    ] = None,
    sets: Annotated[str, typer.Option(help="split, or class-conditional: the coverage holds in each class.")] = "split",
    false_alarms: Annotated[
        float | None, typer.Option(help="Share of usual texts that may be called unusual. [default: 0.05]")
    ] = None,
    unusual_by: Annotated[
        str | None,
        typer.Option(
            help="energy; knn or mahalanobis: distance to training texts, by the model's own features. [default: knn "
            "where the training texts are known, else energy]"
        ),
    ] = None,
    training: Annotated[
        Path | None, typer.Option(help="Training texts to measure distances from; else those of the model's run.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide rounded probabilities by the sums of their rows.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the rule to this JSON file too.")] = None,
    judge: Annotated[
        Path | None, typer.Option(help="Predictions for other labelled rows: what the rule does there.")
    ] = None,
) -> None:
    """Fit a rule on held-out predictions: answer or abstain, label sets, unusual texts; each with a promise."""
    from ebmcal.cli.notices import as_notices
    from ebmcal.deciding import decide as fit
    from ebmcal.deciding import rows_to_judge, score_to_judge
    from ebmcal.decisions import RULE_FILE
    from ebmcal.decisions.in_model import predictions_as_decided

    _check_places(model, output)
    places = [place for place in (model / RULE_FILE if model else None, output) if place is not None]
    replaced = {place: _said_by(place) for place in places if place.exists()}
    with as_notices():
        if judge is not None:  # refused before anything is written
            judged_on = predictions_as_decided(model, judge, normalize=normalize)
            unusual_by = score_to_judge(judged_on, unusual_by, model, training)
        rule = fit(
            model, on, output=output, max_error=max_error, confidence=confidence, score=score, coverage=coverage,
            sets=sets, false_alarms=false_alarms, unusual_by=unusual_by, training=training, normalize=normalize,
            progress=True,
        )  # fmt: skip
        other = None if judge is None else rows_to_judge(model, judge, rule, normalize=normalize)
    for line in rule.describe():
        typer.echo(line)
    for line in rule.judge(other) if other is not None else ():
        typer.echo(f"On {judge}: {line}")
    for place, said in replaced.items():
        typer.echo(f"Replaced the rule in {place}: {said}")
    typer.echo(f"Stored as {' and '.join(map(str, places))}.")


def _said_by(place: Path) -> str:
    """What a rule that is about to be replaced promised."""
    from ebmcal.decisions import Rule
    from ebmcal.errors import EbmcalError

    try:
        return " ".join(Rule.read(place).describe())
    except EbmcalError as error:
        return f"it was of no use any more. {error}"


def _check_places(model: Path | None, output: Path | None) -> None:
    """Refuse a rule that would go nowhere, or over a file that is no rule."""
    from ebmcal.errors import EbmcalError
    from ebmcal.storage.atomic import read_json

    if model is None and output is None:
        raise EbmcalError("Where shall the rule go? Name a model folder, or a JSON file with --output.")
    if output is not None and output.suffix != ".json":
        raise EbmcalError(f"--output is {output}; a rule is a .json file.")
    if output is not None and output.exists():
        try:
            kept = read_json(output)  # a rule of another version is one too
        except (EbmcalError, OSError):
            kept = None
        if not isinstance(kept, dict) or "rule" not in kept:
            raise EbmcalError(f"{output} is there already and is not a rule. Choose another name.")
