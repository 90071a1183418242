"""The gauges of loops for Prometheus."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from taskharbor.health import ServiceHealth, WatchedService
from taskharbor.health.metrics import LoopMetrics
from taskharbor.runtime import ThreadRuntime
from taskharbor.service import ServiceLoops

if TYPE_CHECKING:
    from collections.abc import Callable

LAST_TICK = "taskharbor_loop_last_tick_timestamp_seconds"


class ManualRuntime(ThreadRuntime):
    """A runtime whose time is set and whose loops tick when a test says so."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self.time = 1_000.0
        self.ticks: dict[str, Callable[[], timedelta | None]] = {}

    def monotonic(self) -> float:
        return self.time

    def serve(self, name: str, tick: Callable[[], timedelta | None], _between: Any = None) -> Any:
        self.ticks[name] = tick


def test_the_gauges_have_the_last_tick_of_each_kind_of_loop_and_count_stuck_ones() -> None:
    runtime, registry = ManualRuntime(), CollectorRegistry()
    loops = ServiceLoops(runtime)
    health = ServiceHealth(stuck_after=timedelta(seconds=60), monotonic=runtime.monotonic)
    LoopMetrics(health, registry)
    assert registry.get_sample_value("taskharbor_loops_stuck") == 0
    for name in ("source:mail", "source:default", "janitor", "ended"):
        loops.add(name, lambda: timedelta(seconds=1))
    loops.add("ended", lambda: None)
    loops.start()
    health.watch(WatchedService(loops=loops, ask_store=lambda: None, is_stopping=lambda: False, problems=dict))
    runtime.ticks["ended"]()
    for seconds in range(100):
        runtime.time += 1
        health.beat()
        if seconds < 90:
            runtime.ticks["source:mail"]()

    def seconds_ago(loop: str) -> float | None:
        value = registry.get_sample_value(LAST_TICK, {"loop": loop})
        return None if value is None else time.time() - value

    assert seconds_ago("source") == pytest.approx(10, abs=5)
    assert seconds_ago("janitor") == pytest.approx(100, abs=5)
    assert seconds_ago("ended") is None
    assert registry.get_sample_value("taskharbor_loops_stuck") == 2  # janitor and source:default


def test_ticks_that_raise_are_counted_by_the_kind_of_their_loop() -> None:
    runtime, registry = ManualRuntime(), CollectorRegistry()
    loops, health, is_broken = ServiceLoops(runtime), ServiceHealth(monotonic=runtime.monotonic), True
    LoopMetrics(health, registry)
    health.watch(WatchedService(loops=loops, ask_store=lambda: None, is_stopping=lambda: False, problems=dict))

    def tick() -> timedelta:
        if is_broken:
            raise PermissionError
        return timedelta(seconds=1)

    for name in ("source:mail", "source:default", "janitor"):
        loops.add(name, tick)
    loops.start()

    def failed(loop: str) -> float | None:
        return registry.get_sample_value("taskharbor_loop_errors_total", {"loop": loop})

    assert (failed("janitor"), failed("source")) == (0, 0)  # increase() in an alert needs the series from zero
    for name in ("source:mail", "source:default", "janitor", "janitor", "janitor"):
        with pytest.raises(PermissionError):
            runtime.ticks[name]()
    assert (failed("janitor"), failed("source")) == (3, 2)

    is_broken = False
    runtime.ticks["janitor"]()
    assert failed("janitor") == 3
