"""A classifier behind HTTP: `ebmcal serve`, and the app for a server of one's own.

A request goes from `app` (HTTP, limits, key) into the queue of `batching` (one worker thread for each model), where
`answering` computes packed batches; `counters` are for Prometheus, `running` is the process around it.
"""

from typing import TYPE_CHECKING, Any

from ebmcal.serve.limits import Limits

if TYPE_CHECKING:
    from ebmcal.serve.app import create_app as create_app
    from ebmcal.serve.running import serve as serve
else:

    def __getattr__(name: str) -> Any:  # what needs torch and FastAPI is loaded when it is asked for
        import importlib

        homes = {"create_app": "ebmcal.serve.app", "serve": "ebmcal.serve.running"}
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module 'ebmcal.serve' has no attribute {name!r}")


__all__ = ["Limits", "create_app", "serve"]
