"""What stores must agree on: every answer, and every row."""

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

_EVERYTHING = 100_000


def answer_of(subject: Subject, call: Callable[[Subject], Any]) -> Any:
    """Return what *call* answers, in a form that can be compared; an error raised is an answer as well."""
    try:
        return comparable(call(subject))
    except TaskHarborError as error:
        return "raised", comparable(error)


def comparable(answer: Any) -> Any:
    """Errors are equal by class and facts; Python would compare them by identity."""
    if isinstance(answer, TaskHarborError):
        return type(answer), answer.args
    return [comparable(each) for each in answer] if isinstance(answer, list) else answer


def rows_of(subject: Subject, job_ids: Sequence[JobId]) -> dict[str, Any]:
    """Return all that can be read of a store, table by table."""
    read = subject.driver.inspector
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)
    return {
        "now": read.now(),
        "jobs": read.get(job_ids),
        "summaries": read.summaries(job_ids),
        "list of jobs": {job.id: job for job in read.find(JobFilter(), limit=_EVERYTHING).jobs},
        "attempts": dict(enumerate(in_one_order(read.attempts(job_ids)))),
        "outbox": dict(enumerate(read.outbox(job_ids))),
        "queues": {view.name: view for view in read.queues()},
        "finished": dict(enumerate(read.finished_counts(since=LONG_AGO))),
        "workers": dict(enumerate(read.workers())),
        "schedules": dict(read.schedules()),
        "names of schedules": list(read.schedules()),
        "dead groups": dict(enumerate(read.dead_letter_groups(limit=_EVERYTHING))),
        "holders of keys": {key: read.find_by_key(key) for key in ("a", "b", "c")},
        "api keys": read.keys(),
        "ids of api keys": list(read.keys()),
        "publisher": read.publisher_seen_at(),
        "audit": dict(enumerate(read.audit(limit=_EVERYTHING))),
    }


def in_one_order(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Sort only what the contract leaves open: the attempts of one job that ended at one instant."""
    instants = groupby(attempts, key=lambda attempt: (attempt.job_id, attempt.ended_at))
    return [attempt for _, group in instants for attempt in sorted(group, key=lambda attempt: attempt.token)]


def differences(ours: Any, theirs: Any, place: str) -> Iterator[str]:
    """Tell each place where *theirs* is not *ours*, as deep inside as it can be told."""
    if ours == theirs:
        return
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in dict.fromkeys([*ours, *theirs]):
            yield from differences(ours.get(key), theirs.get(key), f"{place}[{key}]")
    elif isinstance(ours, list) and isinstance(theirs, list):
        for n, (mine, other) in enumerate(zip_longest(ours, theirs)):
            yield from differences(mine, other, f"{place}[{n}]")
    elif is_dataclass(ours) and type(ours) is type(theirs):
        for each in fields(ours):
            if each.compare:
                yield from differences(getattr(ours, each.name), getattr(theirs, each.name), f"{place}.{each.name}")
    else:
        yield f"{place}: {ours!r} in the first store, {theirs!r} in the other"
