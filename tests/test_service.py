"""Running until a signal, in real processes; and named loops."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from taskharbor import service
from taskharbor.runtime import ThreadRuntime
from taskharbor.service import ServiceLoops, run_until_signal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pytest

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


def test_a_service_that_is_over_by_itself_is_stopped_before_the_exit() -> None:
    called: list[str] = []

    run_until_signal(lambda: called.append("start"), lambda: called.append("stop"), is_over=lambda: True)

    assert called == ["start", "stop"]


# The second signal arrives while the interrupted thread writes to the log.
WHILE_LOGGING = """
import logging, signal
from taskharbor import service
from taskharbor.service import run_until_signal

service.SAME_STOP_SECONDS = 0

class Locked(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        if record.getMessage() == "stopping":
            signal.raise_signal(signal.SIGINT)

logging.basicConfig(level="INFO", handlers=[Locked()], format="%(message)s")
def start(): signal.raise_signal(signal.SIGTERM)
def stop(): logging.info("stopping")
run_until_signal(start, stop, is_over=lambda: False, last_words=lambda: "exiting now")
"""


def test_a_second_signal_exits_even_if_the_log_is_locked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_LOGGING], capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "stopping\n")


# As timeout(1) does: one signal to the process group, and one to the process.
TWO_SIGNALS = """
import signal
from taskharbor import service
service.SAME_STOP_SECONDS = 3_600
def start():
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
service.run_until_signal(start, lambda: print("stopped cleanly"), is_over=lambda: False)
"""


def test_signals_that_arrive_together_are_one_stop() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_SIGNALS], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped cleanly\n", "")


def test_a_notice_is_not_logged_by_the_thread_that_a_signal_interrupts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.acquire()  # as a thread that is writing to the log
    try:
        service._log_within(0.05, lambda: "exiting now")  # noqa: SLF001  a signal handler calls it
        locked = list(caplog.messages)
    finally:
        caplog.handler.release()
    wait_until(lambda: caplog.messages == ["exiting now"])

    assert locked == []


class FakeRuntime(ThreadRuntime):
    """Serves loops that only count their wakes."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self.woken: list[str] = []
        self.served: list[str] = []

    def serve(self, name: str, tick: Any, between: Any = None) -> Any:  # noqa: ARG002  the signature is the runtime's
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
