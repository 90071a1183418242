"""The SQLite driver: one file, no service, durable."""

from taskharbor.drivers.sqlite.driver import SqliteDriver

__all__ = ["SqliteDriver"]
