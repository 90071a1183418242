"""Settings of the whole store, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

if TYPE_CHECKING:
    from taskharbor.drivers.sqlite.pool import SqlExecutor, SqlitePool

_READ: LiteralString = """
    SELECT value
      FROM th_settings
     WHERE name = :name
"""

_RECORD: LiteralString = """
    INSERT INTO th_settings (name, value)
    VALUES (:name, :value)
        ON CONFLICT (name) DO NOTHING
"""

_ALL: LiteralString = """
    SELECT name, value
      FROM th_settings
     ORDER BY name
"""

_CHANGE: LiteralString = """
    UPDATE th_settings
       SET value = :value
     WHERE name = :name
       AND value = :instead_of
"""


class SqliteSettings:
    """Reads and writes settings. Caches committed values, so that a process reads a setting once, not per insert."""

    def __init__(self, connections: SqlitePool) -> None:
        self._connections = connections
        self._known: dict[str, str] = {}

    def remember(self, name: str, value: str) -> str:
        """Record *value* unless the setting exists, and return the stored value. Only the first call writes."""
        known = self.committed(name)
        if known is None:
            with self._connections as (db, _):
                known = record(db, name, value)
            self._known[name] = known
        return known

    def committed(self, name: str) -> str | None:
        """Return the committed value, or None."""
        known = self._known.get(name)
        if known is None:
            with self._connections.read() as db:
                row = db.execute(_READ, {"name": name}).fetchone()
            if row is not None:
                known = self._known[name] = str(row[0])
        return known

    def all(self) -> dict[str, str]:
        with self._connections.read() as db:
            return dict(db.execute(_ALL).fetchall())

    def change(self, name: str, value: str, *, instead_of: str) -> bool:
        with self._connections as (db, _):
            params = {"name": name, "value": value, "instead_of": instead_of}
            return db.execute(_CHANGE, params).rowcount == 1


def record(db: SqlExecutor, name: str, value: str) -> str:
    """Record *value* unless the setting exists, in the transaction of *db*, and return the stored value."""
    db.execute(_RECORD, {"name": name, "value": value})
    [found] = db.execute(_READ, {"name": name}).fetchone()
    return str(found)
