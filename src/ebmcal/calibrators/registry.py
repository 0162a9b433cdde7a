"""All calibrators by the name that files and the command line use: made from a name, or read from a file."""

from pathlib import Path
from typing import Any

from ebmcal.calibrators.base import FORMAT, Calibrator
from ebmcal.calibrators.binning import HistogramBinning, ScalingBinning
from ebmcal.calibrators.energy_temperature import EnergyTemperature
from ebmcal.calibrators.ensemble_temperature import EnsembleTemperature
from ebmcal.calibrators.isotonic import Isotonic
from ebmcal.calibrators.matrix import MatrixScaling
from ebmcal.calibrators.one_vs_rest import Beta, Platt
from ebmcal.calibrators.spline import Spline
from ebmcal.calibrators.temperature import TemperatureScaling
from ebmcal.calibrators.vector import VectorScaling
from ebmcal.calibrators.venn_abers import VennAbers
from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.storage.atomic import read_json

CALIBRATORS: dict[str, type[Calibrator]] = {
    calibrator.name: calibrator
    for calibrator in (
        TemperatureScaling, ScalingBinning, Platt, VectorScaling, HistogramBinning, Isotonic, Beta,
        EnsembleTemperature, EnergyTemperature, Spline, VennAbers, MatrixScaling,
    )
}  # fmt: skip


def make_calibrator(spec: str, **settings: Any) -> Calibrator:
    """A calibrator by its name in `CALIBRATORS`, not fitted yet; settings may follow the name, as on the command line.

    >>> make_calibrator("temperature:method=ece-grid")
    TemperatureScaling(method='ece-grid')
    >>> make_calibrator("histogram-binning:n_bins=15,binning=width", pseudo_rows=0)
    HistogramBinning(n_bins=15, binning='width', pseudo_rows=0)
    """
    name, _, text = spec.partition(":")
    if name not in CALIBRATORS:
        raise unknown_name("calibrator", name, CALIBRATORS)
    return CALIBRATORS[name]().set_params(**_settings_in(text, spec), **settings)


def _settings_in(text: str, spec: str) -> dict[str, Any]:
    settings = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise EbmcalError(f"{spec!r} is not name:setting=value,setting=value: there is no value for {part!r}.")
        settings[name.strip()] = _value_of(value.strip())
    return settings


def _value_of(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def load_calibrator(path: str | Path) -> Calibrator:
    """The calibrator that `save` wrote, predicting the same to the bit.

    For example:

        calibrator.save("calibrator.json")
        load_calibrator("calibrator.json").predict_proba(logits)
    """
    return calibrator_in(read_json(path), path)


def calibrator_in(value: Any, path: str | Path) -> Calibrator:
    """The calibrator of a JSON value that was read from `path`."""
    _require_known(value, path)
    try:
        return CALIBRATORS[value["calibrator"]].from_json(value)
    except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EbmcalError(f"{path} is damaged: {why}. Fit the calibrator again (ebmcal calibrate).") from error


def _require_known(value: Any, path: str | Path) -> None:
    if not isinstance(value, dict) or "calibrator" not in value:
        raise EbmcalError(f"{path} does not hold a calibrator. Write one with save() or `ebmcal calibrate`.")
    if value["calibrator"] not in CALIBRATORS:
        raise unknown_name(f"calibrator in {path}:", str(value["calibrator"]), CALIBRATORS)
    if value.get("format") != FORMAT:
        raise EbmcalError(f"{path} has format {value.get('format')}; this version reads {FORMAT}. Fit it again.")
