from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.core.errors import StoreUnavailable
from taskharbor.doctor.findings import Finding, Level, run_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.doctor.findings import Problem


def test_a_check_that_raises_is_a_finding_and_does_not_stop_the_others() -> None:
    def fail() -> Iterator[Problem]:
        yield Level.WARN, "one", ""
        raise ZeroDivisionError("unknown")

    def is_away() -> Iterator[Problem]:
        raise StoreUnavailable("gone")

    assert list(run_check("one", "fine", fail)) == [
        Finding("one", Level.FAIL, "it could not be checked: ZeroDivisionError: unknown")
    ]
    [found] = run_check("two", "fine", is_away)
    assert (found.level, found.text) == (Level.FAIL, "it could not be checked: store unavailable: gone")
