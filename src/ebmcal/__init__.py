"""ebmcal: text classifiers whose probabilities can be trusted.

The evaluation half (`metrics`, `calibrators`, `Predictions`, `plots`, `report`) needs no torch. The training half is
reached through `ebmcal.pipeline`, `ebmcal.training` and the command line. Names are loaded when they are first used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "EbmcalError": "ebmcal.errors",
    "Predictions": "ebmcal.predictions",
    "TemperatureScaling": "ebmcal.calibrators",
    "ScalingBinning": "ebmcal.calibrators",
    "EnergyClassifier": "ebmcal.models.classifier",
    "JointTrainer": "ebmcal.training.trainer",
    "RunConfig": "ebmcal.config",
    "Model": "ebmcal.model",
    "load": "ebmcal.model",
    "evaluate": "ebmcal.evaluation",
    "run": "ebmcal.pipeline.stages",
    "summarize": "ebmcal.metrics",
    "write_report": "ebmcal.report",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ebmcal' has no attribute {name!r}")
