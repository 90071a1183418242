"""The plans of all frequent statements in PostgreSQL, with a million jobs in each growing partition.

The checks are those of the tests, at ten times their size. A bad plan raises with its name, so there are no
figures.
"""

from __future__ import annotations

from statistics import median

from tests.support.postgres import database
from tests.support.query_plans import BATCH, Ran, Watched, all_day, fill, leave_statistics_alone, vacuum, watched

SIZE = 1_000_000
ROUNDS = 2  # in the second, dispatch passes the jobs that the first left enqueued


def figures() -> dict[str, object]:
    with database() as url:
        leave_statistics_alone(url)
        vacuum(url)
        with watched(url) as early, watched(url) as late, watched(url) as informed:
            before = rounds(early)
            fill(url, SIZE)
            planned_empty, planned_full = rounds(early), rounds(late)
            vacuum(url)
            planned_informed = rounds(informed)
    ran = [*planned_empty, *planned_full, *planned_informed]
    if faults := sorted({fault for each in [*before, *ran] for fault in each.faults()}):
        raise AssertionError("\n".join(faults))
    return {
        "jobs in each leaf": SIZE,
        "plans looked at": len(before) + len(ran),
        f"pages of one call for {BATCH} jobs": {
            "empty": pages(before),
            "planned when empty, now full": pages(planned_empty),
            "planned when full, without statistics": pages(planned_full),
            "planned when full, after ANALYZE": pages(planned_informed),
        },
    }


def rounds(watching: Watched) -> list[Ran]:
    watching.ran.clear()
    for _ in range(ROUNDS):
        all_day(watching)
    return [*watching.ran]


def pages(ran: list[Ran]) -> dict[str, float]:
    verbs = dict.fromkeys(each.verb for each in ran)
    return {verb: median(each.buffers for each in ran if each.verb == verb) for verb in verbs}
