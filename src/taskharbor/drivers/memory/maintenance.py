"""Maintenance: lease expiry, clock jumps, retention, duties, workers, the outbox and schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.model import PUBLISHER_NOTED
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, LEASE_LOST
from taskharbor.core.results import Cancellation, Expired, Published
from taskharbor.core.schedule_runs import KEPT_RUNS
from taskharbor.core.states import Event, Status, status_after
from taskharbor.drivers.memory import statistics
from taskharbor.drivers.memory.attempts import clock_hold_until, dead_letter, is_expired, lost_attempt, record_attempt
from taskharbor.drivers.memory.jobs import insert
from taskharbor.drivers.memory.tables import ClockJump

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import Job, NewJob, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import Death, Refusal, Unpublished
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import StatisticTally
    from taskharbor.drivers.memory.tables import Tables


class MemoryMaintenance:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def expire(self, *, limit: int) -> list[Expired]:
        with self._tables.statement() as now:
            if clock_hold_until(self._tables, now) is not None:
                return []
            inflight = [self._tables.rows.jobs[job_id] for job_id in self._tables.rows.inflight]
            ended = [job for job in inflight if is_expired(job, now)]
            ended.sort(key=lambda job: (job.lease_expires_at, job.id))
            return [self._expire(job, now) for job in ended[:limit]]

    def _expire(self, job: Job, now: datetime) -> Expired:
        assert job.lease_token is not None  # noqa: S101  a job with an expired lease has a token
        lost, attempts = lost_attempt(self._tables, job)
        ended = replace(job, attempt_count=attempts, lease_token=None, lease_expires_at=None)
        status = status_after(
            Event.EXPIRE,
            sent=job.sent_at is not None,
            exhausted=ended.is_exhausted,
            cancel_requested=job.cancel_requested_at is not None,
        )
        record_attempt(self._tables, job, now=now, event=Event.EXPIRE, status=status, outcome=lost)
        death = None
        if status is Status.DEAD:
            death = dead_letter(self._tables, ended, now=now, reason=ATTEMPTS_EXHAUSTED, error=LEASE_LOST)
        else:
            expired = replace(
                ended,
                status=status,
                completed_at=now if status.is_final else None,
                scheduled_for=now if status.is_waiting else ended.scheduled_for,
                last_error=LEASE_LOST,
                failed_at=now,
            )
            self._tables.put(expired, now=now)
        canceled = Cancellation(job_id=job.id, type=job.type, queue=job.queue) if status is Status.CANCELED else None
        return Expired(job.id, job.lease_token, status, death, canceled)

    def bury(self, *, limit: int) -> list[Death]:
        with self._tables.statement() as now:
            waiting = [self._tables.rows.jobs[job_id] for ids in self._tables.rows.waiting.values() for job_id in ids]
            exhausted = sorted((job for job in waiting if job.is_exhausted), key=lambda job: job.id)[:limit]
            return [
                dead_letter(
                    self._tables, job, now=now, reason=ATTEMPTS_EXHAUSTED, error=job.last_error or ATTEMPTS_EXHAUSTED
                )
                for job in exhausted
            ]

    def report_clock_jump(self, *, expected: datetime, lease: timedelta) -> None:
        with self._tables.statement() as now:
            if now > expected:
                self._hold(expected, now, now + lease)
                return
            # Otherwise holds, duties and leases from an earlier forward jump would last until the clock reaches them
            # again.
            self._tables.rows.jump = None
            duties = self._tables.rows.duties
            duties.update({name: min(next_at, now) for name, next_at in duties.items()})
            for job in [self._tables.rows.jobs[job_id] for job_id in self._tables.rows.inflight]:
                if job.lease_expires_at is not None and job.lease_expires_at > now + lease:
                    self._tables.put(replace(job, lease_expires_at=now + lease), now=now)

    def _hold(self, before: datetime, after: datetime, until: datetime) -> None:
        """Begin a clock hold, or extend the one that another process began for the same jump."""
        known = self._tables.rows.jump
        if known is not None and after < known.hold:
            before, after, until = min(before, known.before), max(after, known.after), max(until, known.hold)
        self._tables.rows.jump = ClockJump(before, after, until)

    def prune(
        self,
        *,
        older_than: timedelta,
        limit: int,
        within: timedelta | None = None,  # noqa: ARG002  *limit* bounds the time of a call
    ) -> int:
        return self._remove({Status.SUCCEEDED, Status.CANCELED}, older_than, limit)

    def purge(self, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None) -> int:
        return self._remove({Status.DEAD}, older_than, limit, job_ids)

    def _remove(
        self, statuses: set[Status], older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None
    ) -> int:
        with self._tables.statement() as now:
            rows = self._tables.rows
            unpublished = {row.event.job_id for row in rows.outbox.values() if not row.is_done}
            selected = [job for job in rows.jobs.values() if job_ids is None or job.id in job_ids]
            ended = [job for job in selected if job.status in statuses and job.id not in unpublished]
            old = [job for job in ended if job.completed_at is not None and job.completed_at <= now - older_than]
            for job in old[:limit]:
                self._tables.remove(job)
            return len(old[:limit])

    def claim_duty(self, name: str, *, every: timedelta) -> bool:
        with self._tables.statement() as now:
            duties = self._tables.rows.duties
            if name in duties and duties[name] > now:
                return False
            duties[name] = now + every
            return True

    def record_worker(self, worker: WorkerRecord) -> None:
        with self._tables.statement() as now:
            self._tables.rows.workers[worker.id] = replace(worker, seen_at=now)

    def record_delivery(self, notes: Sequence[DeliveryNote]) -> None:
        with self._tables.statement() as now:
            self._tables.rows.delivery |= {(note.queue, note.role): replace(note, seen_at=now) for note in notes}

    def remove_worker(self, worker_id: str) -> None:
        with self._tables.statement() as now:
            stopped = self._tables.rows.workers.pop(worker_id, None)
            if stopped is not None:
                self._tables.rows.past_workers[worker_id] = replace(stopped, stopped_at=now)

    def prune_workers(self, *, unseen_for: timedelta, keep: timedelta) -> int:
        with self._tables.statement() as now:
            workers, past = self._tables.rows.workers, self._tables.rows.past_workers
            silent = {w.id: w for w in workers.values() if w.seen_at is not None and w.seen_at <= now - unseen_for}
            past |= silent
            for worker_id in silent:
                del workers[worker_id]
            for worker_id in [w.id for w in past.values() if w.seen_at is not None and w.seen_at <= now - keep]:
                del past[worker_id]
            return len(silent)

    def record_refusals(self, refusals: Sequence[Refusal]) -> None:
        with self._tables.statement() as now:
            for each in refusals:
                if self._has_attempt(each):
                    self._tables.rows.refusals.setdefault((each.job_id, each.token), replace(each, at=now))

    def _has_attempt(self, refusal: Refusal) -> bool:
        """Return whether the attempt has a row, or will get one because its lease has expired."""
        rows = self._tables.rows
        job = rows.jobs.get(refusal.job_id)
        is_held = job is not None and job.lease_token == refusal.token
        return is_held or refusal.token in rows.attempts.get(refusal.job_id, {})

    def prune_audit(self, *, older_than: timedelta, limit: int) -> int:
        with self._tables.statement() as now:
            audit = self._tables.rows.audit
            old = sorted((e.at, e.id) for e in audit.values() if e.at is not None and e.at <= now - older_than)
            removed = old[:limit]
            for _, entry_id in removed:
                del audit[entry_id]
            return len(removed)

    def claim_outbox(self, *, limit: int, lock: timedelta) -> list[OutboxRow]:
        with self._tables.statement() as now:
            rows, outbox = self._tables.rows, self._tables.rows.outbox
            if rows.publisher_seen_at is None or not now - PUBLISHER_NOTED < rows.publisher_seen_at <= now:
                rows.publisher_seen_at = now
            ready = [row for row in outbox.values() if not row.is_done and row.next_at <= now]
            ready.sort(key=lambda row: (row.event.dead_at, row.event.event_id))
            claimed = [replace(row, attempts=row.attempts + 1, next_at=now + lock) for row in ready[:limit]]
            outbox.update({row.event.event_id: row for row in claimed})
            return claimed

    def settle_outbox(self, results: Sequence[Published | Unpublished]) -> list[bool]:
        with self._tables.statement() as now:
            return [self._settle_outbox(result, now) for result in results]

    def _settle_outbox(self, result: Published | Unpublished, now: datetime) -> bool:
        row = self._tables.rows.outbox.get(result.event_id)
        if row is None or row.is_done:
            return False
        if isinstance(result, Published):
            done = replace(row, published_at=now)
        elif result.retry_in is None:
            done = replace(row, given_up_at=now, last_error=result.error)
        else:
            done = replace(row, next_at=now + result.retry_in, last_error=result.error)
        self._tables.rows.outbox[result.event_id] = done
        return True

    def close_outbox(
        self,
        reason: str,
        *,
        unseen_for: timedelta,
        older_than: timedelta,
        limit: int,
        job_ids: Sequence[JobId] | None = None,
    ) -> int:
        with self._tables.statement() as now:
            seen_at, outbox = self._tables.rows.publisher_seen_at, self._tables.rows.outbox
            if seen_at is not None and seen_at > now - unseen_for:
                return 0
            free = [row for row in outbox.values() if row.next_at <= now and not row.is_done]
            selected = [row for row in free if job_ids is None or row.event.job_id in job_ids]
            old = [row for row in selected if row.event.dead_at <= now - older_than]
            closed = sorted(old, key=lambda row: (row.event.dead_at, row.event.event_id))[:limit]
            for row in closed:
                outbox[row.event.event_id] = replace(row, given_up_at=now, last_error=reason)
            return len(closed)

    def due_schedules(self, *, limit: int, alive_within: timedelta) -> list[Schedule]:
        with self._tables.statement() as now:
            declared = self._declared_schedules(now - alive_within)
            live = [each for each in self._tables.rows.schedules.values() if each.paused_at is None]
            ours = [each for each in live if each.declared_at is None or each.name in declared]
            due = [(each.next_at, each.name, each) for each in ours if each.next_at is not None and each.next_at <= now]
            return [each for _, _, each in sorted(due, key=lambda entry: entry[:2])][:limit]

    def _declared_schedules(self, since: datetime) -> set[str]:
        workers = self._tables.rows.workers.values()
        alive = [each for each in workers if each.seen_at is not None and each.seen_at > since]
        return {name for each in alive for name in each.schedules}

    def advance_schedule(
        self,
        name: str,
        *,
        fired: datetime,
        next_at: datetime | None,
        jobs: Sequence[NewJob] = (),
        runs: Sequence[ScheduleRun] = (),
    ) -> bool:
        with self._tables.transaction(), self._tables.statement() as now:
            schedule = self._tables.rows.schedules.get(name)
            if schedule is None or schedule.next_at != fired:
                return False
            moved = replace(schedule, next_at=next_at)
            if jobs:
                moved = replace(moved, fired_at=fired, last_job_id=jobs[-1].id)
            self._tables.rows.schedules[name] = moved
            for job in jobs:
                insert(self._tables, job, now, repeat=False)
            self._add_runs(runs, now)
            return True

    def record_runs(self, runs: Sequence[ScheduleRun]) -> None:
        with self._tables.statement() as now:
            self._add_runs(runs, now)

    def _add_runs(self, runs: Sequence[ScheduleRun], now: datetime) -> None:
        rows = self._tables.rows
        for run in runs:
            if run.schedule in rows.schedules:
                rows.runs[run.schedule] = (*rows.runs[run.schedule], replace(run, at=now))[-KEPT_RUNS:]

    def prune_schedules(self, *, undeclared_for: timedelta, alive_within: timedelta) -> int:
        with self._tables.statement() as now:
            schedules, declared = self._tables.rows.schedules, self._declared_schedules(now - alive_within)
            bound = {each.name: each.declared_at for each in schedules.values() if each.declared_at is not None}
            schedules.update({name: replace(schedules[name], declared_at=now) for name in bound if name in declared})
            old = [name for name, at in bound.items() if name not in declared and at <= now - undeclared_for]
            removed = [name for name in old if schedules[name].paused_at is None]
            for name in removed:
                del schedules[name]
                self._tables.rows.runs.pop(name, None)
            return len(removed)

    def resume_paused(self) -> list[str]:
        with self._tables.statement() as now:
            paused = self._tables.rows.paused
            ended = sorted(name for name, each in paused.items() if each.until is not None and each.until <= now)
            for name in ended:
                del paused[name]
            return ended

    def record_statistics(self, tallies: Sequence[StatisticTally], *, version: str | None = None) -> None:
        with self._tables.statement() as now:
            statistics.record(self._tables, now, tallies, version=version)

    def roll_up(self, *, keep: timedelta) -> int:
        with self._tables.statement() as now:
            return statistics.roll_up(self._tables, now, keep=keep)
