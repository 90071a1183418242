"""Who may use the API: keys that are stored once, and revoked once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from taskharbor.core.model import ApiKey
from taskharbor.testing.conformance.subject import LONG_AGO, TICK, Subject

_YEAR: Final = timedelta(days=365)


def test_an_api_key_is_kept_as_it_was_given(subject: Subject) -> None:
    key = api_key("k1", scopes=("jobs:read", "jobs:write"), expires_at=LONG_AGO + _YEAR)
    bare = api_key("k2", name="", digest=b"\x00\xff", scopes=())

    answers = subject.driver.control.add_keys([key, bare])

    assert answers == [True, True]
    assert subject.driver.inspector.keys() == {"k1": key, "k2": bare}


def test_an_id_that_is_taken_keeps_its_key(subject: Subject) -> None:
    first = api_key("k1", digest=b"first")
    subject.driver.control.add_keys([first])

    answers = subject.driver.control.add_keys([api_key("k1", digest=b"second"), api_key("k2")])

    assert answers == [False, True]
    assert subject.driver.inspector.keys(["k1"]) == {"k1": first}


def test_a_revoked_key_tells_since_when(subject: Subject) -> None:
    key = api_key("k1")
    subject.driver.control.add_keys([key])
    subject.advance(TICK)

    answers = subject.driver.control.revoke_keys(["k1", "unknown"])

    assert answers == [True, False]
    assert subject.driver.inspector.keys() == {"k1": replace(key, revoked_at=subject.clock.now())}


def test_a_key_is_revoked_once(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key("k1")])
    subject.driver.control.revoke_keys(["k1"])
    before = subject.driver.inspector.keys()
    subject.advance(TICK)

    answers = subject.driver.control.revoke_keys(["k1"])

    assert (answers, subject.driver.inspector.keys()) == ([False], before)


def test_a_revoked_key_cannot_be_put_again(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key("k1")])
    subject.driver.control.revoke_keys(["k1"])
    before = subject.driver.inspector.keys()

    answers = subject.driver.control.add_keys([api_key("k1")])

    assert (answers, subject.driver.inspector.keys()) == ([False], before)


def test_the_last_use_of_a_key_is_kept(subject: Subject) -> None:
    used, idle = api_key("k1"), api_key("k2")
    subject.driver.control.add_keys([used, idle])
    subject.advance(TICK)
    subject.driver.control.note_key_use(["k1", "unknown"])
    subject.advance(TICK)

    subject.driver.control.note_key_use(["k1"])

    assert subject.driver.inspector.keys() == {"k1": replace(used, used_at=subject.clock.now()), "k2": idle}


def test_a_use_leaves_a_revoked_key_revoked(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key("k1")])
    subject.driver.control.revoke_keys(["k1"])
    [revoked] = subject.driver.inspector.keys().values()

    subject.driver.control.note_key_use(["k1"])

    assert subject.driver.inspector.keys(["k1"]) == {"k1": replace(revoked, used_at=subject.clock.now())}


def test_api_keys_are_listed_by_id(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key(key_id) for key_id in ("k2", "k3", "k1")])

    assert list(subject.driver.inspector.keys()) == ["k1", "k2", "k3"]


def test_only_the_keys_that_are_asked_for_are_given(subject: Subject) -> None:
    subject.driver.control.add_keys([api_key(key_id) for key_id in ("k1", "k2", "k3")])

    assert list(subject.driver.inspector.keys(["k3", "unknown", "k1"])) == ["k1", "k3"]
    assert subject.driver.inspector.keys([]) == {}


def api_key(key_id: str, **fields: Any) -> ApiKey:
    defaults: dict[str, Any] = {"name": "deploy", "digest": b"digest", "scopes": ("read",), "created_at": LONG_AGO}
    return ApiKey(id=key_id, **defaults | fields)
