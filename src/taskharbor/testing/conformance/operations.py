"""Stored bulk operations: which jobs their steps change, and that each step is performed once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.ids import new_token
from taskharbor.core.operations import (
    NewOperation,
    Operation,
    OperationId,
    OperationKind,
    OperationOptions,
    OperationState,
    OperationStep,
)
from taskharbor.core.results import Cancellation, JobFilter, Published
from taskharbor.core.states import Status
from taskharbor.testing.conformance.retention import LATEST, prune
from taskharbor.testing.conformance.subject import TICK, Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId

_TIMEOUT: Final = timedelta(seconds=5)
"""Far longer than a notify takes; a case waits that long only if one is missing."""
DELAY: Final = timedelta(seconds=5)
NONE: Final = timedelta(0)
SECOND: Final = timedelta(seconds=1)
DAY: Final = timedelta(days=1)
FILTER: Final = JobFilter(
    queue="mail",
    type="send",
    statuses=frozenset({Status.DEAD, Status.CANCELED}),
    tag=("tenant", "acme"),
    fingerprint="f00d",
)
OPTIONS: Final = OperationOptions(
    budget=3, delay=timedelta(milliseconds=1_500), priority=-5, older_than=DAY, gives_up=True, rate=0.5
)


def add(
    subject: Subject, kind: OperationKind, *job_ids: JobId, starts_in: timedelta = NONE, **fields: Any
) -> Operation:
    """Store an operation on *job_ids*, or on those that its filter matches."""
    new = NewOperation(id=OperationId(new_token()), kind=kind, by="ops", job_ids=job_ids, **fields)
    assert subject.driver.operations.add([new], starts_in=starts_in) == [True]
    return stored(subject, new.id)


def stored(subject: Subject, operation_id: OperationId) -> Operation:
    return subject.driver.operations.get([operation_id])[operation_id]


def perform(subject: Subject, operation: Operation, *job_ids: JobId, **fields: Any) -> Operation | None:
    """Perform the next step, on *job_ids* or on all that the operation has."""
    step = OperationStep(operation=operation, job_ids=job_ids or operation.job_ids, **fields)
    performed = subject.driver.operations.perform(step)
    return None if performed is None else performed.operation


def run(subject: Subject, kind: OperationKind, *job_ids: JobId, **fields: Any) -> Operation:
    """Add an operation on *job_ids* and perform it in one step."""
    after = perform(subject, add(subject, kind, *job_ids, **fields))
    assert after is not None
    return after


def statuses(subject: Subject, job_ids: Sequence[JobId]) -> list[Status]:
    return [subject.job(job_id).status for job_id in job_ids]


def bring_published(subject: Subject, **fields: Any) -> JobId:
    """Return a dead letter whose event is published."""
    job_id = subject.bring(Status.DEAD, **fields)
    subject.driver.maintenance.settle_outbox([Published(row.event.event_id) for row in subject.outbox(job_id)])
    return job_id


def test_an_operation_is_stored_as_it_was_requested(subject: Subject) -> None:
    now = subject.clock.now()
    requested: dict[str, Any] = {
        "id": OperationId(new_token()),
        "kind": OperationKind.REQUEUE,
        "by": "key:1 ops",
        "reason": "the bug is fixed",
        "filter": replace(FILTER, since=now - DAY, until=now),
        "options": replace(OPTIONS, scheduled_for=now + DAY),
        "matched": 10_000,
        "is_capped": True,
        "digest": "abc",
    }

    assert subject.driver.operations.add([NewOperation(**requested)], starts_in=DELAY) == [True]

    waiting = Operation(**requested, state=OperationState.WAITING, created_at=now, next_at=now + DELAY)
    assert stored(subject, requested["id"]) == waiting


def test_an_operation_is_stored_once_under_its_id(subject: Subject) -> None:
    first = add(subject, OperationKind.CANCEL, subject.insert())
    again = NewOperation(id=first.id, kind=OperationKind.PURGE, by="other", job_ids=())
    new = replace(again, id=OperationId(new_token()))

    assert subject.driver.operations.add([again, new], starts_in=NONE) == [False, True]
    assert stored(subject, first.id) == first
    assert stored(subject, new.id).kind is OperationKind.PURGE


def test_unknown_operations_are_missing_in_the_answer(subject: Subject) -> None:
    known = add(subject, OperationKind.CANCEL, subject.insert())

    assert subject.driver.operations.get([OperationId(new_token()), known.id]) == {known.id: known}


def test_operations_are_listed_newest_first_without_their_jobs(subject: Subject) -> None:
    added = []
    for _ in range(3):
        added.append(add(subject, OperationKind.CANCEL, subject.insert()))
        subject.advance(SECOND)
    newest = [replace(each, job_ids=()) for each in reversed(added)]
    operations = subject.driver.operations

    assert operations.recent(limit=10) == newest
    assert operations.recent(limit=2) == newest[:2]
    assert operations.recent(limit=2, before=newest[0].id) == newest[1:]
    assert operations.recent(limit=2, before=newest[2].id) == []


def test_unfinished_operations_are_returned_with_the_time_until_their_next_step(subject: Subject) -> None:
    late = add(subject, OperationKind.CANCEL, subject.insert(), starts_in=DELAY)
    soon = add(subject, OperationKind.CANCEL, subject.insert(), starts_in=SECOND)
    stopped = add(subject, OperationKind.CANCEL, subject.insert())
    subject.driver.operations.stop([stopped.id], by="ops")
    run(subject, OperationKind.CANCEL, subject.insert())
    subject.advance(2 * SECOND)

    unfinished = subject.driver.operations.unfinished(limit=10)

    assert unfinished == [(soon.id, -SECOND), (late.id, 3 * SECOND)]
    assert subject.driver.operations.unfinished(limit=1) == unfinished[:1]


def test_an_operation_requeues_dead_and_canceled_jobs(subject: Subject) -> None:
    dead, canceled = subject.bring(Status.DEAD), subject.bring(Status.CANCELED)
    options = OperationOptions(budget=7, delay=timedelta(minutes=1))
    subject.advance(SECOND)

    after = run(subject, OperationKind.REQUEUE, dead, canceled, reason="fixed", options=options)

    job = subject.job(dead)
    assert statuses(subject, [dead, canceled]) == [Status.PENDING, Status.PENDING]
    assert (job.life, job.max_attempts) == (2, job.attempt_count + 7)
    assert job.scheduled_for == subject.clock.now() + timedelta(minutes=1)
    requeued = subject.attempts(dead)[-1]
    assert requeued.failure is not None
    assert (requeued.worker_id, requeued.failure.message) == ("ops", "fixed")
    assert (after.done, after.refused, after.state) == (2, {}, OperationState.DONE)


def test_a_requeue_without_options_makes_jobs_due_now_with_as_many_attempts(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD, max_attempts=4)
    subject.advance(SECOND)

    run(subject, OperationKind.REQUEUE, job_id)

    job = subject.job(job_id)
    assert (job.scheduled_for, job.max_attempts - job.attempt_count) == (subject.clock.now(), 4)


def test_an_operation_cancels_waiting_jobs_and_asks_running_ones_to_stop(subject: Subject) -> None:
    running = subject.bring(Status.PROCESSING)
    waiting = subject.insert()

    after = run(subject, OperationKind.CANCEL, running, waiting)

    assert statuses(subject, [running, waiting]) == [Status.PROCESSING, Status.CANCELED]
    assert subject.job(running).cancel_requested_at == subject.clock.now()
    assert after.done == 2


def test_a_step_returns_the_jobs_that_it_has_canceled(subject: Subject) -> None:
    running, ended = subject.bring(Status.PROCESSING), subject.bring(Status.SUCCEEDED)
    waiting = subject.insert(queue="mail")
    operation = add(subject, OperationKind.CANCEL, running, ended, waiting)

    performed = subject.driver.operations.perform(OperationStep(operation=operation, job_ids=operation.job_ids))

    assert performed is not None
    assert performed.canceled == (Cancellation(job_id=waiting, type=subject.job(waiting).type, queue="mail"),)


def test_an_operation_reschedules_waiting_jobs(subject: Subject) -> None:
    job_id = subject.insert(priority=3)
    due = subject.clock.now() + DAY

    run(subject, OperationKind.RESCHEDULE, job_id, options=OperationOptions(scheduled_for=due, priority=-1))
    moved = subject.job(job_id)
    run(subject, OperationKind.RESCHEDULE, job_id, options=OperationOptions(delay=DELAY))
    sooner = subject.job(job_id)

    assert (moved.scheduled_for, moved.priority) == (due, -1)
    assert (sooner.scheduled_for, sooner.priority) == (subject.clock.now() + DELAY, -1)


def test_an_operation_purges_dead_letters_except_those_with_an_unpublished_event(subject: Subject) -> None:
    published, unpublished = bring_published(subject), subject.bring(Status.DEAD)
    subject.advance(SECOND)

    after = run(subject, OperationKind.PURGE, published, unpublished)

    assert subject.driver.inspector.get([published, unpublished]).keys() == {unpublished}
    assert (subject.attempts(published), subject.outbox(published)) == ([], [])
    assert (after.done, after.refused) == (1, {"unpublished": 1})


def test_jobs_that_do_not_exist_or_are_in_another_state_are_refused(subject: Subject) -> None:
    done = subject.bring(Status.SUCCEEDED)
    missing = subject.insert()
    subject.cancel(missing)
    subject.advance(LATEST)
    while prune(subject):
        pass
    refused = {}
    kept = subject.bring(Status.SUCCEEDED)
    waiting = subject.bring(Status.PENDING)
    for kind in OperationKind:
        wrong = waiting if kind in {OperationKind.REQUEUE, OperationKind.PURGE} else kept
        options = OperationOptions(priority=1 if kind is OperationKind.RESCHEDULE else None)
        before = subject.everything(wrong)
        after = run(subject, kind, wrong, missing, done, options=options)
        refused[kind] = (after.done, after.refused)
        assert subject.everything(wrong) == before

    assert refused == dict.fromkeys(OperationKind, (0, {"not_found": 2, "not_allowed": 1}))


def test_a_job_that_no_longer_has_a_status_of_the_filter_is_refused(subject: Subject) -> None:
    begun, waiting = subject.insert(priority=1), subject.insert(priority=2)
    wanted = JobFilter(statuses=frozenset({Status.PENDING}))
    operation = add(subject, OperationKind.CANCEL, filter=wanted)
    [claim] = subject.reserve()

    after = perform(subject, operation, begun, waiting)

    assert claim.job.id == begun
    assert after is not None
    assert (after.done, after.refused) == (1, {"not_allowed": 1})
    assert statuses(subject, [begun, waiting]) == [Status.PROCESSING, Status.CANCELED]
    assert subject.job(begun).cancel_requested_at is None


def test_jobs_that_ended_after_the_operation_was_created_are_left_out(subject: Subject) -> None:
    early = bring_published(subject)
    requeue, purge = (add(subject, kind, starts_in=NONE) for kind in (OperationKind.REQUEUE, OperationKind.PURGE))
    subject.advance(TICK)
    late = bring_published(subject)

    purged = perform(subject, replace(purge, job_ids=(late,)))
    requeued = perform(subject, replace(requeue, job_ids=(early, late)))

    assert purged is not None
    assert requeued is not None
    assert (purged.done, purged.refused) == (0, {"later": 1})
    assert (requeued.done, requeued.refused) == (1, {"later": 1})
    assert statuses(subject, [early, late]) == [Status.PENDING, Status.DEAD]


def test_jobs_created_after_the_operation_are_left_out(subject: Subject) -> None:
    cancel = add(subject, OperationKind.CANCEL)
    early = subject.insert(created_at=subject.clock.now())
    late = subject.insert(created_at=subject.clock.now() + TICK)

    after = perform(subject, replace(cancel, job_ids=(early, late)))

    assert after is not None
    assert (after.done, after.refused) == (1, {"later": 1})
    assert statuses(subject, [early, late]) == [Status.CANCELED, Status.PENDING]


def test_a_purge_leaves_out_jobs_that_died_less_than_its_age_ago(subject: Subject) -> None:
    old = bring_published(subject)
    subject.advance(TICK)
    young = bring_published(subject)
    subject.advance(DAY - TICK)

    after = run(subject, OperationKind.PURGE, old, young, options=OperationOptions(older_than=DAY))

    assert (after.done, after.refused) == (1, {"later": 1})
    assert subject.driver.inspector.get([old, young]).keys() == {young}


def test_a_step_is_performed_once(subject: Subject) -> None:
    operation = add(subject, OperationKind.REQUEUE, subject.bring(Status.DEAD), subject.bring(Status.DEAD))
    first, second = operation.job_ids

    after = perform(subject, operation, first)
    assert after is not None
    assert (after.step, after.done, after.job_ids) == (1, 1, (second,))
    before = [subject.everything(each) for each in operation.job_ids]

    assert perform(subject, operation, first) is None
    assert perform(subject, operation, second) is None
    assert [subject.everything(each) for each in operation.job_ids] == before
    assert stored(subject, operation.id) == after


def test_a_suspended_caller_does_not_cancel_a_job_again(subject: Subject) -> None:
    first, second = subject.insert(), subject.insert()
    operation = add(subject, OperationKind.CANCEL, first, second)
    perform(subject, operation, first)
    subject.requeue(first)

    assert perform(subject, operation, first) is None
    assert statuses(subject, [first, second]) == [Status.PENDING] * 2


def test_a_step_is_not_performed_before_its_time(subject: Subject) -> None:
    job_id = subject.insert()
    operation = add(subject, OperationKind.CANCEL, job_id, starts_in=DELAY)

    subject.advance(DELAY - TICK)
    assert perform(subject, operation) is None
    assert (stored(subject, operation.id), subject.job(job_id).status) == (operation, Status.PENDING)

    subject.advance(TICK)
    after = perform(subject, operation)
    assert after is not None
    assert (after.state, after.started_at, after.ended_at) == (OperationState.DONE, *2 * (subject.clock.now(),))
    assert stored(subject, operation.id) == after


def test_the_next_step_waits_for_its_pause(subject: Subject) -> None:
    jobs = [subject.insert() for _ in range(3)]
    operation = add(subject, OperationKind.CANCEL, *jobs)
    due = operation.next_at
    subject.advance(SECOND)

    on_time = perform(subject, operation, jobs[0], pause=DELAY, catch_up=DAY)
    assert on_time is not None
    assert on_time.next_at == due + DELAY
    subject.advance(DAY)
    late = perform(subject, on_time, jobs[1], pause=DELAY, catch_up=SECOND)
    assert late is not None
    assert late.next_at == subject.clock.now() - SECOND + DELAY
    assert perform(subject, late, jobs[2]) is None


def test_a_search_continues_where_the_last_step_ended(subject: Subject) -> None:
    jobs = sorted(subject.insert() for _ in range(3))
    operation = add(subject, OperationKind.CANCEL, filter=JobFilter(queue="default"))

    first = perform(subject, operation, jobs[2], cursor=jobs[2], is_searched=False)
    assert first is not None
    assert (first.state, first.cursor, first.is_searched) == (OperationState.RUNNING, jobs[2], False)
    second = perform(subject, stored(subject, operation.id), jobs[1], jobs[0], cursor=None, is_searched=True)
    assert second is not None
    assert (second.state, second.done, second.step) == (OperationState.DONE, 3, 2)
    assert statuses(subject, jobs) == [Status.CANCELED] * 3


def test_counts_of_steps_add_up(subject: Subject) -> None:
    missing = subject.bring(Status.CANCELED)
    subject.advance(LATEST)
    while prune(subject):
        pass
    operation = add(subject, OperationKind.CANCEL, filter=JobFilter())

    first = perform(subject, operation, missing, subject.insert(), is_searched=False)
    assert first is not None
    last = perform(subject, stored(subject, operation.id), subject.insert(), missing, subject.bring(Status.CANCELED))

    assert last is not None
    assert (last.done, last.refused) == (2, {"not_found": 2, "not_allowed": 1})
    assert stored(subject, operation.id) == last


def test_a_stopped_operation_changes_no_more_jobs(subject: Subject) -> None:
    jobs = [subject.insert(), subject.insert()]
    operation = add(subject, OperationKind.CANCEL, *jobs)
    after = perform(subject, operation, jobs[0])
    assert after is not None
    subject.advance(SECOND)

    assert subject.driver.operations.stop([operation.id], by="ana") == [True]

    stopped = stored(subject, operation.id)
    assert perform(subject, after) is None
    assert perform(subject, stopped) is None
    assert statuses(subject, jobs) == [Status.CANCELED, Status.PENDING]
    assert (stopped.state, stopped.ended_at) == (OperationState.STOPPED, subject.clock.now())
    assert (stopped.stopped_by, stopped.done) == ("ana", 1)


def test_only_an_operation_that_has_not_ended_is_stopped(subject: Subject) -> None:
    waiting = add(subject, OperationKind.CANCEL, subject.insert(), starts_in=DELAY)
    done = run(subject, OperationKind.CANCEL, subject.insert())
    stop = subject.driver.operations.stop

    assert stop([waiting.id, done.id, OperationId(new_token())], by="ana") == [True, False, False]
    assert stop([waiting.id], by="bob") == [False]
    assert (stored(subject, done.id), stored(subject, waiting.id).stopped_by) == (done, "ana")
    assert stored(subject, waiting.id).started_at is None


def test_ended_operations_are_pruned_by_their_age(subject: Subject) -> None:
    unfinished = add(subject, OperationKind.CANCEL, subject.insert(), starts_in=10 * DAY)
    ended = [run(subject, OperationKind.CANCEL, subject.insert()) for _ in range(2)]
    subject.advance(DAY)
    young = run(subject, OperationKind.CANCEL, subject.insert())
    prune = subject.driver.operations.prune

    assert prune(older_than=DAY + TICK, limit=10) == 0
    assert prune(older_than=DAY, limit=1) == 1
    assert prune(older_than=DAY, limit=10) == 1
    ids = [unfinished.id, young.id, *(each.id for each in ended)]
    assert subject.driver.operations.get(ids).keys() == {unfinished.id, young.id}


def test_a_worker_is_woken_by_the_jobs_of_an_operation(subject: Subject) -> None:
    dead = subject.bring(Status.DEAD)
    running = subject.bring(Status.PROCESSING)
    listener = subject.driver.listen(["default"], worker="worker")
    try:
        listener.wait(NONE)  # what came before
        run(subject, OperationKind.CANCEL, running)
        canceled = listener.wait(_TIMEOUT)
        run(subject, OperationKind.REQUEUE, dead)
        requeued = listener.wait(_TIMEOUT)
    finally:
        listener.close()

    assert canceled
    assert requeued
