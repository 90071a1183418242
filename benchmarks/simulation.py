"""As many simulated worlds as fit into five minutes, each of another seed.

A world in which a promise is broken raises, with the seed that shows it again: there are no figures then.
"""

from __future__ import annotations

import time
from collections import Counter

from taskharbor.testing.simulation import EXPECTED, judge_all

SECONDS = 300.0
BATCH = 1_000
FIRST = 1_000_000  # not those that every run of the tests goes through


def figures(seconds: float = SECONDS, first: int = FIRST) -> dict[str, object]:
    start = time.monotonic()
    seen: Counter[str] = Counter()
    worlds = happenings = 0
    while time.monotonic() - start < seconds:
        for verdict in judge_all(range(first + worlds, first + worlds + BATCH)):
            if verdict.violations:
                raise RuntimeError(str(verdict))
            worlds += 1
            happenings += verdict.happenings
            seen.update(verdict.seen)
    if missing := EXPECTED - set(seen):
        raise RuntimeError(f"never seen: {sorted(missing)}")
    return {
        "first seed": first,
        "worlds": worlds,
        "worlds a second": round(worlds / (time.monotonic() - start), 1),
        "happenings a world": round(happenings / worlds),
        "violations": 0,
        "seen in worlds": dict(sorted(seen.items())),
    }
