"""Run the same random calls on SQLite and in memory, and compare each answer and each row.

Each execution uses new random runs. A difference raises with the shortest run that shows it, so there are no figures.
"""

from __future__ import annotations

import time

from tests.parity.test_parity import run

EXAMPLES = 1_000
STEPS = 60


def figures() -> dict[str, object]:
    start = time.perf_counter()
    run(EXAMPLES, STEPS)
    return {
        "runs": EXAMPLES,
        "steps of each at most": STEPS,
        "differences": 0,
        "seconds": round(time.perf_counter() - start),
    }
