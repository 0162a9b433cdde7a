"""Noise texts for noise contrastive estimation: what the energy learns to distinguish from data.

`setting` parses the `noise` setting. Sources: `splice`, `unrelated`, `masked_lm`, and a causal LM in three steps:
`causal_lm` masks texts, `lm_training` finetunes the LM, `sampler` draws from it. `generation` produces its texts, in
this process or on a cluster, and `store` keeps them. `streams` is what a training draws from, and `build` puts it all
together. Importing this package is cheap; torch is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebmcal.noise.build import Noise, build_noise, check_noise, generate_noise, online_stream
    from ebmcal.noise.generation import RayEngine
    from ebmcal.noise.setting import LM_MODES, NoiseConfig, NoisePart, format_noise, parse_noise
    from ebmcal.noise.store import NoiseStore
    from ebmcal.noise.streams import NoiseStream, NoiseText, StoredStream

_MODULES = {
    "build": ("Noise", "build_noise", "check_noise", "generate_noise", "online_stream"),
    "generation": ("RayEngine",),
    "setting": ("LM_MODES", "NoiseConfig", "NoisePart", "format_noise", "parse_noise"),
    "store": ("NoiseStore",),
    "streams": ("NoiseStream", "NoiseText", "StoredStream"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "LM_MODES",
    "Noise",
    "NoiseConfig",
    "NoisePart",
    "NoiseStore",
    "NoiseStream",
    "NoiseText",
    "RayEngine",
    "StoredStream",
    "build_noise",
    "check_noise",
    "format_noise",
    "generate_noise",
    "online_stream",
    "parse_noise",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
