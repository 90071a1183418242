"""The PostgreSQL driver: the store that decides."""

from taskharbor.drivers.postgres.driver import PostgresDriver

__all__ = ["PostgresDriver"]
