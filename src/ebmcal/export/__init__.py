"""A model for use elsewhere: as an ONNX file that runs without torch (`onnx`), or on the Hugging Face hub (`hub`)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebmcal.export.hub import push_to_hub
    from ebmcal.export.onnx import Export, export_onnx

__all__ = ["Export", "export_onnx", "push_to_hub"]


def __getattr__(name: str) -> Any:  # torch is imported on first use
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{'hub' if name == 'push_to_hub' else 'onnx'}"), name)
