"""`ebmcal calibrate`: fit a calibrator on held-out predictions and keep it with the model.

Stored as `calibrator.json` in the model folder, it is applied by everything in ebmcal that loads the model; folded
(`--fold`, temperature only), it is part of the weights and plain transformers gives calibrated probabilities.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from ebmcal.calibrators import Calibrator
    from ebmcal.predictions import Predictions


def calibrate(
    model_dir: Annotated[Path, typer.Argument(help="A model folder, as save_pretrained writes it.")],
    on: Annotated[Path, typer.Option("--on", help="The model's predictions for rows it was not trained on.")],
    calibrator: Annotated[
        str, typer.Option(help="Which one; settings may follow, as in scaling-binning:n_bins=15.")
    ] = "temperature",
    fold: Annotated[bool, typer.Option("--fold", help="Divide the model's last layer by the temperature.")] = False,
) -> None:
    """Fit a calibrator on predictions and store it in the model folder."""
    from ebmcal.calibrators import make_calibrator
    from ebmcal.calibrators.storage import model_folder
    from ebmcal.cli.notices import as_notices

    unfitted = make_calibrator(calibrator)
    if fold and unfitted.name != "temperature":
        raise EbmcalError(f"--fold divides the last layer by one number: it needs temperature, not {unfitted.name}.")
    rows = _fitting_rows(on, model_folder(model_dir))
    with as_notices():
        fitted = unfitted.fit_predictions(rows)
        done = _fold_into(model_dir, fitted) if fold else _store_in(model_dir, fitted)
    typer.echo(_fit_line(fitted, rows, on))
    typer.echo(done)


def _fit_line(fitted: "Calibrator", rows: "Predictions", on: Path) -> str:
    from ebmcal.calibrators.contract import logits_in
    from ebmcal.metrics import nll

    before = nll(rows.labels, probs=rows.probabilities())
    after = nll(rows.labels, probs=fitted.predict_proba(logits_in(rows)))
    note = f" ({fitted.note})" if fitted.note else ""
    return (
        f"{fitted.name}{note} fitted on {rows.n_rows:,} rows of {on}: NLL {before:.4f} → {after:.4f} on these rows. "
        "Judge it on others."
    )


def _store_in(model_dir: Path, fitted: "Calibrator") -> str:
    from ebmcal.calibrators import attach
    from ebmcal.calibrators.folding import folded_temperature

    earlier = folded_temperature(model_dir)
    if earlier is not None:
        warnings.warn(
            f"A temperature of {earlier:.4g} is folded into {model_dir}: the predictions have to be made after that.",
            stacklevel=2,
        )
    return f"Stored as {attach(model_dir, fitted)}; ebmcal applies it whenever it loads this model."


def _fold_into(model_dir: Path, fitted: "Calibrator") -> str:
    from ebmcal.calibrators.storage import attach_folded

    names = attach_folded(model_dir, fitted)
    return (
        f"Divided {' and '.join(names)} in {model_dir} by {fitted.temperature_:.6g}: the model's own probabilities are "
        "calibrated now. Energies read off its logits (hidden, sharp-hidden) change with them."
    )


def _fitting_rows(on: Path, model_dir: Path) -> "Predictions":
    """The labelled rows of a file, with the model's classes in the model's order; not calibrated already."""
    from ebmcal.evaluation import about
    from ebmcal.predictions import Predictions

    rows, names = Predictions.read(on), _label_names(model_dir)
    if rows.meta.get("calibrator"):
        raise EbmcalError(
            f"{on} is calibrated already; a calibrator has to see the model's own logits. Predict again without one."
        )
    if names is not None:
        if len(names) != rows.n_classes:
            raise EbmcalError(
                f"{on} has {rows.n_classes} classes ({', '.join(rows.label_names)}), but the model in {model_dir} has "
                f"{len(names)} ({', '.join(names)}). Give predictions of this model."
            )
        rows = Predictions.read(on, label_names=names)
    with about(on):
        return rows.labelled()


def _label_names(model_dir: Path) -> list[str] | None:
    """The model's class names in order, or None where it has only transformers' stand-ins LABEL_0, LABEL_1, …"""
    from ebmcal.storage.atomic import read_json

    config = read_json(model_dir / "config.json")
    try:
        names = config.get("id2label") or {}
        names = [str(names[key]) for key in sorted(names, key=int)]
    except (AttributeError, TypeError, ValueError) as error:
        raise EbmcalError(f"{model_dir / 'config.json'} is not the config of a classifier: {error}.") from error
    return None if not names or names == [f"LABEL_{i}" for i in range(len(names))] else names
