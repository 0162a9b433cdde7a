"""`ebmcal calibrate`: fit a calibrator on held-out rows; store it with a model or apply it to prediction files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebmcal.cli.options import DataFile, LabelColumn, Normalize, PredictionsFile
from ebmcal.errors import EbmcalError

if TYPE_CHECKING:
    from ebmcal.calibration import Calibrator
    from ebmcal.predictions import Predictions


def calibrate(
    model: Annotated[
        Path | None, typer.Argument(help="Model or run directory, which stores the calibrator. None: any files.")
    ] = None,
    predictions: PredictionsFile = None,
    data: DataFile = None,
    calibrator: Annotated[
        str, typer.Option(help="Calibrator; settings may follow, as in scaling-binning:n_bins=15.")
    ] = "temperature",
    fold: Annotated[bool, typer.Option("--fold", help="Divide the model's last layer by the temperature.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the calibrator to this JSON file.")] = None,
    load: Annotated[Path | None, typer.Option(help="Use the calibrator in this JSON file instead of fitting.")] = None,
    apply: Annotated[Path | None, typer.Option(help="Prediction file to calibrate; labels are not needed.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Calibrated predictions: .parquet, .csv, .jsonl or .npz.")
    ] = None,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Accept training rows or predictions of another model.")
    ] = False,
    normalize: Normalize = False,
    label_column: LabelColumn = "label",
) -> None:
    """Fit a calibrator on held-out predictions; store it with the model, or apply it to prediction files."""
    from ebmcal.calibration import apply_to_file, load_calibrator
    from ebmcal.calibration.persistence import check_model_dir

    _check_options(model, predictions, data, fold, save, load, apply, output)
    if load is not None:
        fitted = load_calibrator(load)
    elif model is None:
        fitted = _fit_files(calibrator, predictions, allow_mismatch, normalize)
    else:
        model = check_model_dir(model)
        rows = predictions if data is None else predict_raw(model, data, label_column)
        fitted = _fit_model(model, rows, calibrator, fold, allow_mismatch, normalize)
    if save is not None:
        fitted.save(save)
        typer.echo(f"Calibrator written to {save}.")
    if apply is not None and output is not None:
        done = apply_to_file(fitted, apply, output, normalize=normalize)
        typer.echo(f"{done.n_rows:,} calibrated rows of {apply} written to {output}.")


def _check_options(
    model: Path | None, predictions: Path | None, data: Path | None, fold: bool, save: Path | None, load: Path | None,
    apply: Path | None, output: Path | None,
) -> None:  # fmt: skip
    from ebmcal.storage import check_writable

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
    for option, path in (("--save", save), ("--output", output)):
        if path is not None:
            check_writable(path, option)


def _fit_files(name: str, path: Path | None, allow_mismatch: bool, normalize: bool) -> "Calibrator":
    from ebmcal.calibration import fit_on_file, make_calibrator
    from ebmcal.calibration.persistence import nll_before_and_after

    assert path is not None  # checked by _check_options
    fitted = make_calibrator(name)
    rows = fit_on_file(fitted, path, normalize=normalize, allow_mismatch=allow_mismatch)
    _print_fit(fitted, rows.n_rows, *nll_before_and_after(fitted, rows))
    return fitted


def _fit_model(
    model: Path, rows: "Predictions | Path | None", name: str, fold: bool, allow_mismatch: bool, normalize: bool
) -> "Calibrator":
    from ebmcal.calibration import calibrate_model
    from ebmcal.reports.model_card import write_model_card
    from ebmcal.run_dir import CARD_FILE, read_card

    assert rows is not None  # checked by _check_options
    before = read_card(model)
    done = calibrate_model(model, rows, name, fold=fold, allow_mismatch=allow_mismatch, normalize=normalize)
    _print_fit(done.calibrator, done.n_rows, done.nll_before, done.nll_after)
    replaced = before.get("calibrator")
    if isinstance(replaced, dict):
        typer.echo(f"Replaced the calibrator {replaced.get('calibrator')}.")
    if done.folded:
        typer.echo(
            f"Divided {' and '.join(done.folded)} by the temperature: the model's own probabilities are calibrated "
            "now, also without ebmcal."
        )
    else:
        typer.echo(f"Stored in {model / CARD_FILE}; ebmcal applies it whenever it loads this model.")
    if "abstention" in before and "abstention" not in read_card(model):
        typer.echo(f"Removed the abstention rule, which needs the old calibrator. Fit it again: ebmcal abstain {model}")
    if (model / "README.md").exists():
        try:
            write_model_card(model)
        except EbmcalError as error:  # the calibrator is already stored
            typer.echo(f"Note: README.md of the model was not updated. {error}", err=True)
    return done.calibrator


def _print_fit(fitted: "Calibrator", n_rows: int, before: float, after: float) -> None:
    note = f" ({fitted.note})" if fitted.note else ""
    typer.echo(f"{fitted.name}{note} fitted on {n_rows:,} rows: NLL {before:.4f} → {after:.4f} on these rows.")


def predict_raw(model: Path, data: Path, label_column: str) -> "Predictions":
    """Uncalibrated predictions of a model for a file of labelled texts."""
    from ebmcal.errors import require_extra

    require_extra("train", "torch", "transformers", "datasets")
    from ebmcal.model import load

    return load(model).predict(data, label_column=label_column, calibrated=False, progress=None)
