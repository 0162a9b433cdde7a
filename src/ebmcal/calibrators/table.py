"""The table of all calibrators, by the name that files and the command line use."""

from ebmcal.calibrators.beta import Beta
from ebmcal.calibrators.binning import HistogramBinning, ScalingBinning
from ebmcal.calibrators.contract import Calibrator
from ebmcal.calibrators.isotonic import Isotonic
from ebmcal.calibrators.platt import Platt
from ebmcal.calibrators.temperature import TemperatureScaling
from ebmcal.calibrators.vector import VectorScaling
from ebmcal.errors import unknown_name

CALIBRATORS: dict[str, type[Calibrator]] = {
    calibrator.name: calibrator
    for calibrator in (TemperatureScaling, ScalingBinning, Platt, VectorScaling, HistogramBinning, Isotonic, Beta)
}


def make_calibrator(name: str, **settings: object) -> Calibrator:
    """A calibrator by its name in `CALIBRATORS`, not fitted yet.

    >>> make_calibrator("temperature", method="ece-grid")
    TemperatureScaling(method='ece-grid')
    """
    if name not in CALIBRATORS:
        raise unknown_name("calibrator", name, CALIBRATORS)
    return CALIBRATORS[name](**settings)
