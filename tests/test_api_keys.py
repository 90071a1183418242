from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from taskharbor import MemoryDriver
from taskharbor.api_keys import SCOPES, KeyCache, is_allowed, issue_key, key_digest
from taskharbor.core.errors import UsageError
from taskharbor.testing.clock import ManualClock

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)


class KeyRig:
    """A store with keys, and a ring that knows them, both on one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.driver = MemoryDriver(clock=self.clock)
        self.ring = KeyCache(lambda: self.driver.inspector, monotonic=lambda: self.clock.now().timestamp())

    def issue(self, *scopes: str, **options: Any) -> tuple[str, str]:
        issued = issue_key("ci", scopes or ("jobs:read",), now=self.clock.now(), **options)
        assert self.driver.control.add_keys([issued.key]) == [True]
        return issued.key.id, issued.text

    def opens(self, text: str) -> bool:
        known, key = self.ring.remembered(text)
        return (key if known else self.ring.find(text)) is not None


def test_a_key_opens_its_scopes_and_is_stored_without_its_secret() -> None:
    door = KeyRig()

    key_id, text = door.issue("jobs:write", "jobs:read")

    found = door.ring.find(text)
    assert found is not None
    assert (found.id, found.scopes) == (key_id, ("jobs:read", "jobs:write"))
    stored = door.driver.inspector.keys()[key_id]
    assert stored.digest == key_digest(text)
    assert text.rpartition("_")[2] not in repr(stored)


def test_the_secret_is_not_in_what_is_printed_of_a_new_key() -> None:
    issued = issue_key("ci", ["admin"], now=NOW)

    assert issued.text not in repr(issued)


@pytest.mark.parametrize("text", ["", "thk_", "thk_0123456789ab_short", "Bearer", "é" * 60, "thk_" + "0" * 12 + "_é"])
def test_what_is_no_key_opens_nothing_and_does_not_reach_the_store(text: str) -> None:
    door = KeyRig()
    before = door.driver.statements

    assert not door.opens(text)
    assert door.driver.statements == before


def test_another_secret_under_a_cached_id_opens_nothing() -> None:
    door = KeyRig()
    key_id, text = door.issue()
    other = issue_key("ci", ["admin"], now=NOW)

    assert not door.opens(f"thk_{key_id}_{other.text.split('_', 2)[2]}")
    assert door.opens(text)


def test_a_revoked_key_opens_nothing_after_five_seconds_at_the_latest() -> None:
    door = KeyRig()
    key_id, text = door.issue()
    assert door.opens(text)

    door.driver.control.revoke_keys([key_id])

    door.clock.advance(timedelta(seconds=5))
    assert not door.opens(text)


def test_a_key_opens_nothing_from_its_last_moment_on() -> None:
    door = KeyRig()
    _, text = door.issue(expires_at=NOW + timedelta(seconds=3))
    assert door.opens(text)

    door.clock.advance(timedelta(seconds=3))

    assert not door.opens(text)


def test_a_good_key_is_looked_up_once_in_five_seconds() -> None:
    door = KeyRig()
    _, text = door.issue()
    door.opens(text)
    before = door.driver.statements

    door.clock.advance(timedelta(seconds=4))

    assert door.opens(text)
    assert door.driver.statements == before


def test_a_flood_of_wrong_keys_does_not_fill_the_memory() -> None:
    door = KeyRig()
    for _ in range(3_000):
        door.opens(issue_key("ci", ["admin"], now=NOW).text)

    assert len(door.ring._cached) <= 1_024  # noqa: SLF001  what must stay small


def test_admin_opens_everything_and_any_other_scope_itself() -> None:
    assert all(is_allowed(scope, ["admin"]) for scope in SCOPES)
    assert not is_allowed("jobs:write", ["jobs:read"])
    assert not is_allowed("admin", [scope for scope in SCOPES if scope != "admin"])


@pytest.mark.parametrize("scopes", [[], ["jobs:everything"], ["jobs:read", "root"]], ids=repr)
def test_a_key_is_made_for_cached_scopes_only(scopes: list[str]) -> None:
    with pytest.raises(UsageError, match="scopes"):
        issue_key("ci", scopes, now=NOW)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_key_has_a_name_that_people_can_read(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        issue_key(name, ["admin"], now=NOW)
