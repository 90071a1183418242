"""Single jobs of many callers, stored in one statement: of threads, and of coroutines."""

from taskharbor.coalescing.flusher import AsyncGroupCommit
from taskharbor.coalescing.line import GroupCommit
from taskharbor.coalescing.turns import KeyLocks, keys_of

__all__ = ["AsyncGroupCommit", "GroupCommit", "KeyLocks", "keys_of"]
