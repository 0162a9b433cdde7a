"""The training methods by name. A method computes the terms of the training loss.

`joint.py` is the paper: cross-entropy plus noise contrastive estimation. Every other file is a control that the core
does not know about. This table needs no torch; `load_method` imports the code. To add a method, write a subclass of
`joint.Method` and add an entry here.
"""

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ebmcal.errors import unknown_name

if TYPE_CHECKING:
    from ebmcal.methods.joint import Method


@dataclass(frozen=True)
class MethodInfo:
    """What is known about a method without importing it."""

    title: str
    location: str  # module:class below ebmcal.methods
    energy: str = "hidden"  # the energy that predictions report; without noise it is not trained
    uses_noise: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # constructor arguments
    pooling: str | None = None  # the pooling it needs; None: as the encoder was trained


METHODS: dict[str, MethodInfo] = {
    "baseline": MethodInfo("Baseline", "joint:Method"),
    "scalar": MethodInfo("EBM scalar", "joint:Joint", "scalar", uses_noise=True),
    "hidden": MethodInfo("EBM hidden", "joint:Joint", "hidden", uses_noise=True),
    "sharp-hidden": MethodInfo("EBM sharp-hidden", "joint:Joint", "sharp-hidden", uses_noise=True),
    "label-smoothing": MethodInfo("Label smoothing", "joint:Method", options={"smoothed": True}),
    "hidden-smoothing": MethodInfo(
        "EBM hidden, label smoothing", "joint:Joint", uses_noise=True, options={"smoothed": True}
    ),
    "noise-entropy": MethodInfo("Uniform labels on noise", "noise_entropy:NoiseEntropy", uses_noise=True),
    "hidden-entropy": MethodInfo(
        "EBM hidden, uniform labels on noise", "noise_entropy:NoiseEntropy", uses_noise=True, options={"joint": True}
    ),
    "poscal": MethodInfo("PosCal", "poscal:PosCal"),
    "poscal-kl": MethodInfo("PosCal (KL)", "poscal:PosCal", options={"divergence": "kl"}),
    "focal": MethodInfo("Focal loss", "focal:Focal"),
    "mixup": MethodInfo("Mixup", "mixup:Mixup"),
    "manifold": MethodInfo("On/off-manifold mixup", "manifold:Manifold"),
    "masked-lm": MethodInfo("Auxiliary masked LM", "masked_lm:AuxiliaryMaskedLm"),
    "l2-sp": MethodInfo("L2-SP", "l2_sp:L2SP"),
    "sngp": MethodInfo("SNGP", "sngp:SNGP", "sngp", pooling="first"),
    "laplace": MethodInfo("Last-layer Laplace", "laplace:Laplace", "laplace"),
}


def find_method(name: str) -> MethodInfo:
    """The entry of a method; unknown names raise an error with close matches.

    >>> find_method("hidden").uses_noise
    True
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]


def load_method(name: str, args: Any) -> "Method":
    """The method with the settings of an `EnergyConfig`."""
    info = find_method(name)
    module, _, class_name = info.location.partition(":")
    method: Method = getattr(importlib.import_module(f"ebmcal.methods.{module}"), class_name)(args, **info.options)
    return method


def register_energy(energy: str) -> None:
    """Import the method that defines an energy with its own weights, so that its checkpoints can be loaded."""
    for info in METHODS.values():
        if info.energy == energy and energy not in ("hidden", "sharp-hidden", "scalar"):
            importlib.import_module(f"ebmcal.methods.{info.location.partition(':')[0]}")
