"""Compare kinds of a worker by interleaved runs, on a machine that has other work to do."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from taskharbor.service import tuned_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.worker import Worker

BASE = "off"


def drain(worker: Worker, count: int) -> float:
    """Run *count* waiting jobs as `Worker.run` does; return the microseconds of CPU time of this process per job."""
    began = time.process_time()
    with tuned_interpreter():  # as in `Worker.run`, which owns its process
        worker.drain()
    return (time.process_time() - began) / count * 1e6


def compared(kinds: Sequence[str], run: Callable[[str], float], *, pairs: int) -> dict[str, dict[str, float]]:
    """Return for each kind its CPU time per job, and the rate that it keeps compared with "off".

    The rate is that of a worker whose own CPU time is the limit. The rate by the clock varies by a seventh between runs
    on a machine with other work, and includes the server. Each round runs all kinds, in turns from the first and from
    the last one. Other work only adds to a run, so the lower quartiles of all rounds are compared.
    """
    runs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for kind in kinds:
        run(kind)  # to warm up
    for number in range(pairs):
        for kind in [*kinds][:: -1 if number % 2 else 1]:
            runs[kind].append(run(kind))
    quartiles = {kind: statistics.quantiles(made, n=4)[0] for kind, made in runs.items()}
    return {
        kind: {"µs per job": round(each, 2), "rate kept": round(quartiles[BASE] / each, 3)}
        for kind, each in quartiles.items()
    }
