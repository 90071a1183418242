"""Notes of the processes that send and receive messages, one row each in th_settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, LiteralString

from taskharbor.drivers.records import delivery_from_values, delivery_name, delivery_names
from taskharbor.drivers.sqlite.rows import moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.messages import DeliveryNote
    from taskharbor.drivers.sqlite.pool import SqlitePool

_RECORD: LiteralString = """
    INSERT INTO th_settings (name, value)
    SELECT note.key, json_object('seen_at', :now, 'problem', note.value)
      FROM json_each(:notes) AS note
     WHERE true
        ON CONFLICT (name) DO UPDATE
       SET value = excluded.value
"""

_READ: LiteralString = """
    SELECT name, json_extract(value, '$.problem'), json_extract(value, '$.seen_at')
      FROM th_settings
     WHERE name IN (SELECT value FROM json_each(:names))
"""


def record(connections: SqlitePool, notes: Sequence[DeliveryNote]) -> None:
    problems = {delivery_name(note.queue, note.role): note.problem for note in notes}
    with connections as (db, now):
        db.execute(_RECORD, {"now": now, "notes": json.dumps(problems)})


def read(connections: SqlitePool, queue: str) -> list[DeliveryNote]:
    with connections.read() as db:
        rows = db.execute(_READ, {"names": json.dumps(delivery_names(queue))}).fetchall()
    return [delivery_from_values(queue, (name, problem, moment(seen_at))) for name, problem, seen_at in rows]
