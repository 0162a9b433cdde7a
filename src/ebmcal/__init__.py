"""ebmcal: text classifiers whose probabilities can be trusted.

The evaluation half (`Predictions`, `evaluate`, `metrics`, `calibration`, `selective`, `reports`) works without torch;
training, loading and serving models need the extra `train`. Names and submodules are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ebmcal.threads import configure_threads

__version__ = "0.2.0"

configure_threads()  # before torch is loaded

#: Public names and the modules that define them.
_MODULES = {
    "AbstentionRule": "ebmcal.selective",
    "EbmcalError": "ebmcal.errors",
    "EnergyClassifier": "ebmcal.modeling.classifier",
    "EnergyConfig": "ebmcal.training.trainer",
    "EnergyTextClassifier": "ebmcal.sklearn",
    "EnergyTrainer": "ebmcal.training.trainer",
    "Ensemble": "ebmcal.ensemble",
    "Evaluation": "ebmcal.evaluation",
    "Model": "ebmcal.model",
    "Predictions": "ebmcal.predictions",
    "Run": "ebmcal.runs",
    "RunConfig": "ebmcal.config",
    "ScalingBinning": "ebmcal.calibration",
    "TemperatureScaling": "ebmcal.calibration",
    "cross_fit": "ebmcal.pipeline.cross_fit",
    "evaluate": "ebmcal.evaluation",
    "export_onnx": "ebmcal.export",
    "fit_abstention": "ebmcal.selective",
    "generate_noise": "ebmcal.noise",
    "load": "ebmcal.model",
    "monitor": "ebmcal.monitoring",
    "open_run": "ebmcal.runs",
    "predict_file": "ebmcal.prediction",
    "push_to_hub": "ebmcal.export",
    "run": "ebmcal.runs",
    "evaluate_robustness": "ebmcal.robustness",
    "write_report": "ebmcal.reports",
}

_SUBMODULES = ("calibration", "data", "metrics", "noise", "reports", "selective")

__all__ = [*_MODULES, *_SUBMODULES, "__version__"]

if TYPE_CHECKING:  # the same names for editors and type checkers; a test keeps the two equal
    from ebmcal import calibration as calibration
    from ebmcal import data as data
    from ebmcal import metrics as metrics
    from ebmcal import noise as noise
    from ebmcal import reports as reports
    from ebmcal import selective as selective
    from ebmcal.calibration import ScalingBinning as ScalingBinning
    from ebmcal.calibration import TemperatureScaling as TemperatureScaling
    from ebmcal.config import RunConfig as RunConfig
    from ebmcal.ensemble import Ensemble as Ensemble
    from ebmcal.errors import EbmcalError as EbmcalError
    from ebmcal.evaluation import Evaluation as Evaluation
    from ebmcal.evaluation import evaluate as evaluate
    from ebmcal.export import export_onnx as export_onnx
    from ebmcal.export import push_to_hub as push_to_hub
    from ebmcal.model import Model as Model
    from ebmcal.model import load as load
    from ebmcal.modeling.classifier import EnergyClassifier as EnergyClassifier
    from ebmcal.monitoring import monitor as monitor
    from ebmcal.noise import generate_noise as generate_noise
    from ebmcal.pipeline.cross_fit import cross_fit as cross_fit
    from ebmcal.prediction import predict_file as predict_file
    from ebmcal.predictions import Predictions as Predictions
    from ebmcal.reports import write_report as write_report
    from ebmcal.robustness import evaluate_robustness as evaluate_robustness
    from ebmcal.runs import Run as Run
    from ebmcal.runs import open_run as open_run
    from ebmcal.runs import run as run
    from ebmcal.selective import AbstentionRule as AbstentionRule
    from ebmcal.selective import fit_abstention as fit_abstention
    from ebmcal.sklearn import EnergyTextClassifier as EnergyTextClassifier
    from ebmcal.training.trainer import EnergyConfig as EnergyConfig
    from ebmcal.training.trainer import EnergyTrainer as EnergyTrainer
else:  # hidden from type checkers, which would accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            value = getattr(importlib.import_module(_MODULES[name]), name)
        elif name in _SUBMODULES:
            value = importlib.import_module(f"ebmcal.{name}")
        else:
            raise AttributeError(f"module 'ebmcal' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
