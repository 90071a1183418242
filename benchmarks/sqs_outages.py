"""SQS outages (a minute, partial, permanent), tasks that always fail, and a missing queue for their events.

A job that is lost, runs twice or has too many attempts raises, and so does a message that remains or an event that
is missing, so there are no figures. `tests/delivery/test_outages.py` does the same in seconds.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks._sqs import credentials
from benchmarks.postgres import store
from taskharbor.testing.postgres import PostgresServer
from tests.delivery.test_outages import bypass, die, die_unheard, do_without, outlive, scene_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.delivery.test_outages import Scene

OUTAGE_SECONDS: Final = 60.0
JOBS: Final = 200
RUNNING: Final = 30  # jobs that two workers run when SQS stops
DEATHS: Final = 10
ATTEMPTS: Final = 20


def figures() -> dict[str, object]:
    with credentials(), tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder)) as server:
        measured: dict[str, object] = {}
        with _scene(server) as scene:
            measured["stopped for a minute"] = outlive(scene, seconds=OUTAGE_SECONDS, jobs=RUNNING)
        with _scene(server) as scene:
            measured["send broken, receive works"] = bypass(scene, jobs=JOBS)
        with _scene(server) as scene:
            measured["switched off for good"] = do_without(scene, jobs=JOBS)
        with _scene(server) as scene:
            measured["tasks that always fail"] = die(scene, jobs=DEATHS, max_attempts=ATTEMPTS)
        with _scene(server) as scene:
            measured["queue for dead letters missing"] = die_unheard(scene)
        return measured


@contextmanager
def _scene(server: PostgresServer) -> Iterator[Scene]:
    with store(server) as (_, url), scene_at(url) as scene:
        yield scene
