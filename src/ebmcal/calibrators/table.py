"""The table of all calibrators, by the name that files and the command line use."""

from typing import Any

from ebmcal.calibrators.beta import Beta
from ebmcal.calibrators.binning import HistogramBinning, ScalingBinning
from ebmcal.calibrators.contract import Calibrator
from ebmcal.calibrators.isotonic import Isotonic
from ebmcal.calibrators.platt import Platt
from ebmcal.calibrators.temperature import TemperatureScaling
from ebmcal.calibrators.vector import VectorScaling
from ebmcal.errors import EbmcalError, unknown_name

CALIBRATORS: dict[str, type[Calibrator]] = {
    calibrator.name: calibrator
    for calibrator in (TemperatureScaling, ScalingBinning, Platt, VectorScaling, HistogramBinning, Isotonic, Beta)
}


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
