"""Noise texts for noise contrastive estimation: what the energy learns to distinguish from data.

`setting` parses the `noise` setting. Sources: `splice`, `unrelated`, `masked_lm`, and a causal LM in three steps:
`masking`, `causal_lm` with `lm_training`, and `sampler`. `generation` and `store` produce and keep its texts, `ray`
does so on a cluster. `mixture` turns sources into the stream that a training draws from, `difficulty` measures them,
and `build` puts it all together. Importing this package is cheap; torch is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {
    "LM_MODES": "setting",
    "Noise": "build",
    "NoiseConfig": "setting",
    "NoisePart": "setting",
    "NoiseStore": "store",
    "NoiseStream": "texts",
    "NoiseText": "texts",
    "build_noise": "build",
    "check_noise": "build",
    "format_noise": "setting",
    "generate_noise": "build",
    "noise_files": "build",
    "online_stream": "mixture",
    "parse_noise": "setting",
}

__all__ = list(_MODULES)

if TYPE_CHECKING:
    from ebmcal.noise.build import Noise as Noise
    from ebmcal.noise.build import build_noise as build_noise
    from ebmcal.noise.build import check_noise as check_noise
    from ebmcal.noise.build import generate_noise as generate_noise
    from ebmcal.noise.build import noise_files as noise_files
    from ebmcal.noise.mixture import online_stream as online_stream
    from ebmcal.noise.setting import LM_MODES as LM_MODES
    from ebmcal.noise.setting import NoiseConfig as NoiseConfig
    from ebmcal.noise.setting import NoisePart as NoisePart
    from ebmcal.noise.setting import format_noise as format_noise
    from ebmcal.noise.setting import parse_noise as parse_noise
    from ebmcal.noise.store import NoiseStore as NoiseStore
    from ebmcal.noise.texts import NoiseStream as NoiseStream
    from ebmcal.noise.texts import NoiseText as NoiseText
else:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'ebmcal.noise' has no attribute {name!r}")
        return getattr(importlib.import_module(f"ebmcal.noise.{_MODULES[name]}"), name)
