"""Two processes at one SQLite file for a minute, one of them killed ten times.

A job that is lost, settled twice or not in its row raises: there are no figures then.
"""

from __future__ import annotations

from tests.drivers.sqlite.test_multiprocess import hammer

SECONDS = 60
KILLS = 10


def figures() -> dict[str, object]:
    return {"seconds": SECONDS, **hammer(SECONDS, KILLS)}
