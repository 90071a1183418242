"""Single jobs of many callers, stored in one statement: of threads, and of coroutines."""

from taskharbor.coalescing.flusher import Flusher
from taskharbor.coalescing.line import Line
from taskharbor.coalescing.turns import KeyTurns, keys_of

__all__ = ["Flusher", "KeyTurns", "Line", "keys_of"]
