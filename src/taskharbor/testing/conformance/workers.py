"""Records of workers, live and past, what was lost with them, and their calls that were refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import AttemptOutcome, WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Refusal
from taskharbor.core.states import Event, Status
from taskharbor.testing.conformance.retention import LATEST, prune
from taskharbor.testing.conformance.subject import LEASE, LONG_AGO, TICK, Subject

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim

_MINUTE: Final = timedelta(minutes=1)
_WEEK: Final = timedelta(days=7)


def test_a_worker_record_holds_its_last_heartbeat_at_the_stores_time(subject: Subject) -> None:
    subject.driver.maintenance.record_worker(_worker("w1", pid=1))
    subject.advance(_MINUTE)
    newest = _worker("w1", pid=2, queues=("mail",), types=(), lost_slots=2, schedules=("a",), seen_at=LONG_AGO)
    newest = replace(newest, busy_slots=3, version="4f2c", library="1.0")

    subject.driver.maintenance.record_worker(newest)

    assert subject.driver.inspector.workers() == [replace(newest, seen_at=subject.clock.now())]


def test_only_the_named_worker_is_removed(subject: Subject) -> None:
    for worker_id in ("one", "two"):
        subject.driver.maintenance.record_worker(_worker(worker_id))

    for worker_id in ("one", "one", "never recorded"):
        subject.driver.maintenance.remove_worker(worker_id)

    assert [worker.id for worker in subject.driver.inspector.workers()] == ["two"]


def test_a_worker_without_heartbeats_for_the_period_is_pruned(subject: Subject) -> None:
    subject.driver.maintenance.record_worker(_worker("unseen"))
    subject.advance(TICK)
    subject.driver.maintenance.record_worker(_worker("fresh"))
    subject.advance(_MINUTE - TICK)

    count = subject.driver.maintenance.prune_workers(unseen_for=_MINUTE, keep=_WEEK)

    assert count == 1
    assert [worker.id for worker in subject.driver.inspector.workers()] == ["fresh"]


def test_a_stopped_worker_is_a_past_one_with_the_time_of_its_stop(subject: Subject) -> None:
    worker = _worker("one", busy_slots=3, lost_slots=1, version="4f2c", library="1.0", schedules=("a",))
    subject.driver.maintenance.record_worker(worker)
    seen_at = subject.clock.now()
    subject.advance(TICK)

    subject.driver.maintenance.remove_worker("one")

    assert _past(subject) == [replace(worker, seen_at=seen_at, stopped_at=subject.clock.now())]


def test_an_unseen_worker_is_a_past_one_that_did_not_stop(subject: Subject) -> None:
    worker = _worker("one", busy_slots=3, version="4f2c")
    subject.driver.maintenance.record_worker(worker)
    seen_at = subject.clock.now()
    subject.advance(_MINUTE)

    subject.driver.maintenance.prune_workers(unseen_for=_MINUTE, keep=_WEEK)

    assert _past(subject) == [replace(worker, seen_at=seen_at, stopped_at=None)]


def test_past_workers_are_listed_by_id_and_removed_after_their_retention(subject: Subject) -> None:
    for worker_id in ("w2", "w1"):
        subject.driver.maintenance.record_worker(_worker(worker_id))
        subject.driver.maintenance.remove_worker(worker_id)
    subject.advance(_WEEK - TICK)
    subject.driver.maintenance.prune_workers(unseen_for=_MINUTE, keep=_WEEK)
    kept = [worker.id for worker in _past(subject)]
    subject.advance(TICK)

    count = subject.driver.maintenance.prune_workers(unseen_for=_MINUTE, keep=_WEEK)

    assert (kept, count, _past(subject)) == (["w1", "w2"], 0, [])


def test_a_worker_that_comes_back_is_no_past_one(subject: Subject) -> None:
    subject.driver.maintenance.record_worker(_worker("one", pid=1))
    subject.driver.maintenance.remove_worker("one")
    subject.driver.maintenance.record_worker(_worker("one", pid=2))
    alive = [worker.pid for worker in subject.driver.inspector.workers()], _past(subject)

    subject.advance(_MINUTE)
    subject.driver.maintenance.prune_workers(unseen_for=_MINUTE, keep=_WEEK)

    assert alive == ([2], [])
    assert [(worker.pid, worker.stopped_at) for worker in _past(subject)] == [(2, None)]


def test_a_lease_ends_whatever_became_of_the_record_of_its_worker(subject: Subject) -> None:
    names = ("pruned", "past", "restarted under its name", "never recorded")
    for name in names:
        subject.insert()
        subject.take(worker=name)
    for name in names[:3]:
        subject.driver.maintenance.record_worker(_worker(name))
        subject.advance(TICK)
    subject.advance(LEASE)
    subject.driver.maintenance.prune_workers(unseen_for=LEASE, keep=LEASE + 3 * TICK)
    subject.driver.maintenance.record_worker(_worker(names[2], pid=2))

    expired = subject.driver.maintenance.expire(limit=10)

    recorded = subject.driver.inspector.workers(), subject.driver.inspector.past_workers()
    assert [[worker.id for worker in workers] for workers in recorded] == [[names[2]], [names[1]]]
    assert len(expired) == len(names)


def test_the_attempts_lost_with_a_worker_are_listed_newest_first(subject: Subject) -> None:
    for worker in ("killed", "another", "killed", "killed"):
        subject.insert()
        subject.take(worker=worker)
        subject.advance(LEASE)
        subject.driver.maintenance.expire(limit=1)
        [job] = subject.driver.inspector.next_up("default", limit=1)
        subject.cancel(job.id)

    attempts = subject.driver.inspector.lost_attempts("killed", limit=2)

    assert [(each.worker_id, each.outcome) for each in attempts] == [("killed", AttemptOutcome.LOST)] * 2
    assert attempts[0].ended_at > attempts[1].ended_at
    assert attempts[0].job_id > attempts[1].job_id
    assert attempts == [each for job in attempts for each in subject.attempts(job.job_id)]
    assert len(subject.driver.inspector.lost_attempts("killed", limit=10)) == 3


def test_attempts_that_ended_otherwise_are_not_lost(subject: Subject) -> None:
    subject.bring(Status.FAILED)
    subject.cancel(subject.insert())

    assert subject.driver.inspector.lost_attempts("worker", limit=10) == []


def test_a_refusal_is_recorded_once_per_attempt_at_the_stores_time(subject: Subject) -> None:
    first, second = _lose(subject), _lose(subject, "mail")
    subject.driver.maintenance.record_refusals([_refusal(first), _refusal(second, Event.EXTEND)])
    at = subject.clock.now()
    subject.advance(TICK)

    subject.driver.maintenance.record_refusals([_refusal(first, Event.FAIL)])

    assert _refusals(subject, second.job.id, first.job.id) == [
        replace(_refusal(second, Event.EXTEND), at=at),
        replace(_refusal(first), at=at),
    ]


def test_the_refusals_of_one_job_are_listed_oldest_first(subject: Subject) -> None:
    claims = []
    job_id = subject.insert(max_attempts=9)
    for _ in range(3):
        claims.append(subject.take())
        subject.advance(LEASE)
        subject.driver.maintenance.record_refusals([_refusal(claims[-1])])

    assert [each.token for each in _refusals(subject, job_id)] == [claim.lease.token for claim in claims]
    assert _refusals(subject) == []


def test_a_refusal_without_its_attempt_is_not_recorded(subject: Subject) -> None:
    succeeded = subject.bring(Status.SUCCEEDED)
    lost = _lose(subject)
    subject.take()
    unknown = [
        Refusal(job_id=new_job_id(), token=lost.lease.token, event=Event.ACK),
        Refusal(job_id=succeeded, token=new_token(), event=Event.ACK),
        Refusal(job_id=lost.job.id, token=new_token(), event=Event.ACK),
    ]

    subject.driver.maintenance.record_refusals(unknown)
    subject.driver.maintenance.record_refusals([])

    assert _refusals(subject, *(each.job_id for each in unknown)) == []


def test_refusals_are_pruned_with_their_job_only(subject: Subject) -> None:
    lost = _lose(subject)
    subject.settle(subject.take(), Outcome.ack())
    subject.driver.maintenance.record_refusals([_refusal(lost)])
    subject.advance(LATEST)
    kept = _lose(subject)
    subject.driver.maintenance.record_refusals([_refusal(kept)])

    prune(subject)

    assert [each.job_id for each in _refusals(subject, lost.job.id, kept.job.id)] == [kept.job.id]


def _lose(subject: Subject, queue: str = "default") -> Claim:
    """Insert a job whose lease is then lost; it waits again."""
    subject.insert(queue=queue)
    [claim] = subject.reserve(queue)
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=1)
    return claim


def _refusal(claim: Claim, event: Event = Event.ACK) -> Refusal:
    return Refusal(job_id=claim.job.id, token=claim.lease.token, event=event)


def _refusals(subject: Subject, *job_ids: JobId) -> list[Refusal]:
    return subject.driver.inspector.refusals(job_ids)


def _past(subject: Subject) -> list[WorkerRecord]:
    return subject.driver.inspector.past_workers()


def _worker(worker_id: str, **fields: Any) -> WorkerRecord:
    defaults: dict[str, Any] = {
        "host": "localhost",
        "pid": 1,
        "queues": ("default",),
        "types": ("greet",),
        "concurrency": 4,
        "started_at": LONG_AGO,
    }
    return WorkerRecord(id=worker_id, **defaults | fields)
