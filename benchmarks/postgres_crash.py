"""Processes at a durable PostgreSQL that is killed ten times under them.

A job that is lost, settled twice or not as it was told raises, and so does a process that
does not work again within five seconds: there are no figures then.
"""

from __future__ import annotations

from tests.drivers.postgres.test_server_crash import drain_with_kills

KILLS = 10
JOBS = 20_000


def figures() -> dict[str, object]:
    return drain_with_kills(KILLS, JOBS)
