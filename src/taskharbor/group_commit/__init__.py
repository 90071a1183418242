"""Group commit: single jobs of concurrent threads and coroutines are inserted in one statement."""

from taskharbor.group_commit.aio import AsyncGroupCommit
from taskharbor.group_commit.key_locks import KeyLocks, keys_of
from taskharbor.group_commit.sync import GroupCommit, insert_or_repeat

__all__ = ["AsyncGroupCommit", "GroupCommit", "KeyLocks", "insert_or_repeat", "keys_of"]
