"""Listing jobs page by page when there are more jobs than one call scans."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from taskharbor.core.ids import JobId
from taskharbor.core.results import JobFilter, scan_limit
from taskharbor.testing.conformance.subject import Subject, new_job

_PAGE: Final = 10


def test_a_rare_job_is_found_behind_more_jobs_than_one_page_scans(subject: Subject) -> None:
    rare = new_job(metadata={"tenant": "7"})
    subject.driver.insert([rare, *(new_job() for _ in range(2 * scan_limit(_PAGE)))])

    pages = _pages(subject, JobFilter(tag=("tenant", "7")))

    assert [job_id for page in pages for job_id in page] == [rare.id]


def test_pages_hold_every_match_once_however_far_apart_they_are(subject: Subject) -> None:
    jobs = [new_job(type="welcome" if n % 150 == 0 else "greet") for n in range(3 * scan_limit(_PAGE))]
    subject.driver.insert(jobs)

    pages = _pages(subject, JobFilter(type="welcome"), limit=3)

    assert [job_id for page in pages for job_id in page] == [job.id for job in reversed(jobs) if job.type == "welcome"]
    assert max(map(len, pages)) <= 3


def test_a_page_may_be_larger_than_the_default_scan(subject: Subject) -> None:
    count = scan_limit(_PAGE) + 10
    subject.driver.insert([new_job() for _ in range(count + 1)])

    page = subject.driver.inspector.find(JobFilter(), limit=count)

    assert (len(page.jobs), page.after) == (count, page.jobs[-1].id)


def test_a_page_begins_below_any_id_whether_or_not_a_job_has_it(subject: Subject) -> None:
    jobs = [new_job(id=JobId(UUID(int=place << 64))) for place in (3, 5, 7, 9)]
    subject.driver.insert(jobs)
    subject.driver.cancel([jobs[1].id])

    after = [JobId(UUID(int=above)) for above in (9 << 64, (7 << 64) + 1, 7 << 64, 6 << 64, 3 << 64, 1)]
    pages = [subject.driver.inspector.find(JobFilter(), limit=2, after=each) for each in after]

    assert [[job.id.int >> 64 for job in page.jobs] for page in pages] == [[7, 5], [7, 5], [5, 3], [5, 3], [], []]


def _pages(subject: Subject, wanted: JobFilter, *, limit: int = _PAGE) -> list[list[JobId]]:
    """Return all pages, but at most 100, in case a driver never returns a last one."""
    pages: list[list[JobId]] = []
    after: JobId | None = None
    for _ in range(100):
        page = subject.driver.inspector.find(wanted, limit=limit, after=after)
        pages.append([job.id for job in page.jobs])
        after = page.after
        if after is None:
            break
    return pages
