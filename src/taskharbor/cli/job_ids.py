"""Job ids as people write them: whole, or shortened to a unique beginning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from uuid import UUID

from taskharbor.cli.errors import AmbiguousJobId, NoJobBeginsWith, NotAJobId
from taskharbor.cli.store import did_you_mean
from taskharbor.core.ids import JobId
from taskharbor.core.results import JobFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.model import JobSummary
    from taskharbor.drivers.base import Driver

MIN_PREFIX_CHARS: Final = 4
MAX_CANDIDATES: Final = 3
"""How many of the jobs that an ambiguous prefix matches are listed."""
_MAX_RECENT_JOBS: Final = 200  # compared with a mistyped id
_ID_CHARS: Final = 32
_MAX_INT: Final = (1 << 128) - 1
_DIGITS: Final = re.compile(rf"[0-9a-f]{{{MIN_PREFIX_CHARS},{_ID_CHARS}}}")


def job_id_of(driver: Driver, text: str) -> JobId:
    """Return the job id that *text* is, or the only one in the store that begins with it.

    A whole id is returned whether or not there is such a job.
    """
    digits = text.strip().lower().replace("-", "")
    if _DIGITS.fullmatch(digits) is None:
        raise NotAJobId(text, MIN_PREFIX_CHARS, _nearest_job(driver, text))
    if len(digits) == _ID_CHARS:
        return JobId(UUID(digits))
    found = _newest_with_prefix(driver, digits)
    if not found:
        raise NoJobBeginsWith(text, _nearest_job(driver, text))
    if len(found) > 1:
        raise AmbiguousJobId(
            text,
            tuple(f"{job.id} ({job.type}, {job.status})" for job in found[:MAX_CANDIDATES]),
            has_more=len(found) > MAX_CANDIDATES,
        )
    return found[0].id


def job_ids_of(driver: Driver, texts: Sequence[str]) -> list[JobId]:
    """Return the job ids that *texts* are or begin, in the given order and without duplicates."""
    return list(dict.fromkeys(job_id_of(driver, text) for text in texts))


def _newest_with_prefix(driver: Driver, digits: str) -> list[JobSummary]:
    """Return the newest jobs whose ids begin with *digits*, at most one more than are listed.

    Jobs are stored in the order of their ids, so the store reads a page of its primary key.
    """
    lowest, highest = int(digits.ljust(_ID_CHARS, "0"), 16), int(digits.ljust(_ID_CHARS, "f"), 16)
    above = JobId(UUID(int=highest + 1)) if highest < _MAX_INT else None
    page = driver.inspector.find(JobFilter(), limit=MAX_CANDIDATES + 1, after=above)
    return [job for job in page.jobs if job.id.int >= lowest]


def _nearest_job(driver: Driver, text: str) -> str:
    recent = [str(job.id) for job in driver.inspector.find(JobFilter(), limit=_MAX_RECENT_JOBS).jobs]
    return did_you_mean(text.strip().lower(), recent) or "'taskharbor jobs list' shows the newest"
