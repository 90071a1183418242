"""The HTTP API: `create_app(harbor)` is an ASGI application, to be served or mounted in your own."""

from __future__ import annotations

from taskharbor.api.app import create_app, harbor_of, lifespan_of
from taskharbor.api.backend import Backend

__all__ = ["Backend", "create_app", "harbor_of", "lifespan_of"]
