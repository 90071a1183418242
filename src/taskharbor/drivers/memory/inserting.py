"""Storing new jobs."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from taskharbor.core.answers import Enqueued
from taskharbor.core.errors import IdempotencyConflict
from taskharbor.core.model import Job
from taskharbor.core.states import Status
from taskharbor.drivers.memory.tables import KeyHolder

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.model import NewJob
    from taskharbor.drivers.memory.tables import Tables


def insert(tables: Tables, new: NewJob, now: datetime, *, repeat: bool) -> Enqueued | IdempotencyConflict:
    if repeat and new.id in tables.rows.jobs:
        return Enqueued(new.id, existed=True)
    if new.idempotency_key is not None:
        key = tables.rows.keys.setdefault((new.queue, new.idempotency_key), KeyHolder(new.id, new.digest))
        if key.digest != new.digest:
            return IdempotencyConflict(new.queue, new.idempotency_key, key.holder)
        if key.holder != new.id:
            return Enqueued(key.holder, existed=True)
    job = Job(
        id=new.id,
        type=new.type,
        queue=new.queue,
        priority=new.priority,
        payload=new.payload,
        status=Status.PENDING,
        scheduled_for=new.scheduled_for or now + new.delay,
        timeout=new.timeout,
        created_at=new.created_at,
        attempt_count=0,
        max_attempts=new.max_attempts,
        idempotency_key=new.idempotency_key,
        metadata=MappingProxyType(dict(new.metadata)),  # nobody changes a row from outside
    )
    tables.put(job, now=now)
    return Enqueued(new.id, existed=False)
