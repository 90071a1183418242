"""How the loops, the event loop and the store of a service are judged."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import StoreUnavailable
from taskharbor.health.checks import (
    STORE_ANSWER_SECONDS,
    STORE_ANSWER_VALID_SECONDS,
    Check,
    ServiceHealth,
    StoreProbe,
    WatchedService,
    is_passed,
)
from taskharbor.runtime import ThreadRuntime
from taskharbor.service import ServiceLoops
from tests.support.async_observer import AsyncObservations
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STUCK_AFTER: Final = timedelta(seconds=60)


class Rig(ThreadRuntime):
    """A service whose time is set and whose loops tick when a test says so."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self.time = 1_000.0
        self.ticks: dict[str, Callable[[], timedelta | None]] = {}
        self.loops = ServiceLoops(self)
        self.health = ServiceHealth(stuck_after=STUCK_AFTER, monotonic=self.monotonic)
        self.is_stopping = False
        self.problems: dict[str, str] = {}
        self.blocked_seconds = 0.0
        self.questions = 0

    def monotonic(self) -> float:
        return self.time

    def serve(self, name: str, tick: Callable[[], timedelta | None], _between: Any = None) -> Any:
        self.ticks[name] = tick

    def start(self) -> None:
        self.loops.start()
        self.health.watch(
            WatchedService(
                loops=self.loops,
                ask_store=self._ask,
                is_stopping=lambda: self.is_stopping,
                problems=lambda: self.problems,
                event_loop_wait=lambda: self.blocked_seconds,
            )
        )

    def _ask(self) -> None:
        self.questions += 1

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in which the health thread runs every second."""
        end = self.time + seconds
        while self.time < end:
            self.time = min(self.time + 1, end)
            self.health.beat()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def failed(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.problem for check in checks if check.problem}


def test_a_tick_that_runs_for_too_long_is_stuck_until_it_returns(rig: Rig) -> None:
    seen = []

    def tick() -> timedelta:
        for seconds in (60, 1):
            rig.pass_time(seconds)
            seen.append(failed(rig.health.live()))
        return timedelta(seconds=1)

    rig.loops.add("source", tick)
    rig.start()
    rig.ticks["source"]()

    assert seen == [{}, {"loop:source": "its tick has run for 61 s"}]
    assert is_passed(rig.health.live())


def test_a_tick_may_take_as_long_as_by_design_in_addition(rig: Rig) -> None:
    seen = []

    def tick() -> timedelta:
        for seconds in (90, 1):
            rig.pass_time(seconds)
            seen.append(is_passed(rig.health.live()))
        return timedelta(seconds=1)

    rig.loops.add("listener", tick, may_take=timedelta(seconds=30))
    rig.start()
    rig.ticks["listener"]()

    assert seen == [True, False]


def test_a_loop_that_does_not_begin_its_tick_is_stuck(rig: Rig) -> None:
    rig.loops.add("source", lambda: timedelta(seconds=30))
    rig.start()
    rig.ticks["source"]()
    rig.pass_time(90)
    in_time = rig.health.live()
    rig.pass_time(1)

    assert is_passed(in_time)
    assert failed(rig.health.live()) == {"loop:source": "it has not begun a tick for 91 s"}


def test_a_loop_that_has_ended_is_not_judged(rig: Rig) -> None:
    rig.loops.add("source", lambda: None)
    rig.start()
    rig.ticks["source"]()
    rig.pass_time(3_600)

    assert [check.name for check in rig.health.live()] == ["event-loop"]


def test_a_loop_whose_ticks_raise_is_alive_and_not_ready(rig: Rig) -> None:
    def tick() -> timedelta:
        if rig.time < 1_010:
            raise KeyError("host.example")
        return timedelta(seconds=1)

    rig.loops.add("source", tick)
    rig.start()
    with pytest.raises(KeyError):
        rig.ticks["source"]()
    raised = failed(rig.health.live()), failed(rig.health.ready())
    rig.pass_time(10)
    rig.ticks["source"]()

    assert raised == ({}, {"tick:source": "the last one raised KeyError"})
    assert is_passed(rig.health.ready())


def test_time_in_which_the_process_did_not_run_does_not_count(rig: Rig) -> None:
    rig.loops.add("source", lambda: timedelta(seconds=1))
    rig.start()
    rig.ticks["source"]()
    rig.time += 3_600  # suspended
    rig.blocked_seconds = 3_600.0
    rig.health.beat()
    resumed = rig.health.live()
    rig.pass_time(62)

    assert is_passed(resumed)
    assert {*failed(rig.health.live())} == {"loop:source", "event-loop"}


def test_an_event_loop_that_does_not_answer_is_blocked(rig: Rig) -> None:
    rig.start()
    rig.blocked_seconds = 60.0
    rig.health.beat()
    in_time = rig.health.live()
    rig.blocked_seconds = 61.0
    rig.health.beat()

    assert is_passed(in_time)
    assert failed(rig.health.live()) == {"event-loop": "blocked for 61 s"}


def test_a_process_that_has_not_started_its_service_is_alive_and_not_ready(rig: Rig) -> None:
    rig.pass_time(3_600)

    assert is_passed(rig.health.live())
    assert failed(rig.health.ready()) == {"started": "waits for its store"}


def test_a_service_is_ready_if_nothing_is_wrong_and_it_does_not_stop(rig: Rig) -> None:
    rig.start()
    rig.problems = {"claims": ""}
    before = rig.health.ready()
    rig.problems = {"claims": "the last claim failed"}
    rig.is_stopping = True

    assert is_passed(before)
    assert failed(rig.health.ready()) == {
        "claims": "the last claim failed",
        "shutdown": "the service is stopping",
    }
    assert is_passed(rig.health.live())


def test_liveness_never_asks_the_store(rig: Rig) -> None:
    rig.start()
    for _ in range(3):
        rig.pass_time(10)
        rig.health.live()
    assert rig.questions == 0

    rig.health.ready()

    assert rig.questions == 1


class Store:
    """A store that answers when a test says so, or raises."""

    def __init__(self) -> None:
        self.questions = 0
        self.may_answer = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.questions += 1
        assert self.may_answer.wait(30)
        if self.error is not None:
            raise self.error


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.may_answer.set()


def test_requests_share_one_question_that_a_store_does_not_answer(store: Store) -> None:
    probe = StoreProbe(store, time.monotonic)
    began = time.monotonic()
    threads = [threading.Thread(target=probe.problem) for _ in range(8)]
    for thread in threads:
        thread.start()
    first = probe.problem()
    took = time.monotonic() - began
    for thread in threads:
        thread.join(30)

    assert first.startswith("no answer for ")
    assert STORE_ANSWER_SECONDS <= took < STORE_ANSWER_SECONDS + 10
    assert store.questions == 1
    store.may_answer.set()
    wait_until(lambda: probe.problem() == "")


def test_an_answer_is_reused_for_a_second(store: Store) -> None:
    now = 1_000.0
    probe = StoreProbe(store, lambda: now)
    store.may_answer.set()
    for _ in range(3):
        assert probe.problem() == ""
    assert store.questions == 1

    now += STORE_ANSWER_VALID_SECONDS + 0.1

    assert probe.problem() == ""
    assert store.questions == 2


def test_the_error_of_a_store_is_named_without_its_text(store: Store) -> None:
    store.error = StoreUnavailable("database 'app' on db.internal: connection refused")
    store.may_answer.set()

    assert StoreProbe(store, time.monotonic).problem() == "StoreUnavailable"


def test_the_event_loop_of_a_worker_answers_unless_a_handler_blocks_it() -> None:
    runtime = ThreadRuntime(sync_threads=1)
    began, may_end = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        may_end.wait(30)

    assert runtime.event_loop_wait() == 0.0  # there is none yet
    runtime.run_async([(block(), None)], AsyncObservations())
    assert began.wait(30)
    runtime.event_loop_wait()
    wait_until(lambda: runtime.event_loop_wait() > 0.05)
    may_end.set()
    wait_until(lambda: runtime.event_loop_wait() == 0.0)
    runtime.close()
    assert runtime.event_loop_wait() == 0.0  # the loop is closed
