"""Response models for runs of schedules, the audit log, keys, health and the caller."""

from __future__ import annotations

from typing import Literal

from taskharbor.api.responses import Count, Id, Shape, Span, StatusName, Text, Time


class FireTimes(Shape):
    name: str
    cron: str
    timezone: str
    fires: list[Time]
    local: list[Time]


class RunShape(Shape):
    at: Time
    fire_time: Time | None
    job_id: Id | None
    skipped: Literal["missed", "overlap"] | None
    status: StatusName | None
    attempts: Count | None
    ended_at: Time | None
    run_seconds: Span | None
    error: Text


class Runs(Shape):
    runs: list[RunShape]


class AuditEntryShape(Shape):
    id: Id
    at: Time
    actor: str
    action: str
    target: str
    detail: dict[str, str]


class AuditLog(Shape):
    entries: list[AuditEntryShape]
    next: Id | None


class KeyShape(Shape):
    id: str
    name: str
    scopes: list[str]
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    used_at: Time | None
    kind: Literal["key", "session"]
    parent: Text


class Keys(Shape):
    keys: list[KeyShape]


class NewKey(KeyShape):
    key: str


class FindingShape(Shape):
    check: str
    level: Literal["ok", "warn", "fail"]
    text: str
    remedy: str


class HealthShape(Shape):
    checked_at: Time
    level: Literal["ok", "warn", "fail"]
    findings: list[FindingShape]


class VersionsInUse(Shape):
    taskharbor: str
    app: Text


class Me(Shape):
    name: str
    key_id: Text
    scopes: list[str]
    read_only: bool
    versions: VersionsInUse
