"""Recording many outcomes at once, in a store that refuses a whole statement for one value in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.core.errors import OutcomeNotStorable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.results import Settlement
    from taskharbor.drivers.base import SettleAnswer


def settle_separately(
    settlements: Sequence[Settlement],
    record: Callable[[Sequence[Settlement]], list[SettleAnswer]],
    rejection: Callable[[Exception], str | None],
) -> list[SettleAnswer]:
    """Record *settlements* together; if the store rejects the data of one, by halves, until that one is alone.

    *rejection* says what an error finds wrong with the data, and returns None for every other error:
    that one is raised. *record* may be repeated: what is recorded is answered as before.
    """
    try:
        return record(settlements)
    except Exception as error:
        reason = rejection(error)
        if reason is None:
            raise
    if len(settlements) == 1:
        return [OutcomeNotStorable(settlements[0].lease.job_id, reason)]
    half = len(settlements) // 2
    parts = (settlements[:half], settlements[half:])
    return [answer for part in parts for answer in settle_separately(part, record, rejection)]
