"""Settings of the whole store, one row each in th_settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

from taskharbor.drivers.postgres.server import ReplyLost

if TYPE_CHECKING:
    from taskharbor.drivers.postgres.pool import PostgresPool

_READ: LiteralString = """
    SELECT value
      FROM th_settings
     WHERE name = %(name)s
"""

# DO NOTHING would return no row if another session has just inserted one.
_RECORD: LiteralString = """
    INSERT INTO th_settings AS known (name, value)
    VALUES (%(name)s, %(value)s)
        ON CONFLICT (name) DO UPDATE
       SET value = known.value
    RETURNING value
"""

_ALL: LiteralString = """
    SELECT name, value
      FROM th_settings
     ORDER BY name
"""

_CHANGE: LiteralString = """
    UPDATE th_settings
       SET value = %(value)s
     WHERE name = %(name)s
       AND value = %(instead_of)s
    RETURNING name
"""


class PostgresSettings:
    """Reads and records settings. It caches them: a setting is read once per process, not once per insert."""

    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections
        self._known: dict[str, str] = {}

    def known(self, name: str) -> str | None:
        """Return the cached value, if there is one."""
        return self._known.get(name)

    def remember(self, name: str, value: str) -> str:
        """Record *value* in a transaction of its own if there is none yet, and return the recorded value."""
        known = self._known.get(name)
        if known is not None:
            return known
        try:
            recorded = self._read_or_record(name, value)
        except ReplyLost as lost:
            self._connections.resolve(lost)
            recorded = self._read_or_record(name, value)
        self._known[name] = recorded
        return recorded

    def _read_or_record(self, name: str, value: str) -> str:
        fetch = self._connections.fetch
        [[found]] = fetch(_READ, name=name) or fetch(_RECORD, name=name, value=value)
        return str(found)

    def all(self) -> dict[str, str]:
        return dict(self._connections.fetch(_ALL))

    def change(self, name: str, value: str, *, instead_of: str) -> bool:
        return bool(self._connections.fetch(_CHANGE, name=name, value=value, instead_of=instead_of))
