"""A model for use elsewhere: as an ONNX file that runs without torch (`export_onnx`), or on the Hugging Face hub.

`graph` writes the ONNX graph, `session` runs it with onnxruntime, `onnx` verifies it against PyTorch before it is kept,
`hub` pushes a model directory.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebmcal.export.hub import push_to_hub
    from ebmcal.export.onnx import Export, export_onnx

_HOME = {"Export": "onnx", "export_onnx": "onnx", "push_to_hub": "hub"}

__all__ = ["Export", "export_onnx", "push_to_hub"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
