"""Calibrators: they learn from held-out logits and labels to give probabilities that can be trusted.

    TemperatureScaling().fit(logits, y).predict_proba(new_logits)

`CALIBRATORS` names them all; `base` says what each does; `in_model` keeps one in a model folder.
Log-probabilities are fine as logits (`logits_of(probs)`): every calibrator is blind to a shift of a row.
"""

from ebmcal.calibrators.base import Calibrator, FewRows, advice, logits_of
from ebmcal.calibrators.binning import HistogramBinning, ScalingBinning
from ebmcal.calibrators.fitting_rows import FittedOnJudgedRows
from ebmcal.calibrators.in_model import KeptCalibrator, attach, attached, calibrate_folder
from ebmcal.calibrators.isotonic import Isotonic
from ebmcal.calibrators.one_vs_rest import Beta, Platt
from ebmcal.calibrators.registry import CALIBRATORS, load_calibrator, make_calibrator
from ebmcal.calibrators.temperature import TemperatureScaling
from ebmcal.calibrators.vector import VectorScaling

__all__ = [
    "CALIBRATORS",
    "Beta",
    "Calibrator",
    "FewRows",
    "FittedOnJudgedRows",
    "HistogramBinning",
    "Isotonic",
    "KeptCalibrator",
    "Platt",
    "ScalingBinning",
    "TemperatureScaling",
    "VectorScaling",
    "advice",
    "attach",
    "attached",
    "calibrate_folder",
    "load_calibrator",
    "logits_of",
    "make_calibrator",
]
