"""When a cron expression fires, in a time zone whose clocks go forward and back.

`cronsim` reads expressions, and finds the wall times that they name. Which moments those are is decided
here, as Debian's cron does. It would decide that too, but passes by a wall time that comes a second time half an
hour later (Lord Howe), and when asked in the second hour of a fold it answers with a time in the first.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import InvalidRequest
from taskharbor.core.walltime import SECOND, next_offset_change, offset_at, unambiguous_instant, wall_time
from taskharbor.schedules.checking import cron_problem
from taskharbor.schedules.walls import wall_times
from taskharbor.schedules.zones import zone_named, zone_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FIRES: Final = 10_000


def next_fires(cron: str, tz: str, *, after: datetime, count: int) -> list[datetime]:
    """Return the next *count* fire times later than *after*, in UTC; fewer where there are not so many.

    >>> [fire.isoformat() for fire in next_fires(
    ...     "30 2 * * *", "Europe/Paris", after=datetime(2030, 3, 30, 12, tzinfo=UTC), count=2)]
    ['2030-03-31T01:00:00+00:00', '2030-04-01T00:30:00+00:00']
    """
    return list(islice(Cron(cron, tz).after(after), min(count, MAX_FIRES)))


class Cron:
    """A cron expression in a time zone. Raises `InvalidRequest` where it is wrong, or never fires.

    Where minute and hour are both fixed (neither begins with ``*``) each wall time fires once: if clocks skip
    it, at the first moment after the gap, and if they show it twice, the first time. Everything else fires
    whenever clocks show a time that it names: never within a gap, and in both passes of a fold.
    """

    def __init__(self, cron: str, timezone: str) -> None:
        problem = cron_problem(cron) or zone_problem(timezone)
        if problem is not None:
            raise InvalidRequest([problem])
        self._cron = cron
        self._zone = zone_named(timezone) or UTC  # there is one, or that were a problem
        minute, hour, *_ = cron.split()
        self._is_fixed = not minute.startswith("*") and not hour.startswith("*")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Give the fire times later than *moment*, in UTC, without end."""
        last = moment.astimezone(UTC)
        return self._fixed(last) if self._is_fixed else self._whenever(last)

    def _fixed(self, last: datetime) -> Iterator[datetime]:
        for wall in wall_times(self._cron, wall_time(self._zone, last)):
            moment = unambiguous_instant(self._zone, wall)
            if moment > last:  # of all that fall into one gap, one; none of a first pass that is over
                yield moment
                last = moment

    def _whenever(self, last: datetime) -> Iterator[datetime]:
        since: datetime | None = last
        while since is not None:  # once for each stretch of time in which clocks run evenly
            offset, change = offset_at(self._zone, since), None
            for wall in wall_times(self._cron, last.replace(tzinfo=None) + offset):
                moment = wall.replace(tzinfo=UTC) - offset
                change = next_offset_change(self._zone, since, moment)
                if change is not None:
                    last = change - SECOND  # the moment of the change may fire, too
                    break
                yield moment
                since = moment
            since = change
