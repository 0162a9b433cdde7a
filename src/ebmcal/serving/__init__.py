"""A model behind HTTP: `ebmcal serve`, and the ASGI app for your own server.

A request passes `connections` (limits below HTTP), `http` (API key, body, timeout), `schema` (parsing) and `service`,
which queues it in a `batcher`; `engine` computes the answers. `server` is the process around it, `ui` the web page.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ebmcal.serving.limits import Limits

if TYPE_CHECKING:
    from ebmcal.serving.app import create_app as create_app
    from ebmcal.serving.server import serve as serve
else:

    def __getattr__(name: str) -> Any:  # torch and FastAPI are imported on first use
        modules = {"create_app": "ebmcal.serving.app", "serve": "ebmcal.serving.server"}
        if name not in modules:
            raise AttributeError(f"module 'ebmcal.serving' has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)


__all__ = ["Limits", "create_app", "serve"]
