"""The driver contract: the protocols that a store implements.

`Driver` stores and moves jobs, `Maintenance` is called by the janitor and other services, `Inspector` reads,
and `Control` is for operators. The last two are defined in `taskharbor.drivers.operator`. The conformance kit,
`taskharbor.testing.conformance`, tests this contract. A driver that passes the kit is complete.

These rules apply to every method:

- **The store's clock decides.** Each call reads it once, and "now" is that reading. A job is due if
  ``scheduled_for <= now``. A lease is valid while ``lease_expires_at > now`` and expired otherwise.
- **Every state change is one atomic conditional statement** (on SQLite: one IMMEDIATE transaction that decides
  nothing in Python). The statement itself contains the guard of the transition table (`taskharbor.core.states`).
  Never read a row to decide on a write: the row may change between the two.
- **Methods that take several items return one result per item, in the same order.** A rejected item yields an
  error, which is returned and not raised. It changes nothing and does not affect the other items. The items of
  one call name different jobs, queues, events or schedules (but see `Driver.claim`).
- **A call that raises `StoreUnavailable` may or may not have committed.** Every call is safe to repeat: `insert`
  is idempotent by job id, `settle` and `requeue` by token. `reserve` and `claim` are repeated with a new token;
  the lost reply is read back with the old one (`Driver.read_back`).
- **(job, token) identifies one attempt.** Its first row among the attempts is kept. A state change that finds
  such a row does not fail.
- **Drivers contain no policy.** Delays, limits and durations are arguments.
- **Arguments are already validated.** Text is storable (`taskharbor.core.text`); times are aware and in UTC.
- **Methods are thread-safe**, and no call waits without a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.drivers.notices import Listener, Notice
from taskharbor.drivers.operator import Control, Inspector
from taskharbor.drivers.schedule_records import ScheduleRecords
from taskharbor.drivers.worker_records import WorkerRecords

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.errors import (
        IdempotencyConflict,
        IllegalTransition,
        JobNotFound,
        LeaseLost,
        OutcomeNotStorable,
    )
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import Claim, Lease, NewJob, OutboxRow, Progress
    from taskharbor.core.results import (
        Death,
        Declined,
        Dispatch,
        Enqueued,
        Expired,
        Extended,
        Published,
        Refused,
        Sent,
        Settled,
        Settlement,
        Skipped,
        Transitioned,
        Unpublished,
        Unsent,
    )
    from taskharbor.core.statistics import StatisticTally
    from taskharbor.drivers.attempt_logs import AttemptLogs
    from taskharbor.drivers.operations import Operations

    SettleAnswer = Settled | Skipped | OutcomeNotStorable | JobNotFound | LeaseLost


__all__ = [
    "AsyncInserter",
    "Control",
    "Driver",
    "Inserter",
    "Inspector",
    "JoinedTransaction",
    "Listener",
    "Maintenance",
    "Notice",
]


STORE_BATCH: Final = 500
"""The maximum number of jobs that services pass to a store in one call."""


class Inserter(Protocol):
    """The part of the contract that a client needs: a driver, or a transaction that a driver has joined.

    Set ``group_commits = True`` on an inserter that is thread-safe and faster with fewer, larger calls. Single jobs
    of concurrent callers are then combined, and inserted by one of their threads or by another thread.
    """

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store new jobs, as `Driver.insert` does."""

    def remember(self, name: str, value: str) -> str:
        """Record a setting, as `Driver.remember` does. If a rollback can undo it, ``undoes_settings`` must be true."""


class AsyncInserter(Protocol):
    """An async connection's transaction that a driver has joined."""

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store new jobs, as `Driver.insert` does."""

    async def remember(self, name: str, value: str) -> str:
        """Record a setting, as `Inserter.remember` does."""


class JoinedTransaction(Inserter, Protocol):
    """A caller's own transaction that a driver has joined. Its changes take effect when the caller commits."""

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record the outcomes of attempts, as `Driver.settle` does, with the same token check.

        Unlike `Driver.settle`, it waits for rows that others have locked, up to the time limits of that session. It
        raises the store's own errors, as any statement of the transaction does.
        """


class Driver(Protocol):
    """Stores jobs and changes their states. The methods follow the order of a job's life."""

    @property
    def maintenance(self) -> Maintenance:
        """Return the maintenance interface of the same store."""

    @property
    def inspector(self) -> Inspector:
        """Return the read interface of the same store."""

    @property
    def attempt_logs(self) -> AttemptLogs:
        """Return the log lines of attempts in the same store."""

    @property
    def control(self) -> Control:
        """Return the operator interface of the same store."""

    @property
    def operations(self) -> Operations:
        """Return the bulk operations of the same store."""

    def listen(self, queues: Collection[str], *, worker: str | None = None) -> Listener:
        """Listen for jobs of *queues* that are ready to run, and for cancels of jobs that *worker* holds.

        A listener is notified after a commit of any process: `Notice.JOBS` after an insert, requeue, reschedule or
        release that leaves a ready job, including commits of joined transactions; `Notice.CANCELS` after a cancel of
        a job that is PROCESSING under *worker*. Notifying when a job becomes due or a queue is resumed is optional.
        A failure to notify never fails the call that caused it.
        """

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store new jobs as PENDING, with no attempt counted.

        The first job with a given (queue, idempotency key) keeps the key and is never changed. A later job with the
        same digest yields the id of the first one and ``existed``; one with another digest is rejected. If two jobs
        of one call have the same key, the first one keeps it. A key stays in use until its job is pruned, whatever
        the job's state. If an uncommitted transaction holds the key, wait for it: its rollback frees the key.

        With *repeat*, the caller may have inserted these ids before and lost the reply. Jobs that are already stored
        stay unchanged and yield ``existed``. Without *repeat*, ids are new, and the driver need not check for them.
        """

    def remember(self, name: str, value: str) -> str:
        """Record *value* as the store's setting *name* unless the setting exists, and return the stored value.

        If several callers race, one value is stored and all of them receive it. The driver may cache a committed
        value, even after `Control.change_setting` has replaced it. If the schema has no settings yet, return *value*.
        """

    def reserve(
        self,
        queue: str,
        *,
        token: Token,
        worker: str,
        lease: timedelta,
        limit: int,
        overdue_after: timedelta,
        overdue_only: bool = False,
        types: Collection[str] | None = None,
        unhandled_after: timedelta | None = None,
        reclaim: bool = True,
    ) -> list[Claim]:
        """Lease up to *limit* due jobs of *queue*, ordered by priority, ``scheduled_for`` and id.

        Eligible are due PENDING and FAILED jobs, and ENQUEUED jobs that have been due for longer than *overdue_after*
        (their message is presumed lost). With *overdue_only*, PENDING and FAILED jobs must also have been due for
        *overdue_after*: a worker that receives messages leaves younger jobs to them. Exhausted jobs and jobs of a
        paused queue are not eligible. A job of a type outside *types* (None: all types) is eligible only once it has
        been due for *unhandled_after* (None: never).

        Each leased job becomes PROCESSING under *token* until now + *lease*, and its attempt is counted immediately.

        If fewer than *limit* jobs were leased and *reclaim* is true, also reclaim jobs of the queue with expired
        leases, earliest expiry first. Not reclaimed are exhausted jobs, jobs whose cancel was requested, jobs of a
        type outside *types*, and any job during a clock hold or while the queue is paused. The lost attempt is
        recorded under its old token.

        *token* must be new for each call (`new_token`): it fences the leases, and a lost reply is read back with it.
        After a lost reply a driver may read back, but must not repeat the statement with the same token, and it never
        reclaims a lease that expired under *token*. *worker* is recorded for display only.
        """

    def claim(
        self,
        job_ids: Sequence[JobId],
        *,
        queue: str,
        token: Token,
        worker: str,
        lease: timedelta,
        types: Collection[str] | None = None,
        unhandled_after: timedelta | None = None,
        reclaim: bool = True,
    ) -> list[Claim | Refused]:
        """Lease the jobs named by messages that were delivered for *queue*.

        A message is valid only for its own queue: a job of another queue is refused with `RefusalReason.OTHER_QUEUE`,
        in any state, and stays unchanged.

        Guards and effects are those of `reserve`, except that only ENQUEUED jobs, as soon as they are due, and jobs
        with expired leases are eligible. The message proves that the job was sent: ``sent_at`` becomes now if it was
        null. A refusal has the first `RefusalReason` that applies, and the time until which it applies.

        If an id occurs twice, since queue services deliver duplicates, the second one is refused as leased. During a
        clock hold, an expired lease counts as leased until the hold ends. Without *reclaim*, it counts as leased until
        another caller reclaims or expires it.
        """

    def extend(
        self,
        leases: Sequence[Lease],
        *,
        lease: timedelta,
    ) -> list[Extended | Skipped | JobNotFound | LeaseLost]:
        """Extend leases to now + *lease*. The token stays the same.

        An expired lease cannot be extended, even if its job was not reclaimed. Do not wait for rows that another
        transaction has locked; return `Skipped` for them. One handler's open transaction must not delay the
        heartbeats of other jobs. Errors are those of `settle`, in the same order.
        """

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record the outcomes of attempts. `Settled` means that the outcome is committed under this token.

        Checks, in this order: already settled with this event and token → the recorded result again, whatever
        happened to the job since; no such job → `JobNotFound`; not PROCESSING → `JobNotInflight`; another token →
        `LeaseMismatch`; lease expired → `LeaseExpired`. `taskharbor.core.states.status_after` defines the resulting
        state of each outcome. A release without a bound counts neither as an attempt nor as a release: the job's
        ``releases`` stay. In the same commit, every outcome except success adds a row to the job's attempts and
        stores its ``traceparent``, if any, as the metadata entry `ATTEMPT_TRACEPARENT`; a death adds an outbox row.

        Return `Skipped` for rows that another transaction has locked, as `extend` does. Return `OutcomeNotStorable`
        for an outcome whose data the store cannot hold (out of range, too large, or violating a constraint). Neither
        delays the other items. Any other error is raised, and the caller repeats the call.
        """

    def save_progress(self, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
        """Store the progress of running jobs. The result is False if the lease is no longer valid.

        Do not wait for rows that another transaction has locked; return False for them. A job keeps its last progress
        until a requeue clears it.
        """

    def cancel_requested(self, leases: Sequence[Lease]) -> list[bool]:
        """Return for each lease whether a cancel of its job was requested; False if the lease is no longer valid.

        It only reads, and does not wait for rows that another transaction has locked.
        """

    def read_back(self, tokens: Sequence[Token]) -> list[Claim]:
        """Return the jobs that are held under *tokens* with valid leases, in any order.

        It serves callers that lost the reply of `reserve` or `claim`. A job that is missing here was not leased, or
        its lease has ended since. As with those two, the jobs are objects of their own: a worker sets their codec.
        """

    def dispatch(self, queue: str, *, limit: int, lock: timedelta, unclaimed: int) -> list[Dispatch]:
        """Mark due jobs as ENQUEUED and lock them for sending until now + *lock*.

        Eligible are waiting jobs that are due, not exhausted, and have a null or past ``dispatch_at``, unless the queue
        is paused. They are ordered by priority, then by the time since which they could be dispatched (``dispatch_at``,
        or ``scheduled_for`` if that is null), so that neither new jobs nor resends starve the other. A job without
        ``dispatch_at`` is eligible only while fewer than *unclaimed* due jobs of the queue have one (concurrent callers
        may exceed that by one batch each). Resends are always eligible. Jobs are marked before they are sent, so that
        no worker receives the id of a job that it cannot claim yet.
        """

    def record_dispatch(self, results: Sequence[Sent | Unsent | Declined]) -> list[bool]:
        """Record what happened to messages. The result is False if the job has changed since.

        `Sent` and `Unsent` apply only while ``sends`` *and* ``dispatch_at`` are unchanged since the dispatch: a late
        reply, after a claim or a newer dispatch, changes nothing. `Declined` applies to an ENQUEUED job if the message
        was its newest.
        """

    def cancel(self, job_ids: Sequence[JobId]) -> list[Transitioned | IllegalTransition | JobNotFound]:
        """Cancel jobs. A waiting job becomes CANCELED; for a PROCESSING job, the cancel is requested.

        A request stays until the job ends: such a job never waits again and is never leased again. A job in a final
        state yields `IllegalTransition`. The answer for a job that became CANCELED has its ``cancellation``.
        """

    def requeue(
        self,
        job_ids: Sequence[JobId],
        *,
        token: Token,
        by: str,
        reason: str,
        budget: int | None = None,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        queue: str | None = None,
        payload: bytes | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        """Give DEAD and CANCELED jobs a new life with *budget* attempts.

        Raise `InvalidRequest`, as for a new job, if a job cannot have this budget, time or delay.

        Without a *budget*, each job gets as many attempts as its life that ended had. ``attempt_count`` never
        decreases; ``max_attempts`` becomes ``attempt_count`` plus the budget. The job is due at *scheduled_for*, or at
        now + *delay*, or now. *token* must be new; a repeated call with it returns the first result. *by* and *reason*
        are recorded among the job's attempts. If *queue* is given, a job of another queue yields `JobNotFound`. A
        *payload*, encoded for this job, replaces the job's payload; the idempotency key and its digest stay. It is
        allowed with a single job only (else `InvalidRequest`): a codec may bind it to the job.
        """

    def reschedule(
        self,
        job_ids: Sequence[JobId],
        *,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        priority: int | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        """Change the due time of waiting jobs to *scheduled_for* or now + *delay*, or change their priority.

        An argument that is None changes nothing. A message that was already sent for the job becomes void. Raise
        `InvalidRequest`, as for a new job, if a job cannot have this time, delay or priority.
        """

    def close(self) -> None:
        """Release the driver's resources. Later calls may raise."""


class Maintenance(WorkerRecords, ScheduleRecords, Protocol):
    """Periodic work that keeps the store healthy. Any number of processes may call these methods concurrently."""

    def expire(self, *, limit: int) -> list[Expired]:
        """End up to *limit* expired leases, earliest expiry first, and return those that this call ended.

        A job whose cancel was requested becomes CANCELED, an exhausted one DEAD (with its outbox row); any other waits
        again and is due now. The lost attempt is recorded. During a clock hold, no lease is ended. An attempt that was
        lost to a clock jump is recorded as CLOCK and not counted. Rows locked by others are skipped.
        """

    def bury(self, *, limit: int) -> list[Death]:
        """Turn waiting jobs that are exhausted into dead letters. Normally there are none."""

    def report_clock_jump(self, *, expected: datetime, lease: timedelta) -> None:
        """Report that the store's clock has jumped and should read *expected*.

        Forward: a clock hold of one *lease* begins, and leases that expired between *expected* and now count as lost to
        the clock. Backward: a clock hold ends, all duties become due, and leases that expire after now + *lease* are
        shortened to that. Several processes may report the same jump.
        """

    def prune(self, *, older_than: timedelta, limit: int, within: timedelta | None = None) -> int:
        """Remove SUCCEEDED and CANCELED jobs that ended more than *older_than* ago, and return their number.

        No job is removed earlier, and each is removed at most a day later: a store may drop whole days at once. *limit*
        bounds the rows that one call deletes individually. A job with an event that is neither published nor given up
        is kept. Idempotency keys, attempts and events are removed with their job.

        With *within*, a call starts no more work after that time. It may then return 0 although jobs are left, but
        each call makes progress, and the next one, from any process, continues there. Without *within*, 0 means that
        no jobs are left.
        """

    def purge(self, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None) -> int:
        """Remove DEAD jobs, or those in *job_ids*, by the rules of `prune`. Without ``keep_dead`` only operators do."""

    def claim_duty(self, name: str, *, every: timedelta) -> bool:
        """Return True for one caller in each period of a periodic duty, and False for all others."""

    def resume_paused(self) -> list[str]:
        """Resume the queues whose ``paused_until`` has passed, and return their names, in order."""

    def record_delivery(self, notes: Sequence[DeliveryNote]) -> None:
        """Replace the notes of the same queue and role."""

    def prune_audit(self, *, older_than: timedelta, limit: int) -> int:
        """Remove up to *limit* audit entries that are at least *older_than* old, oldest first; return their number."""

    def claim_outbox(self, *, limit: int, lock: timedelta) -> list[OutboxRow]:
        """Lock events for publishing, oldest death first. No other call returns them before now + *lock*.

        Only publishers call this. The store records the time of such a call at most once per `PUBLISHER_NOTED`.
        """

    def settle_outbox(self, results: Sequence[Published | Unpublished]) -> list[bool]:
        """Record the results of publishing. The result is False if the event is unknown or already settled.

        There is no token check: a relay whose lock has ended may still report. Events are published at least once, and
        repeated ones have the same id.
        """

    def close_outbox(
        self,
        reason: str,
        *,
        unseen_for: timedelta,
        older_than: timedelta,
        limit: int,
        job_ids: Sequence[JobId] | None = None,
    ) -> int:
        """Give up on events with *reason* if no publisher was recorded for *unseen_for*, and return their number.

        It closes up to *limit* events, oldest first: those of deaths at least *older_than* ago whose ``next_at`` has
        passed, and of *job_ids* only, if given.
        """

    def record_statistics(self, tallies: Sequence[StatisticTally], *, version: str | None = None) -> None:
        """Add *tallies* to the statistics, and note that workers of this *version* of the application are alive."""

    def roll_up(self, *, keep: timedelta) -> int:
        """Update the aggregates, remove minutes that began more than *keep* ago, and return the number of those."""
