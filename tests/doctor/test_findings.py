from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from taskharbor.core.errors import SchemaOutOfDate, StoreRefused, StoreUnavailable
from taskharbor.delivery.transport import TransportRefused, TransportUnavailable
from taskharbor.doctor.findings import Level, run_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.doctor.findings import Problem


def test_a_check_that_raises_is_a_finding_and_does_not_stop_the_others() -> None:
    def fail() -> Iterator[Problem]:
        yield Level.WARN, "one", ""
        raise ZeroDivisionError("unknown")

    def is_away() -> Iterator[Problem]:
        raise StoreUnavailable("gone")

    [broken] = run_check("one", "fine", fail)
    assert (broken.level, broken.text) == (Level.FAIL, "it could not be checked: ZeroDivisionError: unknown")
    [found] = run_check("two", "fine", is_away)
    assert (found.level, found.text) == (Level.FAIL, "it could not be checked: store unavailable: gone")


class LockTimeout(Exception):
    sqlstate = "55P03"


def _locked() -> StoreUnavailable:
    error = StoreUnavailable("a lock")
    error.__cause__ = LockTimeout()
    return error


@pytest.mark.parametrize(
    ("error", "text", "remedy"),
    [
        (StoreUnavailable("gone"), "store unavailable: gone", "start the server"),
        (StoreRefused("no user"), "store unavailable: no user", "correct the URL"),
        (_locked(), "store unavailable: a lock", "'locks'"),
        (TransportUnavailable("no answer"), "queue service unavailable: no answer", "endpoint of SQS"),
        (TransportRefused("no queue", "make one"), "queue service refused: no queue", "make one"),
        (SchemaOutOfDate("3", "5", "migrate"), "the store's schema is 3, this code needs 5", "migrate"),
        (sqlite3.OperationalError("locked"), "OperationalError: locked", "has locked the file"),
        (sqlite3.DatabaseError("malformed"), "DatabaseError: malformed", "from a backup"),
        (PermissionError("file"), "PermissionError: file", "may use what is named"),
        (ZeroDivisionError("unknown"), "ZeroDivisionError: unknown", "report it"),
    ],
)
def test_a_check_that_raises_says_what_to_do(error: Exception, text: str, remedy: str) -> None:
    def check() -> Iterator[Problem]:
        raise error

    [found] = run_check("one", "fine", check)

    assert (found.level, found.text) == (Level.FAIL, f"it could not be checked: {text}")
    assert remedy in found.remedy
