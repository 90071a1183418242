"""Operator actions on queues, schedules, settings, API keys and the audit log."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from taskharbor.drivers.memory.tables import QueuePause

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.model import ApiKey, AuditEntry, Schedule
    from taskharbor.drivers.memory.tables import Tables


class MemoryControl:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def pause(self, queues: Sequence[str], *, by: str, reason: str = "", lasts: timedelta | None = None) -> list[bool]:
        with self._tables.statement() as now:
            pause = QueuePause(now, by, reason, None if lasts is None else now + lasts)
            return [self._tables.rows.paused.setdefault(queue, pause) is pause for queue in queues]

    def resume(self, queues: Sequence[str]) -> list[bool]:
        with self._tables.statement():
            return [self._tables.rows.paused.pop(queue, None) is not None for queue in queues]

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        with self._tables.statement():
            stored = self._tables.rows.schedules
            for new in schedules:
                stored[new.name] = _merged(stored.get(new.name), new)

    def delete_schedules(self, names: Sequence[str]) -> list[bool]:
        with self._tables.statement():
            return [self._delete_schedule(name) for name in names]

    def _delete_schedule(self, name: str) -> bool:
        self._tables.rows.runs.pop(name, None)
        return self._tables.rows.schedules.pop(name, None) is not None

    def pause_schedules(self, names: Sequence[str]) -> list[bool]:
        with self._tables.statement() as now:
            return [self._set_paused(name, now) for name in names]

    def resume_schedules(self, names: Sequence[str]) -> list[bool]:
        with self._tables.statement():
            return [self._set_paused(name, None) for name in names]

    def _set_paused(self, name: str, paused_at: datetime | None) -> bool:
        schedule = self._tables.rows.schedules.get(name)
        if schedule is None or (schedule.paused_at is None) == (paused_at is None):
            return False
        self._tables.rows.schedules[name] = replace(schedule, paused_at=paused_at)
        return True

    def change_setting(self, name: str, value: str, *, instead_of: str) -> bool:
        with self._tables.statement():
            is_changed = self._tables.settings.get(name) == instead_of
            if is_changed:
                self._tables.settings[name] = value
            return is_changed

    def add_keys(self, keys: Sequence[ApiKey]) -> list[bool]:
        with self._tables.statement() as now:
            if any(key.parent is not None for key in keys):
                self._remove_sessions(now)
            return [self._add_key(key) for key in keys]

    def _remove_sessions(self, now: datetime) -> None:
        known = self._tables.rows.api_keys
        for key in [*known.values()]:
            if key.parent is not None and key.expires_at is not None and key.expires_at <= now:
                del known[key.id]

    def _add_key(self, key: ApiKey) -> bool:
        if key.id in self._tables.rows.api_keys:
            return False
        self._tables.rows.api_keys[key.id] = key
        return True

    def revoke_keys(self, ids: Sequence[str]) -> list[bool]:
        with self._tables.statement() as now:
            keys = self._tables.rows.api_keys
            revoked = {
                key.id: replace(key, revoked_at=now)
                for key in keys.values()
                if key.revoked_at is None and (key.id in ids or key.parent in ids)
            }
            keys.update(revoked)
            return [key_id in revoked for key_id in ids]

    def note_key_use(self, ids: Sequence[str]) -> None:
        with self._tables.statement() as now:
            keys = self._tables.rows.api_keys
            keys.update({key_id: replace(keys[key_id], used_at=now) for key_id in ids if key_id in keys})

    def record_audit(self, entries: Sequence[AuditEntry]) -> None:
        with self._tables.statement() as now:
            for entry in entries:
                written = replace(entry, at=now, detail=MappingProxyType(dict(entry.detail)))
                self._tables.rows.audit.setdefault(entry.id, written)


def _merged(old: Schedule | None, new: Schedule) -> Schedule:
    if old is None:
        return new
    is_same_rule = (old.cron, old.timezone) == (new.cron, new.timezone)
    next_at = old.next_at if is_same_rule else new.next_at
    return replace(
        new,
        next_at=next_at,
        fired_at=old.fired_at,
        paused_at=old.paused_at,
        last_job_id=old.last_job_id,
    )
