"""All calibrators by the name that files and the command line use: created from a name, or read from JSON."""

from typing import Any

from ebmcal.calibration.base import Calibrator
from ebmcal.calibration.binning import HistogramBinning, ScalingBinning
from ebmcal.calibration.isotonic import Isotonic, VennAbers
from ebmcal.calibration.one_vs_rest import Beta, Platt
from ebmcal.calibration.scaling import MatrixScaling, VectorScaling
from ebmcal.calibration.spline import Spline
from ebmcal.calibration.temperature import EnsembleTemperature, TemperatureGrid, TemperatureScaling
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.storage import PathLike, read_json

CALIBRATORS: dict[str, type[Calibrator]] = {
    calibrator.name: calibrator
    for calibrator in (
        TemperatureScaling, ScalingBinning, Platt, VectorScaling, HistogramBinning, Isotonic, Beta,
        EnsembleTemperature, TemperatureGrid, Spline, VennAbers, MatrixScaling,
    )
}  # fmt: skip


def make_calibrator(spec: str, **settings: Any) -> Calibrator:
    """An unfitted calibrator by its name in `CALIBRATORS`; settings may follow the name, as on the command line.

    >>> make_calibrator("temperature")
    TemperatureScaling()
    >>> make_calibrator("histogram-binning:n_bins=15,binning=width", pseudo_rows=0)
    HistogramBinning(n_bins=15, binning='width', pseudo_rows=0)
    """
    name, _, text = spec.partition(":")
    if name not in CALIBRATORS:
        raise unknown_name("calibrator", name, CALIBRATORS)
    return CALIBRATORS[name]().set_params(**_parse_settings(text, spec), **settings)


def _parse_settings(text: str, spec: str) -> dict[str, Any]:
    settings = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise EbmcalError(f"{spec!r}: expected name:setting=value,setting=value, got no value for {part!r}.")
        settings[name.strip()] = _parse_value(value.strip())
    return settings


def _parse_value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def load_calibrator(path: PathLike) -> Calibrator:
    """The calibrator that `save` wrote; it predicts the same numbers to the bit.

    For example:

        calibrator.save("calibrator.json")
        load_calibrator("calibrator.json").predict_proba(logits)
    """
    return calibrator_from_json(read_json(path), path)


def calibrator_from_json(value: Any, where: object) -> Calibrator:
    """The calibrator of a JSON value; errors name `where` it was read from."""
    if not isinstance(value, dict) or "calibrator" not in value:
        raise EbmcalError(f"{where} does not contain a calibrator. Write one with save() or `ebmcal calibrate`.")
    name = str(value["calibrator"])
    if name not in CALIBRATORS:
        raise unknown_name(f"calibrator in {where}:", name, CALIBRATORS)
    try:
        return CALIBRATORS[name].from_json(value)
    except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EbmcalError(
            f"The calibrator in {where} is damaged: {reason}. Fit it again (ebmcal calibrate)."
        ) from error
