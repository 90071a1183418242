"""Compare stores: their answers and all their rows."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from taskharbor.core.errors import TaskHarborError
from taskharbor.core.results import JobFilter
from taskharbor.testing.conformance.subject import LONG_AGO, TEN_YEARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Attempt
    from taskharbor.testing.conformance import Subject

_MAX_ROWS = 100_000


def answer_of(subject: Subject, call: Callable[[Subject], Any]) -> Any:
    """Return the answer of *call* in a comparable form. A raised error is an answer, too."""
    try:
        return comparable(call(subject))
    except TaskHarborError as error:
        return "raised", comparable(error)


def comparable(answer: Any) -> Any:
    """Replace errors by their class and arguments, since Python compares errors by identity."""
    if isinstance(answer, TaskHarborError):
        return type(answer), answer.args
    return [comparable(each) for each in answer] if isinstance(answer, list) else answer


def rows_of(subject: Subject, job_ids: Sequence[JobId]) -> dict[str, Any]:
    """Return everything that the inspector can read, by table."""
    read = subject.driver.inspector
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)
    return {
        "now": read.now(),
        "jobs": read.get(job_ids),
        "summaries": read.summaries(job_ids),
        "list of jobs": {job.id: job for job in read.find(JobFilter(), limit=_MAX_ROWS).jobs},
        "attempts": dict(enumerate(in_one_order(read.attempts(job_ids)))),
        "outbox": dict(enumerate(read.outbox(job_ids))),
        "queues": {view.name: view for view in read.queues()},
        "finished": dict(enumerate(read.finished_counts(since=LONG_AGO))),
        "workers": dict(enumerate(read.workers())),
        "past workers": dict(enumerate(read.past_workers())),
        "refusals": dict(enumerate(read.refusals(job_ids))),
        "schedules": dict(read.schedules()),
        "names of schedules": list(read.schedules()),
        "dead groups": dict(enumerate(read.dead_letter_groups(limit=_MAX_ROWS))),
        "holders of keys": {key: read.find_by_key(key) for key in ("a", "b", "c")},
        "api keys": read.keys(),
        "ids of api keys": list(read.keys()),
        "publisher": read.publisher_seen_at(),
        "audit": dict(enumerate(read.audit(limit=_MAX_ROWS))),
    }


def in_one_order(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Sort attempts of one job that ended at the same instant: the contract leaves only their order open."""
    instants = groupby(attempts, key=lambda attempt: (attempt.job_id, attempt.ended_at))
    return [attempt for _, group in instants for attempt in sorted(group, key=lambda attempt: attempt.token)]


def differences(first: Any, second: Any, path: str) -> Iterator[str]:
    """Describe each difference between *first* and *second*, at the deepest possible path."""
    if first == second:
        return
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys([*first, *second]):
            yield from differences(first.get(key), second.get(key), f"{path}[{key}]")
    elif isinstance(first, list) and isinstance(second, list):
        for n, (one, other) in enumerate(zip_longest(first, second)):
            yield from differences(one, other, f"{path}[{n}]")
    elif is_dataclass(first) and type(first) is type(second):
        for each in fields(first):
            if each.compare:
                yield from differences(getattr(first, each.name), getattr(second, each.name), f"{path}.{each.name}")
    else:
        yield f"{path}: {first!r} in the first store, {second!r} in the other"
