"""Single jobs of many callers, stored in one statement: of threads, and of coroutines."""

from taskharbor.coalescing.flusher import Flusher
from taskharbor.coalescing.line import Line

__all__ = ["Flusher", "Line"]
