"""Jobs that are made as they are taken."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from taskharbor.core.making import Making
from taskharbor.core.model import NewJob
from taskharbor.testing.conformance.subject import new_job

if TYPE_CHECKING:
    from collections.abc import Iterator


def making(jobs: list[NewJob], made: list[NewJob]) -> Making:
    def make() -> Iterator[NewJob]:
        for job in jobs:
            made.append(job)
            yield job

    return Making(make(), len(jobs))


def test_a_job_is_made_when_it_is_first_asked_for_and_only_then() -> None:
    jobs, made = [new_job() for _ in range(5)], list[NewJob]()
    each = making(jobs, made)

    assert (len(each), made) == (5, [])
    assert [*islice(each, 2)] == made == jobs[:2]
    assert [*each] == [*each] == made == jobs


def test_who_asks_for_one_by_its_place_has_all_of_them_made() -> None:
    jobs, made = [new_job() for _ in range(3)], list[NewJob]()
    each = making(jobs, made)

    assert [*islice(each, 1)] == jobs[:1]
    assert (each[1], each[1:], each[-1]) == (jobs[1], jobs[1:], jobs[2])
    assert made == jobs
