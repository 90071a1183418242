"""The SQLite driver: durable jobs in one file, without a server."""

from taskharbor.drivers.sqlite.driver import SqliteDriver

__all__ = ["SqliteDriver"]
