"""The wall times that a cron expression names, as `cronsim` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime


def wall_times(cron: str, after: datetime) -> Iterator[datetime]:
    """Give what clocks show when *cron* fires, later than *after*, which has no zone either.

    There is none where the expression cannot be read, and no more where none comes within fifty years.
    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415  nothing but a schedule needs it

    try:
        return CronSim(cron, after)
    except CronSimError:
        return iter(())
