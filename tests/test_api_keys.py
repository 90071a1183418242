from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from taskharbor import MemoryDriver
from taskharbor.api_keys import SCOPES, KeyCache, has_valid_key, is_allowed, issue_key, key_digest
from taskharbor.core.errors import UsageError
from taskharbor.testing.clock import ManualClock

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)


class KeyRig:
    """A store with keys and a key cache on one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.driver = MemoryDriver(clock=self.clock)
        self.cache = KeyCache(lambda: self.driver.inspector, monotonic=lambda: self.clock.now().timestamp())

    def issue(self, *scopes: str, **options: Any) -> tuple[str, str]:
        issued = issue_key("ci", scopes or ("jobs:read",), now=self.clock.now(), **options)
        assert self.driver.control.add_keys([issued.key]) == [True]
        return issued.key.id, issued.text

    def accepts(self, text: str) -> bool:
        known, key = self.cache.remembered(text)
        return (key if known else self.cache.find(text)) is not None


def test_an_issued_key_is_valid_and_stored_without_its_secret() -> None:
    rig = KeyRig()

    key_id, text = rig.issue("jobs:write", "jobs:read")

    found = rig.cache.find(text)
    assert found is not None
    assert (found.id, found.scopes) == (key_id, ("jobs:read", "jobs:write"))
    stored = rig.driver.inspector.keys()[key_id]
    assert stored.digest == key_digest(text)
    assert text.split("_", 2)[2] not in repr(stored)


def test_the_repr_of_an_issued_key_hides_the_secret() -> None:
    issued = issue_key("ci", ["admin"], now=NOW)

    assert issued.text not in repr(issued)


@pytest.mark.parametrize("text", ["", "thk_", "thk_0123456789ab_short", "Bearer", "é" * 60, "thk_" + "0" * 12 + "_é"])
def test_malformed_keys_are_rejected_without_a_store_query(text: str) -> None:
    rig = KeyRig()
    before = rig.driver.statements

    assert not rig.accepts(text)
    assert rig.driver.statements == before


def test_a_known_id_with_another_secret_is_rejected() -> None:
    rig = KeyRig()
    key_id, text = rig.issue()
    other = issue_key("ci", ["admin"], now=NOW)

    assert not rig.accepts(f"thk_{key_id}_{other.text.split('_', 2)[2]}")
    assert rig.accepts(text)


def test_a_revoked_key_is_rejected_after_five_seconds() -> None:
    rig = KeyRig()
    key_id, text = rig.issue()
    assert rig.accepts(text)

    rig.driver.control.revoke_keys([key_id])

    rig.clock.advance(timedelta(seconds=5))
    assert not rig.accepts(text)


def test_a_key_is_rejected_from_its_expiry_time() -> None:
    rig = KeyRig()
    _, text = rig.issue(expires_at=NOW + timedelta(seconds=3))
    assert rig.accepts(text)

    rig.clock.advance(timedelta(seconds=3))

    assert not rig.accepts(text)


def test_a_valid_key_is_read_once_in_five_seconds() -> None:
    rig = KeyRig()
    _, text = rig.issue()
    rig.accepts(text)
    before = rig.driver.statements

    rig.clock.advance(timedelta(seconds=4))

    assert rig.accepts(text)
    assert rig.driver.statements == before


def test_the_cache_of_rejected_keys_is_bounded() -> None:
    rig = KeyRig()
    for _ in range(3_000):
        rig.accepts(issue_key("ci", ["admin"], now=NOW).text)

    assert len(rig.cache._cached) <= 1_024  # noqa: SLF001  its size is under test


def test_admin_includes_every_scope_and_others_only_themselves() -> None:
    assert all(is_allowed(scope, ["admin"]) for scope in SCOPES)
    assert not is_allowed("jobs:write", ["jobs:read"])
    assert not is_allowed("admin", [scope for scope in SCOPES if scope != "admin"])


@pytest.mark.parametrize("scopes", [[], ["jobs:everything"], ["jobs:read", "root"]], ids=repr)
def test_a_key_with_unknown_scopes_is_refused(scopes: list[str]) -> None:
    with pytest.raises(UsageError, match="scopes"):
        issue_key("ci", scopes, now=NOW)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_key_with_an_empty_or_long_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        issue_key(name, ["admin"], now=NOW)


def test_a_session_alone_does_not_make_keys_required() -> None:
    driver = MemoryDriver()
    session = issue_key("ana", ["admin"], now=driver.inspector.now(), parent="1a2b3c4d5e6f")
    driver.control.add_keys([session.key])

    assert not has_valid_key(driver.inspector)
