"""Processes on a durable PostgreSQL server that is killed ten times.

A job that is lost, settled twice or settled with another outcome raises, and so does a process
that does not work again within five seconds, so there are no figures.
"""

from __future__ import annotations

from tests.drivers.postgres.test_server_crash import drain_with_kills

KILLS = 10
JOBS = 20_000


def figures() -> dict[str, object]:
    return drain_with_kills(KILLS, JOBS)
