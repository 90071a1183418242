"""An audit of ten million waiting, a million finished and a million dead jobs in PostgreSQL: its time and its pages.

For fewer jobs: ``python -m benchmarks.audit 1000000``.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing

from benchmarks.operator_reads import JOBS, fill
from taskharbor.audit import Position, audit_store
from taskharbor.drivers.postgres import PostgresDriver
from tests.support.postgres import database


def figures(jobs: int = JOBS) -> dict[str, object]:
    with database() as url:
        fill(url, jobs)
        with closing(PostgresDriver(url)) as driver:
            start = page_start = time.monotonic()
            rows, pages, slowest, violations = 0, 0, 0.0, 0
            for page, _ in audit_store(driver.auditor, Position()):
                now = time.monotonic()
                slowest, page_start = max(slowest, now - page_start), now
                rows, pages, violations = rows + page.rows, pages + 1, violations + len(page.violations)
            took = time.monotonic() - start
    return {
        "jobs": {"waiting": jobs, "finished": jobs // 10, "dead": jobs // 10},
        "rows": rows,
        "pages": pages,
        "seconds": round(took, 1),
        "slowest page ms": round(slowest * 1_000, 1),
        "violations of the rows that the benchmark made by SQL": violations,
    }


if __name__ == "__main__":
    print(json.dumps(figures(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS), indent=2))
