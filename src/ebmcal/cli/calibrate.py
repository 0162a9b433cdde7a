"""`ebmcal calibrate`: fit a calibrator on held-out predictions and keep it with the model.

A thin call of `ebmcal.calibrators.calibrate_folder`.
"""

from pathlib import Path
from typing import Annotated

import typer

from ebmcal.errors import EbmcalError


def calibrate(
    model_dir: Annotated[Path, typer.Argument(help="A model folder, as save_pretrained writes it.")],
    on: Annotated[Path, typer.Option("--on", help="The model's predictions for rows it was not trained on.")],
    calibrator: Annotated[
        str, typer.Option(help="Which one; settings may follow, as in scaling-binning:n_bins=15.")
    ] = "temperature",
    fold: Annotated[bool, typer.Option("--fold", help="Divide the model's last layer by the temperature.")] = False,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Take a file that says it is of training rows or another model.")
    ] = False,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide rounded probabilities by the sums of their rows.")
    ] = False,
) -> None:
    """Fit a calibrator on predictions and store it in the model folder."""
    from ebmcal.calibrators import calibrate_folder
    from ebmcal.calibrators.weights import folded_temperature
    from ebmcal.cli.notices import as_notices
    from ebmcal.decisions.in_model import RULE_FILE
    from ebmcal.report.model_card import CARD, write_card

    replaced = _kept(model_dir)
    with as_notices():
        kept = calibrate_folder(
            model_dir, on, calibrator, fold=fold, allow_mismatch=allow_mismatch, normalize=normalize
        )
    if (model_dir / CARD).exists():
        try:
            write_card(model_dir)
        except EbmcalError as error:  # the calibrator is stored by now
            typer.echo(f"Note: {CARD} of the model stays as it was. {error}", err=True)
    note = f" ({kept.calibrator.note})" if kept.calibrator.note else ""
    typer.echo(
        f"{kept.calibrator.name}{note} fitted on {kept.n_rows:,} rows of {on}: NLL {kept.nll_before:.4f} → "
        f"{kept.nll_after:.4f} on these rows. Judge it on others."
    )
    if replaced:
        typer.echo(f"Replaced the {replaced} that was there.")
    if kept.folded:
        typer.echo(
            f"Divided {' and '.join(kept.folded)} in {model_dir} by {folded_temperature(model_dir):.6g}: "
            "the model's own probabilities are calibrated now. Energies read off its logits (hidden, sharp-hidden) "
            "change with them."
        )
    else:
        typer.echo(f"Stored as {kept.path}; ebmcal applies it whenever it loads this model.")
    if (model_dir / RULE_FILE).exists():
        typer.echo(f"{RULE_FILE} was fitted before, and its promise no longer holds: fit it again with ebmcal decide.")


def _kept(model_dir: Path) -> str:
    """What the calibrator of a model folder is called, empty where there is none."""
    from ebmcal.calibrators import attached
    from ebmcal.errors import EbmcalError

    try:
        calibrator = attached(model_dir)
    except EbmcalError:
        return "damaged calibrator"
    note = f" ({calibrator.note})" if calibrator is not None and calibrator.note else ""
    return "" if calibrator is None else f"{calibrator.name}{note}"
