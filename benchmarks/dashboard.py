"""How long each page of the dashboard takes on a large PostgreSQL store, and its slowest statement.

The store is that of `operator_reads`. For fewer jobs: ``python -m benchmarks.dashboard 300000``. Statements are timed
in a second pass, in which their plans are recorded; pages are timed without that.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks.operator_reads import JOBS, fill
from taskharbor import Harbor
from taskharbor.drivers.postgres.driver import MAX_READ_CONNECTIONS
from tests.support.dashboard_rig import serve_site
from tests.support.postgres import database
from tests.support.query_plans import leave_statistics_alone, watched

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from tests.support.query_plans import Watched

MAX_PAGE_MILLISECONDS: Final = 150
MAX_STATEMENT_MILLISECONDS: Final = 50
ROUNDS: Final = 20
CACHE_SECONDS: Final = 1.05
"""Aggregates are cached for a second. The second pass waits that long, so that each page reads all that it needs."""
PAGES: Final = {
    "overview": "/",
    "overview, 8 days": "/?range=8d",
    "queues": "/queues",
    "queue": "/queues/queue7",
    "pause of a queue": "/queues/queue7/pause",
    "jobs": "/jobs",
    "jobs, dead": "/jobs?status=DEAD&queue=queue7",
    "jobs, no match": "/jobs?type=unknown",
    "job": "/jobs/{dead}",
    "dead letters": "/dead",
    "group": "/dead/{group}",
    "preview of a replay": "/jobs/bulk?kind=requeue&all=1&status=DEAD&queue=queue7",
    "schedules": "/schedules",
    "workers": "/workers",
    "worker": "/workers/worker7",
    "operations": "/operations",
    "audit": "/audit",
    "keys": "/keys",
}


def figures(jobs: int = JOBS) -> dict[str, object]:
    with database() as url:
        leave_statistics_alone(url)
        fill(url, jobs)
        paths = paths_of(url)
        with serve_site(url) as site, site.http() as client:
            times = {name: _times(client, path) for name, path in paths.items()}
        with watched(url) as watching, serve_site(harbor=Harbor(watching.driver)) as site, site.http() as client:
            watch_reads(watching)
            slowest = {name: _slowest(watching, client, path) for name, path in paths.items()}
    pages = {name: {**times[name], **slowest[name]} for name in paths}
    over = [
        name
        for name, found in pages.items()
        if float(str(found["p95 ms"])) > MAX_PAGE_MILLISECONDS
        or float(str(found["slowest statement ms"])) > MAX_STATEMENT_MILLISECONDS
    ]
    return {
        "jobs": {"waiting": jobs, "finished": jobs // 10, "dead": jobs // 10},
        "limits": {"p95 ms": MAX_PAGE_MILLISECONDS, "statement ms": MAX_STATEMENT_MILLISECONDS, "over": over},
        "requests of each page": ROUNDS,
        "pages": pages,
    }


def watch_reads(watching: Watched) -> None:
    """Record the plans of the connections that pages use, all at a time so that none is left out."""
    pool = watching.driver._read_pool  # noqa: SLF001  the notices are the connection's
    with ExitStack() as stack:
        for _ in range(MAX_READ_CONNECTIONS):
            stack.enter_context(pool.connection()).add_notice_handler(watching.add_notice)


def paths_of(url: str) -> dict[str, str]:
    """Return the path of each page, with a job and a group of the store."""
    with psycopg.connect(url) as db:
        [(job_id, group)] = db.execute("SELECT id, fingerprint FROM th_jobs_dead ORDER BY id LIMIT 1").fetchall()
    return {name: path.format(dead=job_id, group=group) for name, path in PAGES.items()}


def _times(client: httpx.Client, path: str) -> Mapping[str, object]:
    """Return the median and the 95th percentile of a page, one request at a time. Aggregates may be cached."""
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = client.get(f"/ui{path}")
        took.append((time.perf_counter() - began) * 1_000)
        assert answer.status_code == 200, f"{path}: {answer.status_code}"
    took.sort()
    return {"p50 ms": round(took[ROUNDS // 2], 1), "p95 ms": round(took[int(ROUNDS * 0.95) - 1], 1)}


def _slowest(watching: Watched, client: httpx.Client, path: str) -> Mapping[str, object]:
    """Return the slowest statement of a page that finds nothing cached: the better of two requests."""
    best: tuple[float, str, int] | None = None
    for _ in range(2):
        threading.Event().wait(CACHE_SECONDS)
        watching.ran.clear()
        watching.run(path, lambda: client.get(f"/ui{path}"))
        ran = max(watching.ran, key=lambda each: each.milliseconds, default=None)
        if ran is not None and (best is None or ran.milliseconds < best[0]):
            best = (ran.milliseconds, " ".join(ran.query.split())[:80], len(watching.ran))
    if best is None:
        return {"slowest statement ms": 0, "slowest statement": "", "statements": 0}
    return {"slowest statement ms": round(best[0], 2), "slowest statement": best[1], "statements": best[2]}


if __name__ == "__main__":
    print(json.dumps(figures(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS), indent=2))
