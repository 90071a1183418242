"""Jobs by the page. A store looks at so many jobs for one answer, however few of them match: here it is asked on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskharbor.core.answers import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.answers import JobFilter
    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver

SIZE: Final = 500


def full_page(driver: Driver, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
    """Return *limit* jobs, newest first, or all that are left."""
    page = driver.inspector.find(wanted, limit=limit, after=after)
    while page.after is not None and len(page.jobs) < limit:
        more = driver.inspector.find(wanted, limit=limit - len(page.jobs), after=page.after)
        page = Page((*page.jobs, *more.jobs), more.after)
    return page


def page_under(driver: Driver, key: str) -> Page:
    """Return the jobs that hold an idempotency key, one for each queue at most."""
    return Page(tuple(driver.inspector.summaries(driver.inspector.find_by_key(key)).values()), None)


def all_pages(driver: Driver, wanted: JobFilter) -> Iterator[Page]:
    """Give every job that matches, newest first; some pages may be empty."""
    page = driver.inspector.find(wanted, limit=SIZE)
    yield page
    while page.after is not None:
        page = driver.inspector.find(wanted, limit=SIZE, after=page.after)
        yield page
