"""Two processes on one SQLite file for a minute, one of them killed ten times.

A job that is lost, settled twice or different from its row raises, so there are no figures.
"""

from __future__ import annotations

from tests.drivers.sqlite.test_multiprocess import hammer

SECONDS = 60
KILLS = 10


def figures() -> dict[str, object]:
    return {"seconds": SECONDS, **hammer(SECONDS, KILLS)}
