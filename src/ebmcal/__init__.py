"""ebmcal: text classifiers whose probabilities can be trusted.

The evaluation half (`Predictions`, `metrics`, `calibrators`, `plots`, `report`) needs no torch; `run`, `load` and what
trains need the extra `train`. Names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: The public names and where they are.
_HOMES = {
    "EbmcalError": "ebmcal.errors",
    "EnergyClassifier": "ebmcal.models.classifier",
    "EnergyTextClassifier": "ebmcal.estimator",
    "EnergyTrainer": "ebmcal.training.energy_trainer",
    "Ensemble": "ebmcal.ensemble",
    "JointTrainer": "ebmcal.training.trainer",
    "Model": "ebmcal.model",
    "Predictions": "ebmcal.predictions",
    "Run": "ebmcal.runs",
    "Rule": "ebmcal.decisions",
    "RunConfig": "ebmcal.config",
    "ScalingBinning": "ebmcal.calibrators",
    "TemperatureScaling": "ebmcal.calibrators",
    "decide": "ebmcal.deciding",
    "evaluate": "ebmcal.evaluation",
    "export": "ebmcal.sharing.export",
    "load": "ebmcal.model",
    "open_run": "ebmcal.runs",
    "predict_file": "ebmcal.streaming",
    "push": "ebmcal.sharing.push",
    "run": "ebmcal.runs",
    "stress_test": "ebmcal.stress.testing",
    "summarize": "ebmcal.metrics",
    "train": "ebmcal.runs",
    "watch": "ebmcal.watching.watch",
    "write_noise": "ebmcal.noise.writing",
    "write_report": "ebmcal.report",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:  # the same names, where editors and type checkers look; a test keeps the two equal
    from ebmcal.calibrators import ScalingBinning as ScalingBinning
    from ebmcal.calibrators import TemperatureScaling as TemperatureScaling
    from ebmcal.config import RunConfig as RunConfig
    from ebmcal.deciding import decide as decide
    from ebmcal.decisions import Rule as Rule
    from ebmcal.ensemble import Ensemble as Ensemble
    from ebmcal.errors import EbmcalError as EbmcalError
    from ebmcal.estimator import EnergyTextClassifier as EnergyTextClassifier
    from ebmcal.evaluation import evaluate as evaluate
    from ebmcal.metrics import summarize as summarize
    from ebmcal.model import Model as Model
    from ebmcal.model import load as load
    from ebmcal.models.classifier import EnergyClassifier as EnergyClassifier
    from ebmcal.noise.writing import write_noise as write_noise
    from ebmcal.predictions import Predictions as Predictions
    from ebmcal.report import write_report as write_report
    from ebmcal.runs import Run as Run
    from ebmcal.runs import open_run as open_run
    from ebmcal.runs import run as run
    from ebmcal.runs import train as train
    from ebmcal.sharing.export import export as export
    from ebmcal.sharing.push import push as push
    from ebmcal.streaming import predict_file as predict_file
    from ebmcal.stress.testing import stress_test as stress_test
    from ebmcal.training.energy_trainer import EnergyTrainer as EnergyTrainer
    from ebmcal.training.trainer import JointTrainer as JointTrainer
    from ebmcal.watching.watch import watch as watch
else:  # hidden from them: to a type checker it would make every misspelt name a right one

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'ebmcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
