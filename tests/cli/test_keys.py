from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskharbor.api_keys import KeyCache
from taskharbor.cli.main import ExitCode

if TYPE_CHECKING:
    from tests.support.console import Console


def test_a_created_key_is_printed_once_and_has_its_scopes(any_console: Console) -> None:
    said = any_console("keys", "create", "ci", "--scope", "jobs:write", "--scope", "jobs:read")

    key = KeyCache(lambda: any_console.driver.inspector).find(said.out.strip())
    assert said.code == ExitCode.OK
    assert key is not None
    assert (key.name, key.scopes, key.expires_at) == ("ci", ("jobs:read", "jobs:write"), None)
    assert "cannot be shown again" in said.err
    assert said.out.strip() not in any_console("keys", "list").out
    [entry] = any_console.audit()
    assert (entry.action, entry.target) == ("keys.create", key.id)
    assert said.out.strip() not in str(entry)


def test_a_revoked_key_is_invalid_but_still_listed(any_console: Console) -> None:
    made = any_console("keys", "create", "ci", "--scope", "admin", "--expires-in", "1h", "--json").data

    revoked, again = any_console("keys", "revoke", made["id"]), any_console("keys", "revoke", made["id"])

    assert (revoked.code, revoked.out) == (ExitCode.OK, f"{made['id']}\n")
    assert (again.code, again.err) == (ExitCode.OK, f"key {made['id']} was already revoked\n")
    assert KeyCache(lambda: any_console.driver.inspector).find(made["key"]) is None
    [view] = any_console("keys", "list", "--json").data["keys"]
    assert {name for name, value in view.items() if value is None} == {"used_at", "parent"}
    assert [entry.action for entry in any_console.audit()] == ["keys.revoke", "keys.create"]


def test_the_last_use_of_a_key_is_listed(any_console: Console) -> None:
    made = any_console("keys", "create", "ci", "--scope", "admin", "--json").data
    any_console.driver.control.note_key_use([made["id"]])

    [view] = any_console("keys", "list", "--json").data["keys"]

    assert view["used_at"] >= view["created_at"]
    assert any_console("keys", "list").code == ExitCode.OK


def test_an_unknown_key_id_suggests_the_nearest(console: Console) -> None:
    made = console("keys", "create", "ci", "--scope", "admin", "--json").data

    said = console("keys", "revoke", made["id"][:-1])

    assert (said.code, said.out) == (ExitCode.NOT_FOUND, "")
    assert f"did you mean {made['id']!r}?" in said.err


@pytest.mark.parametrize(
    "words",
    [["create"], ["create", "ci"], ["create", "ci", "--scope", "jobs"], ["create", "", "--scope", "admin"], ["revoke"]],
    ids=" ".join,
)
def test_a_wrong_line_is_a_usage_error(words: list[str], console: Console) -> None:
    said = console("keys", *words)

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    assert len(said.err.splitlines()) == 1
    assert console.audit() == []
