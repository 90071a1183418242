"""Running until a signal, in real processes; and named loops."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from taskharbor.runtime import ThreadRuntime
from taskharbor.service import ServiceLoops

# Sends itself a signal before the n-th line that the waiting thread runs, for every n.
AT_EVERY_LINE = """
import faulthandler, signal, sys
from taskharbor import service
from taskharbor.service import run_until_signal

service.SIGNAL_POLL_SECONDS = 0.005
faulthandler.dump_traceback_later(20, exit=True)

def run(line):
    lines = 0
    def count(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        if lines == line:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)
        return count
    def start():
        sys.settrace(count)
        sys._getframe(1).f_trace = count
    stopped = []
    run_until_signal(start, lambda: stopped.append(sys.settrace(None)), is_over=lambda: False)
    assert len(stopped) == 1

for line in range(1, 40):
    run(line)
print("received every signal")
"""


def test_a_signal_at_any_point_of_the_wait_stops_the_service() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EVERY_LINE], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.stdout == "received every signal\n", done.stderr


class FakeRuntime(ThreadRuntime):
    """Serves loops that only count their wakes."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self.woken: list[str] = []
        self.served: list[str] = []

    def serve(self, name: str, tick: Any) -> Any:  # noqa: ARG002  the signature is the runtime's
        self.served.append(name)
        return SimpleNamespace(wake=lambda: self.woken.append(name), join=lambda _timeout: True)


def test_a_wake_reaches_one_loop_or_its_whole_group() -> None:
    runtime = FakeRuntime()
    loops = ServiceLoops(runtime)
    for name in ("source:a", "source:b", "recorder"):
        loops.add(name, lambda: None)
    loops.wake("source")  # before the start there is nothing to wake
    loops.start()

    loops.wake("source:b")
    loops.wake("source")

    assert runtime.woken == ["source:b", "source:a", "source:b"]


def test_a_loop_on_demand_starts_once_and_is_not_woken_by_a_stop() -> None:
    runtime = FakeRuntime()
    loops = ServiceLoops(runtime)
    loops.add("recorder", lambda: None)
    loops.add("shutdown", lambda: None, on_demand=True)
    loops.start()
    started = [*runtime.served]

    loops.start_on_demand("shutdown")
    loops.start_on_demand("shutdown")
    loops.stop()

    assert (started, runtime.served) == (["recorder"], ["recorder", "shutdown"])
    assert runtime.woken == ["recorder"]
