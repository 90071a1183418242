"""Brief attempts that are sent to a child before the one before them has ended."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.states import Event, Status
from taskharbor.runtime import seconds_since_boot
from taskharbor.worker.execution import StopReason
from taskharbor.worker.isolation.child import BRIEF_SECONDS, MAX_QUEUED, Child, IsolatedCall
from taskharbor.worker.isolation.errors import ChildDied, ChildNotStarted
from taskharbor.worker.isolation.job_queue import MAX_PACKET_BYTES, JobQueue, next_packet
from taskharbor.worker.isolation.wire import Wire, parsed_frame
from tests.support import isolated_app as app
from tests.support.isolation_rig import new_execution
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.worker.execution import Execution
    from taskharbor.worker.isolation.child import ChildReport
    from tests.support.isolation_rig import IsolationRig

SUCCEEDED: Final = {
    "ended": {"event": "ack"},
    "has_result": False,
    "is_stopped": False,
    "rss": 0,
    "leftovers": 0,
    "is_waiting": False,
}
KILLED: Final = {"code": -9, "peak": 0, "is_killed": False, "is_over_memory": False}


class ProcessRig:
    """A child whose process is the test itself: it takes jobs, and sends frames."""

    def __init__(self) -> None:
        link, their_link = socket.socketpair()
        supervision, their_supervision = socket.socketpair()
        output, self.their_output = os.pipe()
        self.jobs = JobQueue()
        self.child = Child(link, supervision, output, self.jobs)
        self.child.max_jobs, self.child.last_seconds = 100, 0.0
        self.link, self.supervision = Wire(their_link), Wire(their_supervision)
        self.returned: list[Execution] = []
        self.ends_when_returned = False

    def queue(self, count: int) -> list[IsolatedCall]:
        calls = [IsolatedCall(new_execution(), 0, None, lambda *_: None) for _ in range(count)]
        assert all(self.child.queue(call) for call in calls)
        return calls

    def take(self) -> str:
        """Take the next job as the process does; return its id."""
        values: Sequence[Any] = parsed_frame(next_packet(self.jobs.exit))[0]["run"]
        return str(values[0])

    def end(self) -> None:
        self.link.send(SUCCEEDED)

    def run(self, call: IsolatedCall) -> ChildReport:
        return self.child.run(call, self._on_returned)

    def _on_returned(self, executions: Sequence[Execution]) -> None:
        self.returned += executions
        if self.ends_when_returned:
            self.take_all()
            self.end()

    def take_all(self) -> list[str]:
        taken = []
        while packet := next_packet(self.jobs.exit):
            taken.append(str(parsed_frame(packet)[0]["run"][0]))
        return taken

    def close(self) -> None:
        self.child.close()
        self.link.close()
        self.supervision.close()
        os.close(self.their_output)


@pytest.fixture
def process() -> Iterator[ProcessRig]:
    with closing(ProcessRig()) as rig:
        yield rig


@contextmanager
def received(wire: Wire) -> Iterator[list[str]]:
    """Collect the names of the frames that arrive in the block."""
    names: list[str] = []
    yield names
    wire.socket.settimeout(0)
    try:
        wire.pump()
    except BlockingIOError:
        return
    while (frame := wire.next()) is not None:
        names.extend(frame[0])


def ids(calls: Sequence[IsolatedCall]) -> list[str]:
    return [call.execution.claim.job.id.hex for call in calls]


def test_queued_attempts_run_in_their_order(process: ProcessRig) -> None:
    calls = process.queue(3)

    for call in calls:
        assert [process.take()] == ids([call])
        process.end()
        report = process.run(call)
        assert report.outcome is not None

    assert process.returned == []
    assert process.child.is_usable


def test_attempts_behind_one_that_is_not_brief_are_returned(process: ProcessRig) -> None:
    first, *others = process.queue(3)
    process.take()
    process.ends_when_returned = True
    gives_up = threading.Timer(LIMIT_SECONDS, process.end)
    gives_up.start()

    process.run(first)

    gives_up.cancel()
    assert process.returned == [call.execution for call in others]
    assert process.child.last_seconds >= BRIEF_SECONDS
    assert process.child.free_places == 0


def test_an_attempt_that_waits_for_a_slow_process_is_not_returned_itself(process: ProcessRig) -> None:
    first, *others = process.queue(3)
    taken: list[str] = []

    def end_later(executions: Sequence[Execution]) -> None:
        process.returned += executions
        taken.extend(process.take_all())
        process.end()

    process.child.run(first, end_later)

    assert taken == ids([first])
    assert process.returned == [call.execution for call in others]


@pytest.mark.parametrize("reason", StopReason)
def test_a_stop_of_a_running_attempt_returns_those_behind_it(process: ProcessRig, reason: StopReason) -> None:
    first, *others = process.queue(3)
    process.take()
    first.execution.stop(reason)
    process.end()

    with received(process.link) as frames, received(process.supervision) as commands:
        process.run(first)

    assert process.returned == [call.execution for call in others]
    assert (frames, commands) == (["stop"], ["stop"])
    assert not process.child.is_usable


@pytest.mark.parametrize("reason", StopReason)
def test_a_stop_of_an_attempt_that_has_ended_does_not_harm_the_next(process: ProcessRig, reason: StopReason) -> None:
    first, second, third = process.queue(3)
    process.take()
    process.end()
    process.take()
    first.execution.stop(reason)

    with received(process.link) as frames, received(process.supervision) as commands:
        process.run(first)
        process.end()
        process.run(second)

    assert process.returned == [third.execution]
    assert (frames, commands) == ([], [])
    assert process.child.is_usable


def test_a_stop_before_an_attempt_was_taken_lets_it_not_begin(process: ProcessRig) -> None:
    [first, second] = process.queue(2)
    first.execution.stop(StopReason.TIMEOUT)
    process.supervision.send(KILLED)

    with received(process.link) as frames, pytest.raises(ChildDied):
        process.run(first)

    assert process.take_all() == []
    assert process.returned == [second.execution]
    assert frames == []


def test_the_death_of_an_idle_process_fails_no_attempt(process: ProcessRig) -> None:
    process.child.jobs = 1
    first, second = process.queue(2)
    process.supervision.send(KILLED)
    process.link.close()

    with pytest.raises(ChildNotStarted):
        process.run(first)

    assert process.returned == [second.execution]
    assert process.take_all() == []


def test_the_death_of_a_new_process_fails_the_attempt_that_it_was_started_for(process: ProcessRig) -> None:
    [first] = process.queue(1)
    process.supervision.send(KILLED)
    process.link.close()

    with pytest.raises(ChildDied):
        process.run(first)


def test_attempts_behind_the_one_that_kills_its_process_are_returned(process: ProcessRig) -> None:
    first, *others = process.queue(3)
    process.take()
    process.supervision.send(KILLED)
    process.link.close()

    with pytest.raises(ChildDied):
        process.run(first)

    assert process.returned == [call.execution for call in others]


def test_a_process_that_dies_in_the_second_attempt_fails_only_that(process: ProcessRig) -> None:
    first, second, third = process.queue(3)
    process.take()
    process.end()
    process.take()
    process.supervision.send(KILLED)
    process.link.close()

    assert process.run(first).outcome is not None
    with pytest.raises(ChildDied):
        process.run(second)

    assert process.returned == [third.execution]


def test_no_more_attempts_are_queued_than_a_child_may_run(process: ProcessRig) -> None:
    assert process.child.free_places == MAX_QUEUED
    process.child.jobs = process.child.max_jobs - 3
    assert process.child.free_places == 3
    process.child.is_measured = True
    assert process.child.free_places == 0


def test_an_attempt_with_a_large_payload_is_not_queued(process: ProcessRig) -> None:
    execution = new_execution(payload=b"x" * MAX_PACKET_BYTES)

    assert not process.child.queue(IsolatedCall(execution, 0, None, lambda *_: None))


def test_brief_attempts_do_not_wait_for_one_that_hangs(rig: IsolationRig) -> None:
    before = [app.pid_of_child.enqueue() for _ in range(200)]
    hanging = app.wait_for_stop.enqueue(str(rig.folder))
    after = [app.pid_of_child.enqueue() for _ in range(200)]

    with rig.running(concurrency=2):
        wait_until(lambda: all(handle.status() is Status.SUCCEEDED for handle in (*before, *after)))
        assert hanging.status() is Status.PROCESSING

    assert {handle.job().attempt_count for handle in (*before, *after)} == {1}


def test_output_belongs_to_the_attempt_that_has_written_it(rig: IsolationRig, caplog: pytest.LogCaptureFixture) -> None:
    handles = [app.print_number.enqueue(number) for number in range(200)]

    with caplog.at_level("INFO"):
        rig.drain(concurrency=1, capture_logs=True)

    logs = {log.job_id: [line.text for line in log.lines] for log in _logs([handle.id for handle in handles])}
    assert [logs[handle.id] for handle in handles] == [[f"number {number}"] for number in range(200)]


def test_output_after_the_end_of_an_attempt_is_that_of_the_next(
    process: ProcessRig, caplog: pytest.LogCaptureFixture
) -> None:
    def end_when_read() -> None:
        wait_until(lambda: bool(caplog.messages))
        process.end()

    first, second = process.queue(2)
    process.take()
    process.end()
    process.take()
    os.write(process.their_output, b"of the second\n")
    with caplog.at_level("INFO"):
        process.run(first)
        after_first = list(caplog.messages)
        ender = threading.Thread(target=end_when_read)
        ender.start()
        process.run(second)
        ender.join(LIMIT_SECONDS)

    assert (after_first, caplog.messages) == ([], ["of the second"])


def _logs(job_ids: Sequence[Any]) -> Sequence[Any]:
    return app.harbor.driver.attempt_logs.read(job_ids)


@pytest.mark.parametrize(("left", "event"), [(-1.0, Event.RELEASE), (60.0, Event.ACK)])
def test_an_attempt_whose_lease_has_ended_is_not_begun_by_a_child(rig: IsolationRig, left: float, event: Event) -> None:
    with rig.running() as worker:
        child = worker.isolation.children.acquire()  # as of a worker that was suspended after it had sent the attempt
        execution = new_execution(type=app.pid_of_child.type, payload=b"{}", ends_at=seconds_since_boot() + left)
        report = child.run(IsolatedCall(execution, 0, None, lambda *_: None), lambda _: None)
        worker.isolation.children.release(child)

    assert report.outcome is not None
    assert report.outcome.event is event
