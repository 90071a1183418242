"""The PostgreSQL driver."""

from taskharbor.drivers.postgres.driver import PostgresDriver

__all__ = ["PostgresDriver"]
