"""The HTTP API. `create_app(harbor)` returns an ASGI application that you can serve or mount."""

from __future__ import annotations

from taskharbor.api.app import create_app, harbor_from, lifespan_for
from taskharbor.api.store import ApiBackend

__all__ = ["ApiBackend", "create_app", "harbor_from", "lifespan_for"]
