"""Many random runs of the same calls on SQLite and in memory, each answer and each row compared.

They are other runs each time. A difference raises, with the shortest run that shows it: there are no figures then.
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
