"""Running until a signal, in real processes."""

from __future__ import annotations

import subprocess
import sys

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
