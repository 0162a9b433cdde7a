"""Calibrators: they learn from held-out logits and labels to give probabilities that can be trusted.

    TemperatureScaling().fit(logits, y).predict_proba(new_logits)

`CALIBRATORS` names them all; `contract` says what each does; `storage` keeps one in a model folder.
Log-probabilities are fine as logits (`logits_of(probs)`): every calibrator is blind to a shift of a row.
"""

from ebmcal.calibrators.beta import Beta
from ebmcal.calibrators.binning import HistogramBinning, ScalingBinning
from ebmcal.calibrators.contract import Calibrator, FewRows, advice
from ebmcal.calibrators.isotonic import Isotonic
from ebmcal.calibrators.judged import FittedOnJudgedRows
from ebmcal.calibrators.logodds import logits_of
from ebmcal.calibrators.platt import Platt
from ebmcal.calibrators.storage import attach, attached, load_calibrator
from ebmcal.calibrators.table import CALIBRATORS, make_calibrator
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
    "Platt",
    "ScalingBinning",
    "TemperatureScaling",
    "VectorScaling",
    "advice",
    "attach",
    "attached",
    "load_calibrator",
    "logits_of",
    "make_calibrator",
]
