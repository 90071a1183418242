"""What people steer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, LiteralString

from taskharbor.drivers.postgres.rows import KEY_USE_VERSION, NOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.model import ApiKey, AuditEntry, Schedule
    from taskharbor.drivers.postgres.connection import PostgresPool
    from taskharbor.drivers.postgres.settings import PostgresSettings


class PostgresControl:
    def __init__(self, connections: PostgresPool, settings: PostgresSettings) -> None:
        self._connections = connections
        self._settings = settings

    _PAUSE: LiteralString = f"""
        INSERT INTO th_queues (name, paused_at, paused_by)
        SELECT name, {NOW}, %(by)s
          FROM unnest(%(names)s::text[]) AS asked (name)
         ORDER BY name
            ON CONFLICT (name) DO NOTHING
        RETURNING name
    """

    def pause(self, queues: Sequence[str], *, by: str) -> list[bool]:
        return self._each(self._PAUSE, queues, by=by)

    _RESUME: LiteralString = """
        DELETE FROM th_queues
         WHERE name = ANY (%(names)s)
        RETURNING name
    """

    def resume(self, queues: Sequence[str]) -> list[bool]:
        return self._each(self._RESUME, queues)

    _PUT_SCHEDULES: LiteralString = """
        INSERT INTO th_schedules AS known
               (name, cron, timezone, type, queue, payload, options, next_at, fired_at, paused_at,
                last_job_id)
        SELECT *
          FROM unnest(
               %(names)s::text[], %(crons)s::text[], %(timezones)s::text[], %(types)s::text[], %(queues)s::text[],
               %(payloads)s::bytea[], %(options)s::jsonb[], %(next)s::timestamptz[], %(fired)s::timestamptz[],
               %(paused)s::timestamptz[], %(last)s::uuid[]
               ) AS asked (name)
         ORDER BY name
            ON CONFLICT (name) DO UPDATE
           SET cron = excluded.cron,
               timezone = excluded.timezone,
               type = excluded.type,
               queue = excluded.queue,
               payload = excluded.payload,
               options = excluded.options,
               next_at = CASE
                   WHEN known.cron = excluded.cron AND known.timezone = excluded.timezone THEN known.next_at
                   ELSE excluded.next_at
               END
    """

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        columns: dict[str, list[Any]] = {
            "names": [each.name for each in schedules],
            "crons": [each.cron for each in schedules],
            "timezones": [each.timezone for each in schedules],
            "types": [each.type for each in schedules],
            "queues": [each.queue for each in schedules],
            "payloads": [each.payload for each in schedules],
            "options": [json.dumps(dict(each.options)) for each in schedules],
            "next": [each.next_at for each in schedules],
            "fired": [each.fired_at for each in schedules],
            "paused": [each.paused_at for each in schedules],
            "last": [each.last_job_id for each in schedules],
        }
        self._connections.fetch(self._PUT_SCHEDULES, **columns)

    _DROP_SCHEDULES: LiteralString = """
        DELETE FROM th_schedules
         WHERE name = ANY (%(names)s)
        RETURNING name
    """

    def delete_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._DROP_SCHEDULES, names)

    _PAUSE_SCHEDULES: LiteralString = f"""
        UPDATE th_schedules
           SET paused_at = {NOW}
         WHERE name = ANY (%(names)s)
           AND paused_at IS NULL
        RETURNING name
    """

    def pause_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._PAUSE_SCHEDULES, names)

    _RESUME_SCHEDULES: LiteralString = """
        UPDATE th_schedules
           SET paused_at = NULL
         WHERE name = ANY (%(names)s)
           AND paused_at IS NOT NULL
        RETURNING name
    """

    def resume_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._RESUME_SCHEDULES, names)

    def change_setting(self, name: str, value: str, *, instead_of: str) -> bool:
        return self._settings.change(name, value, instead_of=instead_of)

    # The scopes of a key are one text on the way: PostgreSQL has no arrays of arrays of different lengths.
    _PUT_KEYS: LiteralString = """
        INSERT INTO th_api_keys (id, name, digest, scopes, created_at, expires_at, revoked_at)
        SELECT id, name, digest, ARRAY(SELECT jsonb_array_elements_text(scopes)), created_at, expires_at, revoked_at
          FROM unnest(
               %(names)s::text[], %(titles)s::text[], %(digests)s::bytea[], %(scopes)s::jsonb[],
               %(created)s::timestamptz[], %(expire)s::timestamptz[], %(revoked)s::timestamptz[]
               ) AS asked (id, name, digest, scopes, created_at, expires_at, revoked_at)
         ORDER BY id
            ON CONFLICT (id) DO NOTHING
        RETURNING id
    """

    def add_keys(self, keys: Sequence[ApiKey]) -> list[bool]:
        return self._each(
            self._PUT_KEYS,
            [each.id for each in keys],
            titles=[each.name for each in keys],
            digests=[each.digest for each in keys],
            scopes=[json.dumps(each.scopes) for each in keys],
            created=[each.created_at for each in keys],
            expire=[each.expires_at for each in keys],
            revoked=[each.revoked_at for each in keys],
        )

    _REVOKE_KEYS: LiteralString = f"""
        UPDATE th_api_keys
           SET revoked_at = {NOW}
         WHERE id = ANY (%(names)s)
           AND revoked_at IS NULL
        RETURNING id
    """

    def revoke_keys(self, ids: Sequence[str]) -> list[bool]:
        return self._each(self._REVOKE_KEYS, ids)

    _NOTE_KEY_USE: LiteralString = f"""
        UPDATE th_api_keys
           SET used_at = {NOW}
         WHERE id = ANY (%(ids)s)
    """

    def note_key_use(self, ids: Sequence[str]) -> None:
        if self._connections.schema_version >= KEY_USE_VERSION:
            self._connections.fetch(self._NOTE_KEY_USE, ids=sorted(ids))

    _RECORD: LiteralString = f"""
        INSERT INTO th_audit (id, at, actor, action, target, detail)
        SELECT id, {NOW}, actor, action, target, detail
          FROM unnest(
               %(ids)s::uuid[], %(actors)s::text[], %(actions)s::text[], %(targets)s::text[], %(details)s::jsonb[]
               ) AS asked (id, actor, action, target, detail)
         ORDER BY id
            ON CONFLICT (id) DO NOTHING
    """

    def record_audit(self, entries: Sequence[AuditEntry]) -> None:
        self._connections.fetch(
            self._RECORD,
            ids=[each.id for each in entries],
            actors=[each.actor for each in entries],
            actions=[each.action for each in entries],
            targets=[each.target for each in entries],
            details=[json.dumps(dict(each.detail)) for each in entries],
        )

    def _each(self, statement: LiteralString, names: Sequence[str], **asked: Any) -> list[bool]:
        """Run *statement* for all names, and tell for which it changed anything."""
        done = {name for (name,) in self._connections.fetch(statement, names=list(names), **asked)}
        return [name in done for name in names]
