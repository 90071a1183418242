"""Processes with PostgreSQL and an SQS endpoint that loses and duplicates messages, killed repeatedly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from taskharbor.cli.sqs import queue_shapes
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.testing.sqs import Endpoint, EndpointFaults
from tests.support.postgres import emptied
from tests.support.transport_subjects import REGION
from tests.support.waiting import wait_until
from tests.support.worker_fleet import LIMIT_SECONDS, Fleet

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

WORKERS: Final = 3
BUNDLES: Final = (5, 1)
"""How many jobs a message of each enqueuer may name. A worker runs four at once."""


def test_faults_and_killed_processes_lose_and_double_no_job(
    tmp_path: Path,
) -> None:
    figures = torment(emptied(), tmp_path, jobs=60, every=2.0, kills=2)

    assert figures["dead"] == 0
    assert figures["processes killed"] >= 1


def torment(url: str, folder: Path, *, jobs: int, every: float, kills: int) -> dict[str, int]:
    """Run *jobs* while a process is killed and replaced *every* so many seconds, at most *kills* times."""
    faults = EndpointFaults(lose=0.05, duplicate=0.05)
    with Endpoint.start(seed=1, faults=faults) as endpoint, Fleet.at(url, folder) as fleet:
        _make_queues(endpoint)
        crew = [fleet.start(sqs=endpoint.url) for _ in range(WORKERS)]
        crew += [fleet.start(sqs=endpoint.url, sends=True, bundle=bundle) for bundle in BUNDLES]
        fleet.enqueue(jobs)
        killed = _kill_until_done(fleet, crew, endpoint.url, every, kills)
        fleet.wait_until_done()
        endpoint.faults = EndpointFaults()
        wait_until(lambda: sum(endpoint.depth("taskharbor-default")) == 0, limit=LIMIT_SECONDS)
        for each in crew:
            fleet.end(each)
        messages = {f"messages {name}d": endpoint.happened[name] for name in ("lose", "duplicate")}
        return fleet.verdict() | {"processes killed": killed, **messages}


def _make_queues(endpoint: Endpoint) -> None:
    transport = SqsTransport(endpoint_url=endpoint.url, region=REGION)
    transport.ensure_queues(queue_shapes(["default"]))
    transport.close()


def _kill_until_done(fleet: Fleet, crew: list[subprocess.Popen[bytes]], url: str, every: float, most: int) -> int:
    """Kill and replace one process after another until all jobs have ended."""
    killed, next_at = 0, time.monotonic() + every

    def is_done() -> bool:
        nonlocal killed, next_at
        if time.monotonic() >= next_at and killed < most:
            place = killed % len(crew)
            crew[place].kill()
            bundle = {"sends": True, "bundle": BUNDLES[place - WORKERS]} if place >= WORKERS else {}
            crew[place] = fleet.start(sqs=url, **bundle)
            killed, next_at = killed + 1, time.monotonic() + every
        return killed > 0 and fleet.waiting() == 0

    wait_until(is_done, limit=10 * LIMIT_SECONDS)
    return killed
