"""Noise texts for noise contrastive estimation: what the energy learns to distinguish from data.

`build` parses the `noise` setting and builds the noise of a run. Sources: `sources` has what they share and `splice`,
the default; `unrelated`; `masked_lm`; and a causal LM: `causal_lm` masks texts and finetunes it, `sampler` draws from
it, `generation` produces its texts, in this process or on a cluster, and `store` keeps them. Importing this package is
cheap; torch is imported on first use.
"""

# ruff: noqa: I001
import importlib
from typing import TYPE_CHECKING, Any

from ebmcal.noise.build import (
    LM_MODES, Noise, NoiseConfig, NoisePart, build_noise, check_noise, format_noise, generate_noise, online_stream,
    parse_noise,
)  # fmt: skip

if TYPE_CHECKING:
    from ebmcal.noise.generation import RayEngine
    from ebmcal.noise.sources import NoiseStream
    from ebmcal.noise.store import NoiseStore, StoredStream

__all__ = [
    "LM_MODES", "Noise", "NoiseConfig", "NoisePart", "NoiseStore", "NoiseStream", "RayEngine",
    "StoredStream", "build_noise", "check_noise", "format_noise", "generate_noise", "online_stream", "parse_noise",
]  # fmt: skip

_MODULES = {
    "RayEngine": "generation", "NoiseStream": "sources", "NoiseStore": "store",
    "StoredStream": "store",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
