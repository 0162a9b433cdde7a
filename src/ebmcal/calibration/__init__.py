"""Post-hoc calibration: calibrators learn from held-out logits and labels to give calibrated probabilities.

    TemperatureScaling().fit(logits, y).predict_proba(new_logits)

`CALIBRATORS` lists them by name; `base` defines their interface, `scaling` and `curves` contain them; `persistence`
stores one in a model directory; `leakage` refuses training rows. Log-probabilities serve as logits
(`logits_of(probs)`): every calibrator is invariant to a shift of a row.
"""

# ruff: noqa: I001
from ebmcal.calibration.base import (
    CALIBRATORS, Calibrator, FewRowsWarning, load_calibrator, make_calibrator,
)  # fmt: skip
from ebmcal.calibration.scaling import (
    EnsembleTemperature, MatrixScaling, TemperatureGrid, TemperatureScaling, VectorScaling,
)  # fmt: skip
from ebmcal.calibration.curves import Beta, HistogramBinning, Isotonic, Platt, ScalingBinning, Spline, VennAbers
from ebmcal.calibration.leakage import LeakageWarning, check_held_out, logits_of
from ebmcal.calibration.persistence import (
    apply_to_file, folded_temperature, read_calibrator, read_held_out, save_calibrator,
)  # fmt: skip

__all__ = [
    "CALIBRATORS", "Beta", "Calibrator", "EnsembleTemperature", "FewRowsWarning",
    "HistogramBinning", "Isotonic", "LeakageWarning", "MatrixScaling", "Platt", "ScalingBinning", "Spline",
    "TemperatureGrid", "TemperatureScaling", "VectorScaling", "VennAbers", "apply_to_file",
    "check_held_out", "folded_temperature", "load_calibrator", "logits_of", "make_calibrator",
    "read_calibrator", "read_held_out", "save_calibrator",
]  # fmt: skip
