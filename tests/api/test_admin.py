"""The audit log, keys, the health of the store, and the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskharbor._version import __version__
from taskharbor.api_keys import SCOPES
from taskharbor.core.ids import new_token
from taskharbor.core.model import AuditEntry
from tests.support.api_rig import bearer, opened, problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_rig import ApiRig


@pytest.fixture
def locked() -> Iterator[ApiRig]:
    with opened(needs_keys=True) as site:
        yield site


def record(site: ApiRig, actor: str, action: str, target: str) -> None:
    entry = AuditEntry(id=new_token(), actor=actor, action=action, target=target)
    site.driver.control.record_audit([entry])


def test_the_audit_log_is_filtered_by_each_field_and_by_all(site: ApiRig) -> None:
    record(site, "ann", "queues.pause", "mail")
    record(site, "bob", "queues.pause", "mail")
    record(site, "ann", "queues.resume", "mail")
    record(site, "ann", "queues.pause", "images")

    def targets(**params: str) -> list[tuple[str, str]]:
        entries = site.get("/v1/audit", params=params).json()["entries"]
        return [(each["actor"], each["action"].removeprefix("queues.")) for each in entries]

    assert targets(target="mail") == [("ann", "resume"), ("bob", "pause"), ("ann", "pause")]
    assert targets(actor="bob") == [("bob", "pause")]
    assert targets(action="queues.resume") == [("ann", "resume")]
    assert targets(target="mail", actor="ann", action="queues.pause") == [("ann", "pause")]


def test_pages_of_the_audit_log_hold_every_entry_once(site: ApiRig) -> None:
    for number in range(5):
        record(site, "ann", "queues.pause", f"q{number}")

    seen, cursor = [], None
    while True:
        page = site.get("/v1/audit", params={"limit": 2} | ({} if cursor is None else {"cursor": cursor})).json()
        seen += [each["target"] for each in page["entries"]]
        cursor = page["next"]
        if cursor is None:
            break

    assert seen == ["q4", "q3", "q2", "q1", "q0"]


def test_a_key_made_over_http_works_and_its_text_is_returned_once(locked: ApiRig) -> None:
    admin = bearer(locked.key("admin"))

    made = locked.post("/v1/keys", {"name": "ci", "scopes": ["jobs:write"], "expires_in": 60}, headers=admin)

    assert made.status_code == 201
    text = made.json()["key"]
    assert locked.post("/v1/jobs", {"type": "greet"}, headers=bearer(text)).status_code == 201
    listed = locked.get("/v1/keys", headers=admin)
    assert text not in listed.text
    [own] = [each for each in listed.json()["keys"] if each["id"] == made.json()["id"]]
    assert (own["kind"], own["parent"], own["scopes"]) == ("key", None, ["jobs:write"])
    assert own["used_at"] is not None
    [entry] = [each for each in locked.audited() if each.action == "keys.create"]
    assert text not in str(entry)


def test_a_revoked_key_and_its_sessions_are_rejected(locked: ApiRig) -> None:
    admin = bearer(locked.key("admin"))
    text = locked.key("jobs:read")
    session = locked.key("jobs:read", parent=text.split("_")[1])

    revoked = locked.post(f"/v1/keys/{text.split('_')[1]}/revoke", headers=admin)

    assert revoked.json()["revoked_at"] is not None
    for each in (text, session):
        assert locked.get("/v1/jobs", headers=bearer(each)).status_code == 401
    assert problem(locked.post("/v1/keys/nothing/revoke", headers=admin))["code"] == "key-not-found"
    assert len(locked.get("/v1/keys", headers=admin).json()["keys"]) == 2
    kinds = [each["kind"] for each in locked.get("/v1/keys?sessions=true", headers=admin).json()["keys"]]
    assert sorted(kinds) == ["key", "key", "session"]


def test_health_has_the_findings_of_the_doctor_and_is_cached(site: ApiRig) -> None:
    site.create()
    site.dead(queue="mail")
    site.roll_up()

    first = site.get("/v1/health").json()
    site.dead(queue="mail")
    site.roll_up()
    again = site.get("/v1/health").json()

    assert first["level"] == "warn"
    assert "dead letters" in [each["check"] for each in first["findings"] if each["level"] == "warn"]
    assert again == first


def test_every_key_may_read_its_name_and_scopes(locked: ApiRig) -> None:
    text = locked.key("metrics:read")

    caller = locked.get("/v1/me", headers=bearer(text)).json()

    assert caller == {
        "name": f"key:{text.split('_')[1]} ci",
        "key_id": text.split("_")[1],
        "scopes": ["metrics:read"],
        "read_only": False,
        "versions": {"taskharbor": __version__, "app": "4f2c"},
    }
    assert locked.get("/v1/me").status_code == 401


def test_without_keys_the_caller_is_anonymous_with_all_scopes(site: ApiRig) -> None:
    caller = site.get("/v1/me").json()

    assert (caller["name"], caller["key_id"], caller["scopes"]) == ("anonymous", None, sorted(SCOPES))
