"""ebmcal: text classifiers whose probabilities can be trusted.

The evaluation half (`Predictions`, `evaluate`, `metrics`, `calibration`, `selective`, `reports`) works without torch;
training, loading and serving models need the extra `train`. Names and submodules are loaded on first use.
"""

import importlib
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

__all__ = [
    "AbstentionRule", "EbmcalError", "EnergyClassifier", "EnergyConfig", "EnergyTextClassifier", "EnergyTrainer",
    "Ensemble", "Evaluation", "Model", "Predictions", "Run", "RunConfig", "ScalingBinning", "TemperatureScaling",
    "__version__", "calibration", "cross_fit", "data", "evaluate", "evaluate_robustness", "export_onnx",
    "fit_abstention", "generate_noise", "load", "metrics", "monitor", "noise", "open_run", "predict_file",
    "push_to_hub", "reports", "run", "selective", "write_report",
]  # fmt: skip

#: Where the public names are defined.
_MODULES = {
    "calibration": ("ScalingBinning", "TemperatureScaling"),
    "config": ("RunConfig",),
    "errors": ("EbmcalError",),
    "evaluation": ("Evaluation", "evaluate"),
    "export": ("export_onnx", "push_to_hub"),
    "model": ("Ensemble", "Model", "load"),
    "modeling.classifier": ("EnergyClassifier",),
    "monitoring": ("monitor",),
    "noise": ("generate_noise",),
    "pipeline.cross_fit": ("cross_fit",),
    "bulk_prediction": ("predict_file",),
    "predictions": ("Predictions",),
    "reports": ("write_report",),
    "robustness": ("evaluate_robustness",),
    "runs": ("Run", "open_run", "run"),
    "selective": ("AbstentionRule", "fit_abstention"),
    "sklearn": ("EnergyTextClassifier",),
    "training.classifier_trainer": ("EnergyConfig",),
    "training.trainer": ("EnergyTrainer",),
}

if TYPE_CHECKING:  # the same names for editors and type checkers; a test keeps the two equal
    from ebmcal import calibration, data, metrics, noise, reports, selective
    from ebmcal.bulk_prediction import predict_file
    from ebmcal.calibration import ScalingBinning, TemperatureScaling
    from ebmcal.config import RunConfig
    from ebmcal.errors import EbmcalError
    from ebmcal.evaluation import Evaluation, evaluate
    from ebmcal.export import export_onnx, push_to_hub
    from ebmcal.model import Ensemble, Model, load
    from ebmcal.modeling.classifier import EnergyClassifier
    from ebmcal.monitoring import monitor
    from ebmcal.noise import generate_noise
    from ebmcal.pipeline.cross_fit import cross_fit
    from ebmcal.predictions import Predictions
    from ebmcal.reports import write_report
    from ebmcal.robustness import evaluate_robustness
    from ebmcal.runs import Run, open_run, run
    from ebmcal.selective import AbstentionRule, fit_abstention
    from ebmcal.sklearn import EnergyTextClassifier
    from ebmcal.training.classifier_trainer import EnergyConfig
    from ebmcal.training.trainer import EnergyTrainer
else:  # hidden from type checkers, which would accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'ebmcal' has no attribute {name!r}")
        module = next((module for module, names in _MODULES.items() if name in names), None)
        loaded = importlib.import_module(f"ebmcal.{module or name}")
        globals()[name] = getattr(loaded, name) if module else loaded
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)


#: Shapes for which oneDNN keeps its preparations. Batches of texts have ever new shapes: with the default of 1,024 the
#: memory of a server grows for hours, at the same speed.
ONEDNN_SHAPES = 8


def configure_threads(environ: MutableMapping[str, str] = os.environ, cgroup: Path = Path("/sys/fs/cgroup")) -> None:
    """Set waiting next to busy processes, oneDNN's cache and the threads of a container; keeps the user's settings.

    Threads spin while they wait for each other. That is fast on an idle machine (sleeping takes up to twice as long),
    but next to a process that holds a core everything takes three times as long: there they sleep.
    """
    if is_machine_busy() and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(environ):
        environ["GOMP_SPINCOUNT"] = environ["KMP_BLOCKTIME"] = "0"
    environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(ONEDNN_SHAPES))
    quota = cpu_quota(cgroup)
    if quota is not None and quota < (os.cpu_count() or 1):
        environ.setdefault("OMP_NUM_THREADS", str(max(1, round(quota))))


def is_machine_busy(loadavg: Path = Path("/proc/loadavg")) -> bool:
    """Whether others use a quarter of the cores at this moment, seen three times; False where this is unknown."""
    few = max(1, (os.cpu_count() or 1) // 4)
    try:
        return all(int(loadavg.read_text().split()[3].partition("/")[0]) > few for _ in range(3))
    except (OSError, ValueError, IndexError):
        return False


def cpu_quota(cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The number of CPUs that the container may use, from its cgroup (version 2 or 1); None without a limit."""
    try:
        if (cgroup / "cpu.max").is_file():
            limit, period = (cgroup / "cpu.max").read_text().split()
        else:
            limit, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(limit) / float(period) if float(limit) > 0 else None
    except (OSError, ValueError):  # not Linux, no limit ("max")
        return None


configure_threads()  # before torch is loaded: its libraries read these variables once
