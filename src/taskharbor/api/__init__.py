"""The HTTP API: `create_app(harbor)` is an ASGI application, to be served or mounted in your own."""

from __future__ import annotations

from taskharbor.api.app import create_app, harbor_from, lifespan_for
from taskharbor.api.store import ApiBackend

__all__ = ["ApiBackend", "create_app", "harbor_from", "lifespan_for"]
