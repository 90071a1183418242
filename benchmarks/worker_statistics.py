"""What statistics cost a worker: the share of the CPU of jobs that do nothing, which counting their attempts takes.

The same run measures both, so that other work on the machine changes both alike. If a worker has less than 0.97 of the
throughput that it would have without statistics, this raises.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from taskharbor import Harbor
from taskharbor.worker.statistics import AttemptStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS: Final = 2_000
ROUNDS: Final = 40
MIN_RATIO: Final = 0.97


def figures(rounds: int = ROUNDS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, Harbor(f"sqlite:///{Path(folder) / 'jobs.db'}") as harbor:

        @harbor.task
        def nothing(number: int) -> None:
            """Do nothing."""

        drain(harbor, nothing.call)  # warm up
        took = [drain(harbor, nothing.call) for _ in range(rounds)]
    ratio = median(1 - counting / total for total, counting in took)
    if ratio < MIN_RATIO:
        raise AssertionError(f"with statistics a worker has {ratio:.3f} of its throughput without")
    return {
        "jobs": JOBS,
        "rounds": rounds,
        "CPU in µs for each job": round(median(total for total, _ in took) / JOBS * 1e6, 2),
        "of these, for statistics": round(median(counting for _, counting in took) / JOBS * 1e6, 2),
        "throughput by CPU, with statistics of without": round(ratio, 3),
    }


def drain(harbor: Harbor, call: Callable[[int], Any]) -> tuple[float, float]:
    """Run jobs, and return the CPU seconds of this process, and those of them that counted the attempts."""
    harbor.enqueue_many(call(number) for number in range(JOBS))
    worker, count, used = harbor.worker(concurrency=16), AttemptStatistics.count, [0.0]

    def measured(*given: Any) -> None:
        started = time.thread_time()
        count(*given)
        used[0] += time.thread_time() - started

    with patch.object(AttemptStatistics, "count", measured):
        started = time.process_time()
        worker.drain()
        return time.process_time() - started, used[0]


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
