"""The recorder alone, without a worker around it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import timedelta
from itertools import count, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import Client, JobRequest, MemoryDriver, Status
from taskharbor.core.errors import OutcomeNotStorable, StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement, Skipped
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker.execution import Execution
from taskharbor.worker.recorder import FIRST_RETRY_SECONDS, IDLE_PAUSE, MAX_RETRY_SECONDS, Recorder
from taskharbor.worker.statistics import AttemptStatistics
from tests.support.stages import StageRecorder, slots_without_prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from taskharbor.core.ids import JobId

MINUTE: Final = timedelta(minutes=1)


class ManualRuntime(ThreadRuntime):
    """A runtime whose monotonic clock a test advances."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


class Store(MemoryDriver):
    """A store whose settle a test changes: *meddle* gets each settlement, and may raise or return its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[JobId]] = []
        self.meddle: Callable[[Settlement], Any] = lambda _settlement: None

    def settle(self, settlements: Sequence[Settlement]) -> list[Any]:
        self.calls.append([each.lease.job_id for each in settlements])
        changed = {each.lease.job_id: self.meddle(each) for each in settlements}
        kept = [each for each in settlements if changed[each.lease.job_id] is None]
        answers = iter(super().settle(kept))
        return [
            next(answers) if changed[each.lease.job_id] is None else changed[each.lease.job_id] for each in settlements
        ]


class Rig:
    """A recorder with *jobs* running, the ticks of its loop, and what it reported."""

    def __init__(self, *, jobs: int = 1, ends_at: float = inf) -> None:
        self.store, self.runtime = Store(), ManualRuntime()
        client = Client(self.store)
        self.ids = [client.enqueue(JobRequest(type="run")).id for _ in range(jobs)]
        claims = self.store.reserve(
            "default", token=new_token(), worker="w", lease=MINUTE, limit=jobs, overdue_after=MINUTE
        )
        by_id = {claim.job.id: Execution(claim, ends_at=ends_at, times_out_at=None) for claim in claims}
        self.executions = [by_id[job_id] for job_id in self.ids]
        self.slots = slots_without_prefetch(self.runtime, concurrency=jobs, queues={"default": jobs})
        self.slots.fill("default", self.slots.acquire("default", jobs), self.executions)
        self.stages = StageRecorder()
        self.recorder = Recorder(
            self.runtime,
            self.store,
            self.slots,
            self.stages.loops,
            self.stages.hooks,
            statistics=AttemptStatistics(self.runtime),
        )

    @property
    def reported(self) -> list[tuple[JobId, Outcome | None, Any]]:
        return [(execution.claim.job.id, outcome, answer) for execution, outcome, answer in self.stages.answers]

    def end(self, *numbers: int, outcome: Outcome | None = None) -> None:
        for number in numbers:
            self.recorder.put(self.executions[number], outcome or Outcome.ack())

    def run(self, seconds: float) -> None:
        """Tick as a loop does, for *seconds* of the manual clock."""
        until = self.runtime.seconds + seconds
        while True:
            pause = self.recorder.tick().total_seconds()
            if self.runtime.seconds + pause > until:
                self.runtime.seconds = until
                return
            self.runtime.seconds += max(pause, 0.001)

    def statuses(self) -> list[Status]:
        jobs = self.store.inspector.get(self.ids)
        return [jobs[job_id].status for job_id in self.ids]


def test_only_the_first_outcome_of_an_attempt_is_recorded_and_reported() -> None:
    rig = Rig()
    release, ack = Outcome.release(), Outcome.ack()

    rig.recorder.put(rig.executions[0], release)
    rig.recorder.put(rig.executions[0], ack)
    rig.recorder.tick()
    rig.recorder.tick()

    assert rig.stages.woken == ["recorder"]
    assert [outcome for _, outcome, _ in rig.reported] == [release]
    assert rig.statuses() == [Status.PENDING]


@pytest.mark.parametrize(("result", "sizes"), [(None, [1_000, 200]), (b"1", [500, 500, 200])])
def test_outcomes_are_settled_by_the_thousand_and_with_results_by_the_500(
    result: bytes | None, sizes: list[int]
) -> None:
    rig = Rig(jobs=1_200)

    rig.end(*range(1_200), outcome=Outcome.ack(result))
    rig.run(1.0)

    assert [len(call) for call in rig.store.calls] == sizes
    assert [job_id for call in rig.store.calls for job_id in call] == rig.ids
    assert set(rig.statuses()) == {Status.SUCCEEDED}


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_driver_that_answers_too_few_or_too_many_outcomes_removes_no_execution(
    answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(jobs=2)
    settled = Settled(rig.ids[0], Status.SUCCEEDED)
    monkeypatch.setattr(rig.store, "settle", lambda _settlements: [settled] * answers)

    rig.end(0, 1)
    with pytest.raises(ValueError, match="zip"):
        rig.recorder.tick()

    assert len(rig.slots) == 2


@contextmanager
def interrupted(function: Any, moment: int, interrupt: Callable[[], None]) -> Iterator[None]:
    """Call *interrupt* before the bytecode instruction number *moment* of *function*, as a switch of threads would."""
    instructions = count()

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(instructions) == moment:
            interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_an_outcome_is_recorded_whenever_the_recorder_runs_during_its_put(waiting: int) -> None:
    def run_until_idle() -> None:
        interruptions.append(moment)
        rig.stages.woken.clear()  # as a loop does before its tick
        while rig.recorder.tick() != IDLE_PAUSE:
            pass

    interruptions = list[int]()
    for moment in count():
        rig = Rig(jobs=waiting + 1)
        rig.end(*range(waiting))
        with interrupted(Recorder.put, moment, run_until_idle):
            rig.end(waiting)
        if moment not in interruptions:
            break
        if rig.stages.woken:
            run_until_idle()
        assert rig.statuses() == [Status.SUCCEEDED] * (waiting + 1), f"lost by a switch before instruction {moment}"

    assert len(interruptions) > 50


@pytest.mark.parametrize("error", [RuntimeError("58030"), StoreUnavailable("away"), KeyError("PENDING")])
def test_an_error_of_the_call_never_buries_and_the_outcome_is_recorded_when_it_ends(error: Exception) -> None:
    rig = Rig(jobs=3)

    def fail(_settlement: Settlement) -> None:
        raise error

    rig.store.meddle = fail
    rig.end(0, 1, 2)
    rig.run(20.0)
    assert (rig.statuses(), rig.reported, len(rig.slots)) == ([Status.PROCESSING] * 3, [], 3)
    rig.store.meddle = lambda _settlement: None
    rig.run(2 * MAX_RETRY_SECONDS)

    assert rig.statuses() == [Status.SUCCEEDED] * 3
    assert [answer for _, _, answer in rig.reported] == [
        Settled(job_id, Status.SUCCEEDED) for job_id, _, _ in rig.reported
    ]
    assert len(rig.slots) == 0


def test_a_failing_store_is_asked_again_at_growing_intervals() -> None:
    rig, called_at = Rig(), list[float]()

    def fail(_settlement: Settlement) -> None:
        called_at.append(rig.runtime.seconds)
        raise RuntimeError("58030")

    rig.store.meddle = fail
    rig.end(0)
    rig.run(10.0)

    pauses = [after - before for before, after in pairwise(called_at)]
    assert pauses[0] == pytest.approx(FIRST_RETRY_SECONDS)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(MAX_RETRY_SECONDS)


def test_an_outcome_that_is_not_recorded_by_the_end_of_its_lease_is_given_up() -> None:
    rig = Rig(ends_at=1_003.0)

    def fail(_settlement: Settlement) -> None:
        raise RuntimeError("58030")

    rig.store.meddle = fail
    rig.end(0)
    rig.run(2.5)
    assert (rig.reported, len(rig.slots)) == ([], 1)
    rig.run(2.0)

    assert [(job_id, answer) for job_id, _, answer in rig.reported] == [(rig.ids[0], None)]
    assert (rig.statuses(), len(rig.slots)) == ([Status.PROCESSING], 0)


def test_a_locked_row_is_retried_separately_and_delays_no_other_outcome() -> None:
    rig = Rig(jobs=5)
    locked = rig.ids[1]
    rig.store.meddle = lambda each: Skipped(each.lease) if each.lease.job_id == locked else None

    rig.end(0, 1, 2)
    rig.recorder.tick()
    assert [job_id for job_id, _, _ in rig.reported] == [rig.ids[0], rig.ids[2]]
    rig.end(3, 4)
    rig.run(0.0)
    assert {job_id for job_id, _, _ in rig.reported} == {*rig.ids} - {locked}
    rig.run(3.0)
    rig.store.meddle = lambda _settlement: None
    rig.run(2 * MAX_RETRY_SECONDS)

    assert rig.statuses() == [Status.SUCCEEDED] * 5
    assert [call for call in rig.store.calls[1:] if locked in call and len(call) > 1] == []
    assert len(rig.store.calls) < 15, "a locked row is retried too often"


def test_a_locked_row_does_not_delay_the_freeing_of_other_slots() -> None:
    rig, free = Rig(jobs=3), list[int]()
    locked = rig.ids[0]

    def skip(each: Settlement) -> Any:
        free.append(rig.slots.acquire("default", 3))
        rig.slots.fill("default", free[-1], [])
        return Skipped(each.lease) if each.lease.job_id == locked else None

    rig.store.meddle = skip
    rig.end(0)
    rig.recorder.tick()
    rig.end(1)
    rig.recorder.tick()

    assert free == [1, 2]


def test_an_outcome_that_the_store_cannot_hold_buries_its_job_and_no_other() -> None:
    rig = Rig(jobs=3)

    def reject(each: Settlement) -> Any:
        is_bad = each.lease.job_id == rig.ids[1] and each.outcome.result is not None
        return OutcomeNotStorable(each.lease.job_id, "NumericValueOutOfRange") if is_bad else None

    rig.store.meddle = reject
    rig.end(0, 1, 2, outcome=Outcome.ack(b"1"))
    rig.run(1.0)

    assert rig.statuses() == [Status.SUCCEEDED, Status.DEAD, Status.SUCCEEDED]
    dead = rig.store.inspector.get([rig.ids[1]])[rig.ids[1]]
    assert dead.dead_reason == "its outcome cannot be recorded: NumericValueOutOfRange"
    assert len(rig.reported) == 3


def test_a_burial_that_the_store_cannot_hold_either_is_tried_until_the_lease_ends() -> None:
    rig = Rig(ends_at=1_010.0)
    rig.store.meddle = lambda each: OutcomeNotStorable(each.lease.job_id, "CheckViolation")
    rig.end(0)
    rig.run(12.0)

    assert [answer for _, _, answer in rig.reported] == [None]
    assert len(rig.store.calls) < 20


def test_an_outcome_that_breaks_every_call_delays_the_others_only_briefly() -> None:
    rig = Rig(jobs=16)

    def fail_on_one(each: Settlement) -> None:
        if each.lease.job_id == rig.ids[5]:
            raise RuntimeError("unmapped")

    rig.store.meddle = fail_on_one
    rig.end(*range(15))
    rig.run(5.0)
    assert [status for n, status in enumerate(rig.statuses()[:15]) if n != 5] == [Status.SUCCEEDED] * 14
    calls = len(rig.store.calls)
    rig.end(15)
    rig.run(0.0)

    assert rig.statuses()[15] is Status.SUCCEEDED
    assert rig.store.calls[calls:] == [[rig.ids[15]]]


def test_no_outcome_is_lost_when_a_call_tries_to_end_the_thread() -> None:
    rig = Rig(jobs=2)

    def leave(_settlement: Settlement) -> None:
        raise SystemExit

    rig.store.meddle = leave
    rig.end(0, 1)
    with pytest.raises(SystemExit):
        rig.recorder.tick()
    rig.store.meddle = lambda _settlement: None
    rig.run(1.0)

    assert rig.statuses() == [Status.SUCCEEDED] * 2
