"""A state machine that makes the same calls at the same times to several stores, and compares all answers and rows.

The first store is the reference. Ids, tokens and times are generated here, once for all stores. Calls satisfy the
preconditions of the contract: the items of a call name different jobs, ids are new unless it is a repeat, tokens
are new, and retention avoids the one day in which stores may differ. Leases, dispatches and requeues are kept for
the rest of the run, so that later calls use stale ones.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from taskharbor.core.messages import DeliveryNote, DeliveryRole
from taskharbor.core.model import ApiKey, AuditEntry, Claim, Lease, NewJob, Schedule, WorkerRecord
from taskharbor.core.results import (
    Death,
    Declined,
    Dispatch,
    Extended,
    JobFilter,
    Published,
    Refusal,
    Sent,
    Settlement,
    Unpublished,
    Unsent,
)
from taskharbor.core.states import FINAL, WAITING, Event, Status
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, TICK
from tests.parity import values as v
from tests.parity.comparing import answer_of, differences, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job, Progress
    from taskharbor.core.outcome import Outcome
    from taskharbor.testing.conformance import Subject

RETENTION: Final = 30 * v.DAY
AGE: Final = 40 * v.DAY
_MAX_BATCHES: Final = 1_000  # far more than there are jobs


class Parity(RuleBasedStateMachine):
    """Several stores, and the leases, dispatches and requeues that they have returned so far."""

    def __init__(self, subjects: Sequence[Subject], *, on_difference: Callable[[int, str], None]) -> None:
        super().__init__()
        self._on_difference = on_difference
        self._all_subjects = subjects
        self._others = dict(enumerate(subjects))
        self._reference = self._others.pop(0)
        self._names = v.Names()
        self._job_ids = [self._names.job_id()]  # the first is never inserted
        self._new: list[NewJob] = []
        self._leases: list[Lease] = []
        self._dispatches: list[Dispatch] = []
        self._requeues: list[dict[str, Any]] = []
        self._entries = [self._names.token()]  # the first is never written
        self._jobs: dict[JobId, Job] = {}

    def teardown(self) -> None:
        for subject in self._all_subjects:
            subject.driver.close()

    @invariant()
    def every_row_is_the_same(self) -> None:
        self._jobs = self._ask(lambda s: rows_of(s, self._job_ids))["jobs"]

    def _ask(self, call: Callable[[Subject], Any]) -> Any:
        """Call every store, and return the answer of the reference."""
        expected = answer_of(self._reference, call)
        for n, subject in [*self._others.items()]:
            if found := list(differences(expected, answer_of(subject, call), f"store {n}: ")):
                self._on_difference(n, "\n".join(found))
                del self._others[n]
        return expected

    @property
    def _subjects(self) -> list[Subject]:
        return [self._reference, *self._others.values()]

    @property
    def _now(self) -> datetime:
        return self._reference.clock.now()

    def _pick(self, picks: list[int], fitting: Collection[Status] | None = None) -> list[JobId]:
        """Pick among the jobs in a *fitting* state. If that is None, or there are none, pick among all jobs."""
        fit = [job_id for job_id in self._job_ids if fitting and job_id in self._jobs]
        fit = [job_id for job_id in fit if fitting and self._jobs[job_id].status in fitting]
        return v.of(fit or self._job_ids, picks)

    def _create_jobs(self, batch: list[Any]) -> list[NewJob]:
        jobs = [self._new_job(**what, **due) for what, due in batch]
        self._new += jobs
        self._job_ids += [job.id for job in jobs]
        return jobs

    def _new_job(self, *, scheduled_for: timedelta | None = None, **fields: Any) -> NewJob:
        due = None if scheduled_for is None else self._now + scheduled_for
        return NewJob(id=self._names.job_id(), scheduled_for=due, **fields)

    @initialize(batch=v.batches)
    def begin(self, batch: list[Any]) -> None:
        self.insert(batch)

    @rule(batch=v.batches)
    def insert(self, batch: list[Any]) -> None:
        jobs = self._create_jobs(batch)
        self._ask(lambda s: s.driver.insert(jobs))

    @rule(batch=v.batches, picks=v.some)
    def insert_again(self, batch: list[Any], picks: list[int]) -> None:
        known = {job.id: job for job in self._new}
        again = [known[job_id] for job_id in self._pick(picks) if job_id in known]
        jobs = again + self._create_jobs(batch[1:])
        self._ask(lambda s: s.driver.insert(jobs, repeat=True))

    @rule(batch=v.batches, is_kept=v.flags)
    def insert_in_a_transaction(self, batch: list[Any], is_kept: bool) -> None:
        jobs = self._create_jobs(batch)

        def call(subject: Subject) -> Any:
            answers: Any = None
            with suppress(InterruptedError), subject.transaction() as insert:
                answers = insert(jobs)
                if not is_kept:
                    raise InterruptedError
            return answers

        self._ask(call)

    @rule(
        queue=v.queues,
        worker=v.workers,
        lease=v.leases,
        limit=v.limits,
        overdue_only=st.booleans(),
        types=v.subsets_of_types,
        unhandled_after=v.unhandled,
        reclaim=v.mostly,
    )
    def reserve(self, queue: str, **how: Any) -> None:
        token = self._names.token()
        claims = self._ask(lambda s: s.driver.reserve(queue, token=token, overdue_after=OVERDUE_AFTER, **how))
        self._leases += [claim.lease for claim in claims]

    @rule(queue=v.queues, limit=v.limits, outcome=v.outcomes, by=v.moves)
    def work(self, queue: str, limit: int, outcome: Outcome, by: timedelta) -> None:
        """Reserve and settle in one step, so that most jobs pass through several states."""
        self.advance(by)
        known = len(self._leases)
        self.reserve(queue, worker="ann", lease=LEASE, limit=limit, types=None, reclaim=True)
        self._ask(lambda s: s.driver.settle([Settlement(lease, outcome) for lease in self._leases[known:]]))

    @rule(
        queue=v.queues,
        picks=v.some,
        twice=v.flags,
        fits=v.mostly,
        worker=v.workers,
        lease=v.leases,
        types=v.subsets_of_types,
        unhandled_after=v.unhandled,
        reclaim=v.mostly,
    )
    def claim(self, picks: list[int], twice: bool, fits: bool, **how: Any) -> None:
        token = self._names.token()
        job_ids = self._pick(picks, {Status.ENQUEUED, Status.PROCESSING} if fits else None)
        repeated = job_ids + job_ids[: int(twice)]
        answers = self._ask(lambda s: s.driver.claim(repeated, token=token, **how))
        self._leases += [answer.lease for answer in answers if isinstance(answer, Claim)]

    @rule(picks=v.some, lease=v.leases, is_right=v.mostly)
    def extend(self, picks: list[int], lease: timedelta, is_right: bool) -> None:
        held = self._held(picks, is_wrong=not is_right)
        answers = self._ask(lambda s: s.driver.extend(held, lease=lease))
        self._leases += [answer.lease for answer in answers if isinstance(answer, Extended)]

    @rule(picks=v.some, progress=v.progress, is_right=v.mostly)
    def save_progress(self, picks: list[int], progress: Progress, is_right: bool) -> None:
        notes = [(held, progress) for held in self._held(picks, is_wrong=not is_right)]
        self._ask(lambda s: s.driver.save_progress(notes))

    @rule(picks=v.some, is_right=v.mostly)
    def cancel_requested(self, picks: list[int], is_right: bool) -> None:
        held = self._held(picks, is_wrong=not is_right)
        self._ask(lambda s: s.driver.cancel_requested(held))

    @rule(picks=v.some, outcomes=st.tuples(v.outcomes, v.outcomes, v.outcomes))
    def settle(self, picks: list[int], outcomes: tuple[Outcome, ...]) -> None:
        settlements = [Settlement(held, outcome) for held, outcome in zip(self._held(picks), outcomes, strict=False)]
        self._ask(lambda s: s.driver.settle(settlements))

    @rule(pick=v.one, outcome=v.outcomes, how_often=st.integers(1, 2), is_right=v.mostly)
    def settle_one(self, pick: int, outcome: Outcome, how_often: int, is_right: bool) -> None:
        held = self._held([pick], is_wrong=not is_right)
        for _ in range(how_often):
            self._ask(lambda s: s.driver.settle([Settlement(each, outcome) for each in held]))

    def _held(self, picks: list[int], *, is_wrong: bool = False) -> list[Lease]:
        """Return some leases of different jobs, newest first. *is_wrong* leases have a token without a holder."""
        if is_wrong:
            return [Lease(job_id, self._names.token(), self._now + LEASE) for job_id in self._pick(picks)]
        return list({lease.job_id: lease for lease in reversed(v.of(self._leases, picks))}.values())

    @rule(picks=v.some)
    def read_back(self, picks: list[int]) -> None:
        tokens = [lease.token for lease in v.of(self._leases, picks)]
        self._ask(lambda s: sorted(s.driver.read_back(tokens), key=lambda claim: claim.job.id))

    @rule(
        queue=v.queues,
        limit=v.limits,
        lock=v.locks,
        unclaimed=st.sampled_from([3, 10, 1, 0]),
        fate=st.sampled_from(["sent", "sent", "unsent", "declined", "unknown"]),
    )
    def dispatch(self, queue: str, fate: str, **how: Any) -> None:
        made = self._ask(lambda s: s.driver.dispatch(queue, **how))
        self._dispatches += made
        self._report(made, fate, v.MINUTE)

    @rule(picks=v.some, fate=st.sampled_from(["sent", "unsent", "declined"]), again_in=v.delays)
    def dispatched(self, picks: list[int], fate: str, again_in: timedelta) -> None:
        self._report(list({each.job_id: each for each in v.of(self._dispatches, picks)}.values()), fate, again_in)

    def _report(self, made: list[Dispatch], fate: str, again_in: timedelta) -> None:
        kinds: dict[str, Sequence[Sent | Unsent | Declined]] = {
            "sent": [Sent(each, again_in) for each in made],
            "unsent": [Unsent(each) for each in made],
            "declined": [Declined(each.job_id, each.seq) for each in made],
        }
        self._ask(lambda s: s.driver.record_dispatch(kinds.get(fate, ())))

    @rule(picks=v.some, seq=v.limits)
    def decline(self, picks: list[int], seq: int) -> None:
        """Decline messages, including ones that never existed."""
        self._ask(lambda s: s.driver.record_dispatch([Declined(job_id, seq) for job_id in self._pick(picks)]))

    # Operator actions.

    @rule(picks=v.some, of=st.sampled_from([{Status.PROCESSING}, {Status.PROCESSING}, WAITING, None]))
    def cancel(self, picks: list[int], of: Collection[Status] | None) -> None:
        job_ids = self._pick(picks, of)
        self._ask(lambda s: s.driver.cancel(job_ids))

    @rule(
        picks=v.some,
        fits=v.mostly,
        budget=st.sampled_from([1, 2, 3, 0, None]),
        due=st.just({}) | v.dues,
        queue=st.none() | v.queues,
        payload=st.sampled_from([None, None, None, b"[2]", b""]),
    )
    def requeue(self, picks: list[int], fits: bool, due: dict[str, Any], **how: Any) -> None:
        call = {
            "job_ids": self._pick(picks, {Status.DEAD, Status.CANCELED} if fits else None),
            "token": self._names.token(),
            "by": "ops",
            "reason": "fixed",
            **self._due_arguments(due),
            **how,
        }
        self._requeues.append(call)
        self._ask(lambda s: s.driver.requeue(**call))

    @rule(pick=v.one)
    def requeue_again(self, pick: int) -> None:
        if self._requeues:
            call = self._requeues[-1 - pick % len(self._requeues)]
            self._ask(lambda s: s.driver.requeue(**call))

    @rule(picks=v.some, fits=v.mostly, due=st.just({}) | v.dues, priority=st.none() | v.priorities)
    def reschedule(self, picks: list[int], fits: bool, due: dict[str, Any], priority: int | None) -> None:
        job_ids, when = self._pick(picks, WAITING if fits else None), self._due_arguments(due)
        self._ask(lambda s: s.driver.reschedule(job_ids, priority=priority, **when))

    def _due_arguments(self, due: dict[str, timedelta]) -> dict[str, Any]:
        return {name: self._now + value if name == "scheduled_for" else value for name, value in due.items()}

    @rule(queues=st.permutations(["default", "mail"]), by=v.workers, pauses=v.rarely)
    def pause_or_resume(self, queues: list[str], by: str, pauses: bool) -> None:
        self._ask(lambda s: s.driver.control.pause(queues[:1], by=by) if pauses else s.driver.control.resume(queues))

    @rule(wanted=v.filters, limit=v.limits, picks=v.some, is_first=v.flags)
    def find(self, wanted: dict[str, Any], limit: int, picks: list[int], is_first: bool) -> None:
        after = None if is_first else self._pick(picks)[0]
        self._ask(lambda s: s.driver.inspector.find(JobFilter(**wanted), limit=limit, after=after))
        self._ask(lambda s: s.driver.inspector.count(JobFilter(**wanted), after=after))

    @rule(queue=v.queues, limit=v.limits)
    def next_up(self, queue: str, limit: int) -> None:
        self._ask(lambda s: s.driver.inspector.next_up(queue, limit=limit))

    @rule(picks=v.some, event=st.sampled_from([Event.ACK, Event.EXTEND]))
    def record_refusals(self, picks: list[int], event: Event) -> None:
        refused = [Refusal(job_id=each.job_id, token=each.token, event=event) for each in v.of(self._leases, picks)]
        self._ask(lambda s: s.driver.maintenance.record_refusals(refused))

    @rule(worker=v.workers, limit=v.limits)
    def lost_attempts(self, worker: str, limit: int) -> None:
        self._ask(lambda s: s.driver.inspector.lost_attempts(worker, limit=limit))

    @rule(queue=v.queues)
    def next_due_in(self, queue: str) -> None:
        self._ask(lambda s: s.driver.inspector.next_due_in(queue))

    @rule(queue=st.none() | v.queues, limit=v.limits)
    def dead_letter_groups(self, queue: str | None, limit: int) -> None:
        self._ask(lambda s: s.driver.inspector.dead_letter_groups(queue=queue, limit=limit))

    @rule(ids=st.permutations(["k1", "k2", "k3"]), put=v.api_keys, puts=v.flags, limit=v.limits)
    def put_or_revoke_keys(self, ids: list[str], put: dict[str, Any], puts: bool, limit: int) -> None:
        keys = [ApiKey(id=key_id, **put) for key_id in ids[:limit]]
        verb = "add_keys" if puts else "revoke_keys"
        self._ask(lambda s: getattr(s.driver.control, verb)(keys if puts else ids[:limit]))
        self._ask(lambda s: s.driver.control.note_key_use(ids[1:limit]))
        self._ask(lambda s: s.driver.inspector.keys(ids[:2]))

    @rule(what=st.lists(v.audit_entries, min_size=1, max_size=2), limit=v.limits, pick=v.one, again=v.rarely)
    def record_audit(self, what: list[dict[str, Any]], limit: int, pick: int, again: bool) -> None:
        ids = v.of(self._entries[1:], [pick]) if again else [self._names.token() for _ in what]
        self._entries += [entry_id for entry_id in ids if entry_id not in self._entries]
        entries = [AuditEntry(id=entry_id, **each) for entry_id, each in zip(ids, what, strict=False)]
        self._ask(lambda s: s.driver.control.record_audit(entries))
        before = v.of(self._entries, [pick])[0]
        self._ask(lambda s: s.driver.inspector.audit(limit=limit, before=before))

    @rule(older_than=v.delays, limit=v.limits)
    def prune_audit(self, older_than: timedelta, limit: int) -> None:
        self._ask(lambda s: s.driver.maintenance.prune_audit(older_than=older_than, limit=limit))

    # Time and maintenance.

    @rule(by=v.moves)
    def advance(self, by: timedelta) -> None:
        for subject in self._subjects:
            subject.advance(by)

    @rule(limit=v.limits)
    def expire(self, limit: int) -> None:
        self._ask(lambda s: s.driver.maintenance.expire(limit=limit))

    @rule(by=v.moves, limit=v.limits)
    def expire_later(self, by: timedelta, limit: int) -> None:
        self.advance(by)
        self.expire(limit)

    @rule(by=v.jumps, reports=v.reports, then=st.sampled_from([v.NOTHING, LEASE, v.MINUTE]), limit=v.limits)
    def report_clock_jump(self, by: timedelta, reports: list[Any], then: timedelta, limit: int) -> None:
        """Let the clock jump while jobs run, report the jump with small errors, and reclaim or expire the leases."""
        self.reserve("default", worker="bob", lease=LEASE, limit=limit, types=None, reclaim=True)
        before = self._now
        self.advance(by)
        for off, lease in reports:
            self._report_jump(before + off, lease)
        self.advance(then)
        self.reserve("default", worker="ann", lease=LEASE, limit=1, types=None, reclaim=True)
        self.expire(limit)

    def _report_jump(self, expected: datetime, lease: timedelta) -> None:
        self._ask(lambda s: s.driver.maintenance.report_clock_jump(expected=expected, lease=lease))

    @rule(picks=v.some, limit=v.limits)
    def bury(self, picks: list[int], limit: int) -> None:
        for job_id in self._pick(picks, WAITING):
            spends = [subject.spend for subject in self._subjects]
            if all(spends) and job_id in self._jobs and self._jobs[job_id].status.is_waiting:
                for spend in filter(None, spends):
                    spend(job_id)
        self._ask(lambda s: bury_in_batches(s, limit=limit))

    @rule(is_long_ago=v.mostly, is_published=v.mostly, limit=v.limits, keep=v.delays)
    def clean_up(self, is_long_ago: bool, is_published: bool, limit: int, keep: timedelta) -> None:
        """Remove old jobs in batches. Stores may choose the jobs of a batch, but must agree on the final result."""
        if is_long_ago:
            self.advance(AGE)
        ages = [self._now - job.completed_at for job in self._jobs.values() if job.completed_at is not None]
        if any(RETENTION <= age < RETENTION + v.DAY for age in ages):
            return
        if is_published:
            self._publish_all()
        self._ask(lambda s: in_batches(lambda: s.driver.maintenance.prune(older_than=RETENTION, limit=limit)))
        self._ask(lambda s: in_batches(lambda: s.driver.maintenance.purge(older_than=RETENTION, limit=limit)))
        self._ask(lambda s: s.driver.maintenance.roll_up(keep=AGE + keep))

    def _publish_all(self) -> None:
        events = [row.event.event_id for row in self._reference.driver.inspector.outbox(self._job_ids)]
        self._ask(lambda s: s.driver.maintenance.settle_outbox([Published(event) for event in events]))

    @rule(name=st.sampled_from(["expire", "prune"]), every=v.leases, keep=v.delays)
    def claim_duty(self, name: str, every: timedelta, keep: timedelta) -> None:
        self._ask(lambda s: s.driver.maintenance.claim_duty(name, every=every))
        self._ask(lambda s: s.driver.maintenance.roll_up(keep=keep))

    @rule(limit=v.limits, lock=v.locks)
    def claim_outbox(self, limit: int, lock: timedelta) -> None:
        self._ask(lambda s: s.driver.maintenance.claim_outbox(limit=limit, lock=lock))

    @rule(
        picks=v.some,
        life=st.integers(1, 2),
        kind=st.sampled_from(["published", "again", "given up", "unknown"]),
        again_in=v.delays,
    )
    def settle_outbox(self, picks: list[int], life: int, kind: str, again_in: timedelta) -> None:
        events = [f"{job_id}:{life}" for job_id in self._pick(picks, FINAL)]
        kinds: dict[str, Sequence[Published | Unpublished]] = {
            "published": [Published(event) for event in events],
            "again": [Unpublished(event, "no route", again_in) for event in events],
            "given up": [Unpublished(event, "no route", None) for event in events],
            "unknown": [Published("no event"), Unpublished(f"{self._job_ids[0]}:1", "no route", again_in)],
        }
        self._ask(lambda s: s.driver.maintenance.settle_outbox(kinds[kind]))

    @rule(unseen_for=v.delays, older_than=v.delays, limit=v.limits, picks=st.none() | v.some)
    def close_outbox(self, unseen_for: timedelta, older_than: timedelta, limit: int, picks: list[int] | None) -> None:
        call: dict[str, Any] = {"unseen_for": unseen_for, "older_than": older_than, "limit": limit}
        # With job ids, stores may close events in any order: no limit.
        call |= {} if picks is None else {"job_ids": self._pick(picks, FINAL), "limit": _MAX_BATCHES}
        self._ask(lambda s: s.driver.maintenance.close_outbox("no publisher", **call))
        self._ask(lambda s: s.driver.inspector.kept_by_events(older_than=older_than, limit=limit))

    @rule(queues=st.lists(v.queues, min_size=1, unique=True), role=st.sampled_from(DeliveryRole), problem=st.text())
    def record_delivery(self, queues: list[str], role: DeliveryRole, problem: str) -> None:
        notes = [DeliveryNote(queue=queue, role=role, problem=problem) for queue in queues]
        self._ask(lambda s: s.driver.maintenance.record_delivery(notes))
        self._ask(lambda s: sorted(s.driver.inspector.delivery(queues[0]), key=lambda note: note.role))

    @rule(
        name=v.workers,
        queues=st.lists(v.queues, unique=True),
        concurrency=v.limits,
        unseen_for=v.delays,
        declares=st.permutations(["nightly", "hourly", "never"]),
    )
    def record_worker(
        self, name: str, queues: list[str], concurrency: int, unseen_for: timedelta, declares: list[str]
    ) -> None:
        record = WorkerRecord(
            id=name,
            host="here",
            pid=7,
            queues=tuple(queues),
            types=("greet",),
            concurrency=concurrency,
            lost_slots=concurrency // 2,
            started_at=v.START,
            schedules=tuple(declares[:concurrency]),
            busy_slots=concurrency // 3,
            version=None if concurrency == 1 else "4f2c",
            library="1.0",
        )
        self._ask(lambda s: s.driver.maintenance.prune_workers(unseen_for=unseen_for, keep=3 * unseen_for))
        self._ask(lambda s: s.driver.maintenance.record_worker(record))

    @rule(name=v.workers)
    def remove_worker(self, name: str) -> None:
        self._ask(lambda s: s.driver.maintenance.remove_worker(name))

    @rule(
        names=st.permutations(["nightly", "hourly"]),
        put=v.schedules,
        off=st.none() | v.offsets,
        limit=v.limits,
        is_declared=v.flags,
    )
    def put_schedules(
        self, names: list[str], put: dict[str, Any], off: timedelta | None, limit: int, is_declared: bool
    ) -> None:
        next_at, declared_at = None if off is None else self._now + off, self._now if is_declared else None
        schedules = [Schedule(name=name, next_at=next_at, declared_at=declared_at, **put) for name in names[:limit]]
        self._ask(lambda s: s.driver.control.put_schedules(schedules))

    @rule(
        limit=v.limits,
        alive=v.delays,
        next_in=st.none() | v.delays,
        is_stale=v.flags,
        batch=st.just([]) | v.batches,
    )
    def fire_schedules(
        self, limit: int, alive: timedelta, next_in: timedelta | None, is_stale: bool, batch: list[Any]
    ) -> None:
        next_at = None if next_in is None else self._now + next_in
        for due in self._ask(lambda s: s.driver.maintenance.due_schedules(limit=limit, alive_within=alive)):
            self._fire(due.name, due.next_at - TICK if is_stale else due.next_at, next_at, self._create_jobs(batch))

    def _fire(self, name: str, fired: datetime, next_at: datetime | None, jobs: list[NewJob]) -> None:
        self._ask(lambda s: s.driver.maintenance.advance_schedule(name, fired=fired, next_at=next_at, jobs=jobs))

    @rule(names=st.permutations(["nightly", "hourly", "never"]), verb=st.sampled_from(["pause", "resume", "delete"]))
    def steer_schedules(self, names: list[str], verb: str) -> None:
        self._ask(lambda s: getattr(s.driver.control, f"{verb}_schedules")(names[:2]))

    @rule(undeclared_for=v.delays, alive=v.delays)
    def prune_schedules(self, undeclared_for: timedelta, alive: timedelta) -> None:
        call = {"undeclared_for": undeclared_for, "alive_within": alive}
        self._ask(lambda s: s.driver.maintenance.prune_schedules(**call))


def bury_in_batches(subject: Subject, *, limit: int) -> list[Death]:
    """Bury until no exhausted job is left. Stores may bury them in any order."""
    batches = takewhile(bool, (subject.driver.maintenance.bury(limit=limit) for _ in range(_MAX_BATCHES)))
    return sorted((death for batch in batches for death in batch), key=lambda death: death.job_id)


def in_batches(remove_batch: Callable[[], int]) -> int:
    """Repeat *remove_batch* until it removes nothing, and return the total."""
    removed = list(takewhile(bool, (remove_batch() for _ in range(_MAX_BATCHES))))
    return sum(removed)
