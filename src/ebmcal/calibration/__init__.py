"""Post-hoc calibration: calibrators learn from held-out logits and labels to give calibrated probabilities.

    TemperatureScaling().fit(logits, y).predict_proba(new_logits)

`CALIBRATORS` lists them by name; `base` defines their interface; `persistence` stores one in a model directory;
`leakage` refuses training rows. Log-probabilities serve as logits (`logits_of(probs)`): every calibrator is invariant
to a shift of a row.
"""

from ebmcal.calibration.base import Calibrator, FewRowsWarning, rows_advice
from ebmcal.calibration.curves import HistogramBinning, Isotonic, ScalingBinning, Spline, VennAbers
from ebmcal.calibration.layout import logits_of
from ebmcal.calibration.leakage import LeakageWarning, check_held_out
from ebmcal.calibration.persistence import (
    CalibrationResult,
    calibrate_model,
    folded_temperature,
    read_calibrator,
    save_calibrator,
)
from ebmcal.calibration.registry import CALIBRATORS, apply_to_file, fit_on_file, load_calibrator, make_calibrator
from ebmcal.calibration.scaling import Beta, MatrixScaling, Platt, VectorScaling
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
