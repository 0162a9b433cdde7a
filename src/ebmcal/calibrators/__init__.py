"""Calibrators: they learn from held-out logits and labels to give probabilities that can be trusted.

    TemperatureScaling().fit(logits, y).predict_proba(new_logits)

`CALIBRATORS` names them all; `base` says what each does; `in_model` keeps one in a model folder.
Log-probabilities are fine as logits (`logits_of(probs)`): every calibrator is blind to a shift of a row.
"""

from ebmcal.calibrators.base import Calibrator, FewRows, advice, logits_of
from ebmcal.calibrators.binning import HistogramBinning, ScalingBinning
from ebmcal.calibrators.energy_temperature import EnergyTemperature
from ebmcal.calibrators.ensemble_temperature import EnsembleTemperature
from ebmcal.calibrators.fitting_rows import FittedOnJudgedRows
from ebmcal.calibrators.in_model import KeptCalibrator, attach, attached, calibrate_folder
from ebmcal.calibrators.isotonic import Isotonic
from ebmcal.calibrators.matrix import MatrixScaling
from ebmcal.calibrators.one_vs_rest import Beta, Platt
from ebmcal.calibrators.registry import CALIBRATORS, load_calibrator, make_calibrator
from ebmcal.calibrators.spline import Spline
from ebmcal.calibrators.temperature import TemperatureScaling
from ebmcal.calibrators.vector import VectorScaling
from ebmcal.calibrators.venn_abers import VennAbers

__all__ = [
    "CALIBRATORS",
    "Beta",
    "Calibrator",
    "EnergyTemperature",
    "EnsembleTemperature",
    "FewRows",
    "FittedOnJudgedRows",
    "HistogramBinning",
    "Isotonic",
    "KeptCalibrator",
    "MatrixScaling",
    "Platt",
    "ScalingBinning",
    "Spline",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "advice",
    "attach",
    "attached",
    "calibrate_folder",
    "load_calibrator",
    "logits_of",
    "make_calibrator",
]
