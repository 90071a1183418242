"""The contract of a store, in four small protocols.

`Driver` moves jobs, `Maintenance` is for the janitor, `Inspector` only reads, and
`Control` is for people. `taskharbor.testing.conformance` is this page as tests: a
driver that passes it is a driver.

What holds for every method:

- **The store's clock decides.** "Now" is one reading of it for the whole call.
  Due: ``scheduled_for <= now``. A lease is valid while ``lease_expires_at > now`` and
  over from ``lease_expires_at <= now`` on; no instant is both.
- **Every move is one atomic conditional statement** (on SQLite: one IMMEDIATE transaction
  that decides nothing in Python). The guard of the transition table
  (`taskharbor.core.states`) stands in the statement that makes the move. Never read a
  row in order to decide a write: between the two the row may change hands.
- **One answer for each item, in the order asked.** A refused item is answered by an
  error, returned and not raised; it changes nothing, and its neighbours are unharmed.
  The items of one call name different jobs, queues, events or schedules (but see `claim`).
- **A call that raises** (`StoreUnavailable`) may or may not have taken effect. Each can
  be repeated: insert by the job's id, settle and requeue by their token, and a lost
  reply of reserve or claim is read back by the token the caller chose.
- **(job, token) names one attempt.** Its first row in the attempts stays; a move that finds one there does not fail.
- **No policy.** Delays, bounds and durations come in as arguments.
- **Text is storable** (`taskharbor.core.text`) and times are aware, in UTC, before they come here.
- Methods are called from many threads at once. None waits without a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.drivers.operator import Control, Inspector

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
    from taskharbor.core.model import Claim, Lease, NewJob, OutboxRow, Progress, Schedule, WorkerRecord
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
]


STORE_BATCH: Final = 500
"""The number of jobs that services pass to a store in one call."""


class Inserter(Protocol):
    """All that a client needs: a driver is one, and so is a user's own transaction that a driver has joined.

    One that may be called from any thread, and gains by fewer and larger calls, has a true
    attribute ``group_commits``: single jobs of many callers then come together, from the thread of
    one of them or of none.
    """

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store new jobs, as `Driver.insert` does."""

    def remember(self, name: str, value: str) -> str:
        """Record a setting, as `Driver.remember` does. If a rollback undoes it, ``undoes_settings`` is true."""


class AsyncInserter(Protocol):
    """A transaction of an async connection that a driver has joined."""

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store new jobs, as `Driver.insert` does."""

    async def remember(self, name: str, value: str) -> str:
        """Record a setting, as `Inserter.remember` does."""


class JoinedTransaction(Inserter, Protocol):
    """A user's own transaction that a driver has joined: what is done through it is done when that commits."""

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record how attempts ended, as `Driver.settle` does, with the same fence.

        It waits for rows that others have locked, by the time limits of that session, and raises what
        the store raises, as any statement of that transaction does.
        """


class Listener(Protocol):
    """Hears that there may be jobs to take: a hint, on which nothing depends but speed.

    It may ring for nothing, and it may miss; whoever listens looks now and then all the same.
    One thread waits at a time.
    """

    def wait(self, timeout: timedelta) -> bool:
        """Return True as soon as it rang since the last wait, and False after *timeout*.

        A ring is forgotten before True is returned: what rings while the caller looks for
        jobs is heard by the next wait.
        """

    def wake(self) -> None:
        """End the wait that is under way, or else the next one, as if it rang; from any thread."""

    def close(self) -> None:
        """Stop listening, and give back what that took. Nobody may be waiting any more: `wake` first."""


class Driver(Protocol):
    """What moves jobs, in the order of a job's life."""

    @property
    def maintenance(self) -> Maintenance:
        """The same store's upkeep."""

    @property
    def inspector(self) -> Inspector:
        """The same store's inspector."""

    @property
    def control(self) -> Control:
        """The same store's control."""

    def listen(self, queues: Collection[str]) -> Listener:
        """Listen for jobs of *queues* that are there to be taken, whichever process put them there.

        It rings when insert, requeue, reschedule or a release left such a job behind, after the
        commit, a user's own included. That a job's time has come, or that its queue was resumed, need
        not ring. No failure to ring fails the call that would have rung.
        """

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store new jobs as PENDING, with no attempt counted.

        The first job under a (queue, idempotency key) wins and is never changed. A later
        one with the same digest is answered with the first one's id and ``existed``; with
        another digest it is refused. A key stays taken until its job is pruned, whatever
        becomes of the job; one that is held only by a transaction which then rolls back is
        free: wait for that transaction rather than answer for it. Of two jobs of one call
        under one key the first wins.

        With *repeat* the caller says that it may have inserted these very ids before, and
        lost the reply: those that are stored are left as they are and answered with
        ``existed``. Without it ids are new, and a driver need not look for them.
        """

    def remember(self, name: str, value: str) -> str:
        """Record *value* as the store's setting *name* unless it has one, and return the one that it has.

        Of several callers at once one records, and all get its value. The driver may keep what it saw
        committed, even when `Control.change_setting` replaces it. Before the schema has settings: *value*.
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
        """Take up to *limit* due jobs of one queue, in the order of priority, ``scheduled_for`` and id.

        Taken are PENDING and FAILED jobs that are due, and ENQUEUED ones that have been
        due for longer than *patience* (their message is taken for lost): none that is
        spent, none while the queue is paused, none of a type outside *types* (None: any)
        before it has been due for *unhandled_after* (None: ever).
        With *overdue* a PENDING or FAILED job, too, is left alone until it has been due for
        *patience*: a worker that waits for messages leaves jobs to them for so long.
        Every job taken becomes PROCESSING under *token* until now + *lease*, and its
        attempt counts from this moment.

        Where that leaves room and *reclaim* is true, jobs of the queue whose lease is over
        are taken as well, longest over first: none that is spent, none whose cancel was
        requested, none during a clock hold, none of a type outside *types*. The attempt
        that was lost is recorded under its old token.

        *token* must be fresh (`new_token`): it is the fence, and what a lost reply is
        read back by. It is for one call: a driver that lost a reply may read back, but must not ask again
        under it, and never reclaims a lease that ended under it. *worker* is for people.
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
        """Take the named jobs of *queue*, as messages that were delivered there ask for.

        A message carries no authority over other queues: a job of another one is refused as
        `Reason.OTHER_QUEUE`, whatever its state, and nothing about it changes.

        The guard and the effects are those of `reserve`, but only ENQUEUED jobs and ended
        leases qualify, and ENQUEUED ones at once when due. The message proves that the job was
        sent: ``sent_at`` becomes now if it was null. A refusal says why (the first
        reason of `Reason` that holds) and until when. An id given twice is claimed once
        and refused as leased the second time: a queue service delivers duplicates. During a
        clock hold an ended lease counts as leased until the hold ends, and without *reclaim*
        until somebody brings it back.
        """

    def extend(
        self,
        leases: Sequence[Lease],
        *,
        lease: timedelta,
    ) -> list[Extended | Skipped | JobNotFound | LeaseLost]:
        """Let leases run until now + *lease*; the token stays.

        A lease that is over is over: it cannot be extended, even if nobody took the job
        since. Rows locked by another transaction are answered `Skipped` and must not be
        waited for: one handler's open transaction must not starve the others' leases.
        Errors are those of `settle`, in the same order.
        """

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record how attempts ended. `Settled` means: committed, under this very token.

        Checked in this order: settled with this event by this token before → the recorded
        answer again, whatever happened to the job since; no such job → `JobNotFound`; not
        PROCESSING → `JobNotInflight`; another token → `LeaseMismatch`; lease over →
        `LeaseExpired`. What each outcome does stands in the transition table; where it
        leads is `taskharbor.core.states.landing`. Every outcome but a success leaves a row
        in the job's attempts, and every death an outbox row, in the same commit.

        Rows locked by another transaction are answered `Skipped`, as by `extend`. An outcome whose data the
        store cannot hold (out of range, too large, against a constraint) is answered `OutcomeNotStorable`.
        Neither delays its neighbors. After any other error, which is raised, the caller repeats the call.
        """

    def save_progress(self, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
        """Keep how far jobs are; False where the lease does not hold any more.

        Rows locked by another transaction are not waited for, and answered False. A job keeps its last
        progress until a requeue clears it.
        """

    def read_back(self, tokens: Sequence[Token]) -> list[Claim]:
        """Return the jobs that these tokens hold now, under leases that are not over, in any order.

        For a caller that lost the reply of `reserve` or `claim`: what is not here was not
        taken, or is lost again.
        """

    def dispatch(self, queue: str, *, limit: int, lock: timedelta, unclaimed: int) -> list[Dispatch]:
        """Mark due jobs ENQUEUED and lock them for sending until now + *lock*.

        Taken are waiting jobs that are due and not spent, whose ``dispatch_at`` is null or
        past, while the queue is not paused: by priority, then by how long they could have
        been dispatched (``dispatch_at``, or ``scheduled_for`` where that is null), so that
        neither new jobs nor re-sends starve the other. A job without ``dispatch_at`` is
        taken only while fewer than *unclaimed* due ones of the queue have one (concurrent
        callers may overshoot by a batch each); a re-send always. The mark comes before the
        send, so that no worker ever receives an id which it cannot claim yet.
        """

    def record_dispatch(self, results: Sequence[Sent | Unsent | Declined]) -> list[bool]:
        """Record what became of messages; False where the job has moved on since.

        Sent and unsent apply only while ``sends`` *and* ``dispatch_at`` are as the dispatch
        left them: a reply that comes late, after a claim or a newer dispatch, changes nothing. Declined
        applies to an ENQUEUED job whose newest message this was.
        """

    def cancel(self, job_ids: Sequence[JobId]) -> list[Transitioned | IllegalTransition | JobNotFound]:
        """Call jobs off: a waiting one is CANCELED now; of one in PROCESSING it is requested.

        A request is kept until the job ends: nothing leads such a job back to waiting, and
        no new lease is made for it. A final job is answered by `IllegalTransition`.
        """

    def requeue(
        self,
        job_ids: Sequence[JobId],
        *,
        token: Token,
        budget: int,
        by: str,
        reason: str,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        queue: str | None = None,
        payload: bytes | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        """Give DEAD and CANCELED jobs a new life of *budget* attempts (at least 1, else `InvalidRequest`).

        ``attempt_count`` never runs back; ``max_attempts`` becomes ``attempt_count + budget``.
        The job is due at *scheduled_for*, or now + *delay*, or now. *token* is fresh: a
        repeated call with it is answered as the first was. *by* and *why* go into the
        job's attempts. Where *queue* is given, a job of another queue is not found. A *payload*,
        encoded for this job, takes the place of its own; the key and its digest stay. It goes
        with one job only (else `InvalidRequest`): a codec may have bound it to that one.
        """

    def reschedule(
        self,
        job_ids: Sequence[JobId],
        *,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        priority: int | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        """Move waiting jobs to *scheduled_for*, or to now + *delay*, or to another priority; what is None stays.

        A message that is on its way is void.
        """

    def close(self) -> None:
        """Give back what the driver holds. Later calls may raise."""


class Maintenance(Protocol):
    """What keeps the store healthy. Any number of processes call these at once."""

    def expire(self, *, limit: int) -> list[Expired]:
        """Bring back up to *limit* jobs whose lease is over, longest over first; nobody else's.

        A job whose cancel was requested becomes CANCELED, a spent one DEAD (with its
        outbox row), any other waits again, due now. The lost attempt is recorded. During
        a clock hold nothing is brought back; an attempt lost to the jump is recorded as
        CLOCK and given back. Rows locked by others are skipped.
        """

    def bury(self, *, limit: int) -> list[Death]:
        """Turn waiting jobs that are spent into dead letters. There should never be any."""

    def report_clock_jump(self, *, expected: datetime, lease: timedelta) -> None:
        """Learn that the store's clock jumped: it should read *expected*.

        Ahead: a clock hold of one *lease* begins, and leases that ended between *expected*
        and now count as lost to the clock. Back: a clock hold ends, duties are free at once,
        and leases that end later than now + *lease* are cut to that. Several processes may
        report the same jump.
        """

    def prune(self, *, older_than: timedelta, limit: int, within: timedelta | None = None) -> int:
        """Remove SUCCEEDED and CANCELED jobs that ended longer ago than *older_than*; return how many.

        Never earlier, and at the latest a day later: a store may drop whole days. *limit*
        bounds what is removed row by row in one call. A job with an event that is neither
        published nor given up stays. Keys, attempts and events go with the job.

        With *within* a call begins nothing more after that time. It may return 0 then though
        jobs are left, but each call makes progress, and the next one continues from there,
        in another process too. Without it 0 means that nothing is left to remove.
        """

    def purge(self, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None) -> int:
        """Remove DEAD jobs, or those of *job_ids*, by the rules of `prune`. Nobody but a person decides that."""

    def claim_duty(self, name: str, *, every: timedelta) -> bool:
        """Pass the turnstile of a periodic duty: True for one caller in each period."""

    def record_worker(self, worker: WorkerRecord) -> None:
        """Note that a worker is alive, and what it runs; the store stamps ``seen_at``."""

    def prune_workers(self, *, unseen_for: timedelta) -> int:
        """Remove workers that have been silent for at least so long, and return how many."""

    def prune_audit(self, *, older_than: timedelta, limit: int) -> int:
        """Remove up to *limit* entries of the audit that are at least so old, oldest first, and return how many."""

    def claim_outbox(self, *, limit: int, lock: timedelta) -> list[OutboxRow]:
        """Take events to publish, oldest death first; no other call gets them before now + *lock*.

        Only publishers take events: the store notes when one did, once a minute (`PUBLISHER_NOTED`).
        """

    def settle_outbox(self, results: Sequence[Published | Unpublished]) -> list[bool]:
        """Record what became of events; False where one is unknown or was done before.

        There is no fence: a relay whose lock ran out may still report. Events are published
        at least once, and repeats carry the same id.
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
        """Give up as *reason* up to *limit* events if no publisher was noted for *unseen_for*; return how many.

        Oldest first, or any of *job_ids*; of deaths at least *older_than* ago; none whose ``next_at`` is to come.
        """

    def due_schedules(self, *, limit: int) -> list[Schedule]:
        """Return schedules whose ``next_at`` has come and that are not paused, longest due first."""

    def advance_schedule(
        self, name: str, *, fired: datetime, next_at: datetime | None, jobs: Sequence[NewJob] = ()
    ) -> bool:
        """Move a schedule on to *next_at* and store *jobs*, if its ``next_at`` still is *fired*; True for one caller.

        Both or neither, in one commit. The last of *jobs* becomes the schedule's ``last_job_id``, and *fired*
        its ``fired_at``; without jobs both stay. It rings for the jobs as `Driver.insert` does.
        """

    def roll_up(self, *, keep: timedelta) -> int:
        """Bring the aggregates up to date; drop minutes that began more than *keep* ago, and return how many."""
