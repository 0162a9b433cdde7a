"""Post-hoc calibration: calibrators learn from held-out logits and labels to give calibrated probabilities.

    TemperatureScaling().fit(logits, y).predict_proba(new_logits)

`CALIBRATORS` lists them by name; `base` defines their interface; `persistence` stores one in a model directory;
`leakage` refuses training rows. Log-probabilities serve as logits (`logits_of(probs)`): every calibrator is invariant
to a shift of a row.
"""

from ebmcal.calibration.base import Calibrator, FewRowsWarning, rows_advice
from ebmcal.calibration.binning import HistogramBinning, ScalingBinning
from ebmcal.calibration.files import apply_to_file, fit_on_file
from ebmcal.calibration.folding import folded_temperature
from ebmcal.calibration.isotonic import Isotonic, VennAbers
from ebmcal.calibration.layout import logits_of
from ebmcal.calibration.leakage import LeakageWarning, check_held_out
from ebmcal.calibration.one_vs_rest import Beta, Platt
from ebmcal.calibration.persistence import CalibrationResult, calibrate_model, read_calibrator, save_calibrator
from ebmcal.calibration.registry import CALIBRATORS, load_calibrator, make_calibrator
from ebmcal.calibration.scaling import MatrixScaling, VectorScaling
from ebmcal.calibration.spline import Spline
from ebmcal.calibration.temperature import EnsembleTemperature, TemperatureGrid, TemperatureScaling

__all__ = [
    "CALIBRATORS",
    "Beta",
    "CalibrationResult",
    "Calibrator",
    "EnsembleTemperature",
    "FewRowsWarning",
    "HistogramBinning",
    "Isotonic",
    "LeakageWarning",
    "MatrixScaling",
    "Platt",
    "ScalingBinning",
    "Spline",
    "TemperatureGrid",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "apply_to_file",
    "calibrate_model",
    "check_held_out",
    "fit_on_file",
    "folded_temperature",
    "load_calibrator",
    "logits_of",
    "make_calibrator",
    "read_calibrator",
    "rows_advice",
    "save_calibrator",
]
