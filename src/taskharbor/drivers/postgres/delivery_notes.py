"""Notes of the processes that send and receive messages, one row each in th_settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.records import delivery_from_values, delivery_name, delivery_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.messages import DeliveryNote
    from taskharbor.drivers.postgres.pool import PostgresPool

# In the order of names: two processes that record notes of several queues must not wait for each other.
_RECORD: LiteralString = f"""
    INSERT INTO th_settings (name, value)
    SELECT note.name, jsonb_build_object('seen_at', {NOW}, 'problem', note.problem)::text
      FROM unnest(%(names)s::text[], %(problems)s::text[]) AS note (name, problem)
     ORDER BY note.name
        ON CONFLICT (name) DO UPDATE
       SET value = excluded.value
"""

_READ: LiteralString = """
    SELECT name, value::jsonb ->> 'problem', (value::jsonb ->> 'seen_at')::timestamptz
      FROM th_settings
     WHERE name = ANY (%(names)s)
"""


def record(connections: PostgresPool, notes: Sequence[DeliveryNote]) -> None:
    names = [delivery_name(note.queue, note.role) for note in notes]
    connections.fetch(_RECORD, names=names, problems=[note.problem for note in notes])


def read(connections: PostgresPool, queue: str) -> list[DeliveryNote]:
    return [delivery_from_values(queue, row) for row in connections.fetch(_READ, names=delivery_names(queue))]
