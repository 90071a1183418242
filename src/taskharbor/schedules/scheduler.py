"""The scheduler: enqueues the jobs of due schedules, each once, however many processes run it."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from taskharbor.cancellation import cancel_jobs
from taskharbor.client import Client, agree_on_codec
from taskharbor.core.codec import JsonCodec, encode_with
from taskharbor.core.durations import as_timedelta
from taskharbor.core.errors import InvalidRequest, Problem, ScheduleNotFound, StoreUnavailable, UsageError
from taskharbor.core.hooks import JobsEnqueued
from taskharbor.core.ids import new_job_id
from taskharbor.core.model import NewJob, Schedule, payload_context, schedule_context
from taskharbor.core.request import MAX_ATTEMPTS
from taskharbor.core.results import Enqueued
from taskharbor.core.schedule_runs import ScheduleRun
from taskharbor.core.trace_context import context_entries
from taskharbor.diagnosis import WORKER_ALIVE_WITHIN
from taskharbor.observability.hook_caller import HookCaller
from taskharbor.observability.tracing import spans_for
from taskharbor.schedules.firing import jittered, next_firing
from taskharbor.schedules.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import Hook
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.core.trace_context import TraceContext
    from taskharbor.drivers.base import Driver
    from taskharbor.observability.tracing import TracingOption
    from taskharbor.schedules.firing import FiringStep
    from taskharbor.schedules.spec import ScheduleSpec

_LOG: Final = logging.getLogger("taskharbor.scheduler")
_JSON: Final = JsonCodec()
_SKIPPED: Final = "schedule %s skipped fire time %s (missed=%s, overlap=%s)"
SCHEDULE_BATCH: Final = 100
MINUTE: Final = timedelta(minutes=1)
MAX_TICK: Final = timedelta(seconds=1)
"""The maximum delay of a schedule that was added or resumed after its time, or that waits for a job to end."""


class Scheduler:
    """Fires all schedules of a store. Any number of schedulers may run on one store.

    There is no leader and no lock. One transaction advances the schedule to its next fire time and inserts the
    jobs, and it succeeds once per fire time. A scheduler that crashes has fired a schedule completely or not at all.

    *codec* reads and writes payloads. A schedule whose payload it cannot read is left to other processes.
    *max_attempts* is how many attempts a job has if its schedule does not say. *hooks* receive a `JobsEnqueued` for the
    jobs of each fired schedule, and a `JobCanceled` for a waiting job that overlap "cancel" ends. *tracing* makes a
    span of each enqueue.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        codec: Codec = _JSON,
        max_attempts: int = MAX_ATTEMPTS,
        ids: Callable[[], JobId] = new_job_id,
        hooks: Sequence[Hook] = (),
        tracing: TracingOption = False,
    ) -> None:
        self._driver = driver
        self._codec = codec
        self._max_attempts = max_attempts
        self._ids = ids
        self._hooks, self._call_hooks = hooks, HookCaller(hooks, _LOG)
        self._spans = spans_for(tracing, driver)
        self._logged: dict[str, datetime] = {}
        self._failing: set[str] = set()

    def put(self, specs: Iterable[ScheduleSpec]) -> None:
        """Store schedules by name. They fire until they are paused or deleted, whatever code runs.

        One that exists with the same cron and timezone keeps its next fire time.
        """
        self._put(specs, is_declared=False)

    def declare(self, specs: Iterable[ScheduleSpec]) -> None:
        """Store schedules as `put` does, for code that declares them: they fire only while a live worker does.

        A worker calls this when it starts, and its heartbeat then names the schedules (`WorkerRecord.schedules`).
        """
        self._put(specs, is_declared=True)

    def _put(self, specs: Iterable[ScheduleSpec], *, is_declared: bool) -> None:
        wanted = list(specs)
        if duplicates := [name for name, count in Counter(spec.name for spec in wanted).items() if count > 1]:
            raise InvalidRequest(
                [Problem(field="name", value=repr(duplicates[0]), rule="two schedules cannot share it")]
            )
        if wanted:
            agree_on_codec(self._driver, self._codec)
        now = self._driver.inspector.now()
        declared_at = now if is_declared else None
        self._driver.control.put_schedules([self._stored(spec, now, declared_at) for spec in wanted])

    def run_now(
        self, name: str, *, idempotency_key: str | None = None, context: TraceContext | None = None
    ) -> Enqueued:
        """Enqueue a job of a schedule now, paused or not. Its next fire time and overlap handling do not change.

        *context* is the trace context of the request, if any.
        """
        schedules = self._driver.inspector.schedules()
        if name not in schedules:
            raise ScheduleNotFound(name, next(iter(get_close_matches(name, schedules, n=1)), None))
        spec = spec_of(schedules[name], self._payload(schedules[name]))
        client = Client(
            self._driver,
            codec=self._codec,
            max_attempts=self._max_attempts,
            ids=self._ids,
            hooks=self._hooks,
            tracing=self._spans,
        )
        metadata = {"schedule": name, **({} if context is None else context_entries(context))}
        enqueued = client.enqueue(spec.request(idempotency_key=idempotency_key, metadata=metadata))
        if not enqueued.existed:
            self._driver.maintenance.record_runs([ScheduleRun(schedule=name, fire_time=None, job_id=enqueued.id)])
        return enqueued

    def tick(self) -> timedelta:
        """Fire the due schedules, each at most once, and return the time until the next tick.

        Fire times are whole minutes, so a tick at each minute is enough.
        """
        now = self._driver.inspector.now()
        seen: set[str] = set()
        while due := self._due(seen):
            # One whose row is locked, or that failed otherwise, comes last: it must not keep the others from firing.
            for schedule, fire in sorted(due, key=lambda each: each[0].name in self._failing):
                seen.add(schedule.name)
                self._try_to_fire(schedule, fire, max(now, fire))  # it may be due after now was read
        return min(MAX_TICK, MINUTE - timedelta(seconds=now.second, microseconds=now.microsecond))

    def _due(self, seen: set[str]) -> list[tuple[Schedule, datetime]]:
        # A schedule that waits or cannot be fired here stays due; it must not block the batch.
        limit = SCHEDULE_BATCH + len(seen)
        due = self._driver.maintenance.due_schedules(limit=limit, alive_within=WORKER_ALIVE_WITHIN)
        return [(each, each.next_at) for each in due if each.next_at is not None and each.name not in seen]

    def _try_to_fire(self, schedule: Schedule, fire: datetime, now: datetime) -> None:
        self._failing.add(schedule.name)
        try:
            self._fire(schedule, fire, now)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  of the user's codec, for example: the others must fire
            # Another process, with other keys or a newer release, may be able to fire it. Log once per fire time.
            if self._logged.get(schedule.name) != fire:
                cause = None if isinstance(error, UsageError) else error
                _LOG.error("schedule %s not fired by this process: %s", schedule.name, error, exc_info=cause)
            self._logged[schedule.name] = fire
        else:
            self._failing.discard(schedule.name)

    def _fire(self, schedule: Schedule, fire: datetime, now: datetime) -> None:
        spec = spec_of(schedule)
        step = next_firing(
            spec.times().after,
            fire=fire,
            now=now,
            previous=None if spec.overlap == "allow" else self._previous(schedule),
            missed=spec.missed,
            overlap=spec.overlap,
            window=as_timedelta(spec.window, "window"),
        )
        if step is None:
            return
        jobs = self._jobs(schedule, spec, step.fires, now) if step.fires else []
        if step.cancels and schedule.last_job_id is not None:
            cancel_jobs(self._driver, [schedule.last_job_id], self._call_hooks)
        with nullcontext() if self._spans is None or not jobs else self._spans.enqueue(jobs) as span:
            advanced = self._driver.maintenance.advance_schedule(
                schedule.name, fired=fire, next_at=step.next_at, jobs=jobs, runs=_runs(schedule.name, fire, step, jobs)
            )
            if span is not None and not advanced:  # another scheduler has fired it
                span.discard()
        if advanced and fire not in step.fires:
            _LOG.warning(_SKIPPED, spec.name, fire, spec.missed, spec.overlap)
        if advanced and jobs and self._call_hooks:
            self._call_hooks(JobsEnqueued(jobs=jobs, results=[Enqueued(job.id, existed=False) for job in jobs]))

    def _previous(self, schedule: Schedule) -> JobSummary | None:
        last = schedule.last_job_id
        return None if last is None else self._driver.inspector.summaries([last]).get(last)

    def _jobs(self, schedule: Schedule, spec: ScheduleSpec, fires: Sequence[datetime], now: datetime) -> list[NewJob]:
        agree_on_codec(self._driver, self._codec)
        payload = self._payload(schedule)
        return [self._job(spec, fire, payload, now) for fire in fires]

    def _job(self, spec: ScheduleSpec, fire: datetime, payload: object, now: datetime) -> NewJob:
        job_id = self._ids()
        return NewJob(
            id=job_id,
            type=spec.type,
            queue=spec.queue,
            payload=encode_with(self._codec, payload, context=payload_context(job_id, spec.type)),
            created_at=now,
            max_attempts=spec.max_attempts or self._max_attempts,
            scheduled_for=jittered(spec.name, fire, as_timedelta(spec.jitter, "jitter")),
            timeout=None if spec.timeout is None else as_timedelta(spec.timeout, "timeout"),
            priority=spec.priority,
            metadata={"schedule": spec.name, "fire_time": fire.isoformat()},
        )

    def _stored(self, spec: ScheduleSpec, now: datetime, declared_at: datetime | None) -> Schedule:
        complete = replace(spec, max_attempts=spec.max_attempts or self._max_attempts)
        return Schedule(
            name=spec.name,
            cron=" ".join(spec.cron.split()),
            timezone=spec.timezone,
            type=spec.type,
            queue=spec.queue,
            payload=encode_with(self._codec, spec.payload, context=schedule_context(spec.name, spec.type)),
            options=complete.options(),
            next_at=next(spec.times().after(now), None),
            declared_at=declared_at,
        )

    def _payload(self, schedule: Schedule) -> Any:
        """Decode the payload, which is bound to its schedule; each job encodes it again, bound to the job."""
        return self._codec.decode(schedule.payload, context=schedule_context(schedule.name, schedule.type))


def _runs(name: str, fire: datetime, step: FiringStep, jobs: Sequence[NewJob]) -> list[ScheduleRun]:
    """Return the runs of *step*: the due time *fire*, if it gets no job, and each fire time that gets one."""
    runs = [ScheduleRun(schedule=name, fire_time=at, job_id=job.id) for at, job in zip(step.fires, jobs, strict=True)]
    return runs if step.skipped is None else [ScheduleRun(schedule=name, fire_time=fire, skipped=step.skipped), *runs]
