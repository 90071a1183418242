"""Settings: facts about the whole store, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.drivers.postgres.server import ReplyLost

if TYPE_CHECKING:
    from taskharbor.drivers.postgres.pool import PostgresPool

SINCE: Final = 2
"""The migration that made the table."""

_READ: LiteralString = """
    SELECT value
      FROM th_settings
     WHERE name = %(name)s
"""

# DO NOTHING would return no row if another session has just recorded it.
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
    """Keeps what it has read: a setting is read once for each process, not for each insert."""

    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections
        self._known: dict[str, str] = {}

    def known(self, name: str) -> str | None:
        """Return the value if it was read before."""
        return self._known.get(name)

    def remember(self, name: str, value: str) -> str:
        """Record *value* in a transaction of its own unless there is one, and return the recorded one."""
        known = self._known.get(name)
        if known is not None:
            return known
        if self._connections.schema_version < SINCE:
            return value
        try:
            recorded = self._recorded(name, value)
        except ReplyLost as lost:
            self._connections.resolve(lost)
            recorded = self._recorded(name, value)
        self._known[name] = recorded
        return recorded

    def _recorded(self, name: str, value: str) -> str:
        fetch = self._connections.fetch
        [[found]] = fetch(_READ, name=name) or fetch(_RECORD, name=name, value=value)
        return str(found)

    def all(self) -> dict[str, str]:
        return {} if self._connections.schema_version < SINCE else dict(self._connections.fetch(_ALL))

    def change(self, name: str, value: str, *, instead_of: str) -> bool:
        if self._connections.schema_version < SINCE:
            return False
        return bool(self._connections.fetch(_CHANGE, name=name, value=value, instead_of=instead_of))
