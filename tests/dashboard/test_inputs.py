"""Addresses, forms and cookies that no page of the dashboard makes."""

from __future__ import annotations

from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.dashboard.test_sessions import token_of

if TYPE_CHECKING:
    from tests.support.dashboard_rig import UiSite


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ui/jobs?since=99999999d", 200),
        ("/ui/jobs?since=0001-01-01", 200),
        ("/ui/jobs?until=0001-01-01T00:00%2B14:00", 200),
        ("/ui/jobs/bulk?kind=cancel&all=1&since=99999999d", 422),
        ("/ui/audit?actor=a%00", 404),
        ("/ui/find?q=a%00", 404),
        ("/ui/workers/a%00", 404),
    ],
)
def test_a_malformed_address_is_answered_with_a_page(seeded: UiSite, path: str, status: int) -> None:
    with seeded.http() as client:
        answer = client.get(path)

    assert answer.status_code == status
    assert ("write an age such as" in answer.text.lower()) is (status != 404)


def test_a_form_with_too_many_fields_or_nul_is_rejected(site: UiSite) -> None:
    with site.http() as client:
        token = token_of(client.get("/ui/queues"))
        many = client.post("/ui/look", data={"token": token} | {str(number): "x" for number in range(2_001)})
        nul = client.post("/ui/queues/mail/pause", data={"token": token, "reason": "a\0b"})

    assert (many.status_code, nul.status_code) == (422, 422)
    assert site.driver.inspector.queues() == []


@pytest.mark.parametrize(
    "value", ["[" * 20_000, quote('{"text": "call 555", "undo": "/queues/mail/pause"}'), quote(f'{"0" * 64} "ä"')]
)
def test_a_message_that_another_site_has_set_is_ignored(seeded: UiSite, value: str) -> None:
    with seeded.http() as client:
        client.get("/ui/queues")
        [(seed, secret)] = client.cookies.items()
        cookies = f"{seed}={secret}; {seed.replace('seed', 'note')}={value}"

        answer = client.get("/ui/queues", headers={"Cookie": cookies})

    assert (answer.status_code, 'class="note"' in answer.text) == (200, False)


def test_a_shown_command_quotes_what_the_address_has(seeded: UiSite) -> None:
    with seeded.http() as client:
        answer = client.get("/ui/jobs", params={"queue": "mail; rm -rf ~"})

    assert "taskharbor jobs list --queue 'mail; rm -rf ~'\n" in unescape(answer.text).replace("</code>", "\n")
