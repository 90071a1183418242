"""Every page in both themes and widths: accessibility, layout, policy. Pictures are saved to .cache/screens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.support.browser import tour
from tests.support.dashboard_rig import beat

if TYPE_CHECKING:
    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite

PAGES: Final = {
    "overview": "/",
    "queues": "/queues",
    "queue": "/queues/mail",
    "queue-paused": "/queues/images",
    "queue-pause": "/queues/mail/pause",
    "queue-resume": "/queues/images/resume",
    "find": "/find?q=mail",
    "jobs": "/jobs",
    "jobs-none": "/jobs?queue=absent",
    "bulk": "/jobs/bulk?kind=requeue&all=1&status=DEAD",
    "operations": "/operations",
    "job": "/jobs/{dead}",
    "job-retry": "/jobs/{retry}",
    "job-requeue": "/jobs/{dead}/requeue",
    "job-duplicate": "/jobs/{dead}/duplicate",
    "payload": "/jobs/{dead}/payload",
    "dead": "/dead",
    "dead-group": "/dead/c0ffee0000000001",
    "schedules": "/schedules",
    "schedule": "/schedules/digest",
    "workers": "/workers",
    "worker": "/workers/web-1",
    "audit": "/audit",
    "keys": "/keys",
    "key-new": "/keys/new",
    "health": "/health",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_well_laid_out(seeded: UiSite, screen: Screen, name: str) -> None:
    assert seeded.url == screen.url
    beat(seeded)  # all pages take a minute; a worker is silent after 30 s

    assert tour(screen, name, PAGES[name].format(**seeded.jobs)) == []
