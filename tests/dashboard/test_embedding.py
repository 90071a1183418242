"""The dashboard inside other applications: FastAPI, Starlette, Django, and behind a proxy that removes a prefix."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from taskharbor import Harbor
from taskharbor.api import create_app, lifespan_for
from taskharbor.api.server import ApiServer
from taskharbor.core.request import JobRequest
from taskharbor.dashboard import Person, dashboard
from tests.support.browser import WIDE, Screen
from tests.support.dashboard_rig import ThreadedServer, serve_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

ROOT: Final = Path(__file__).parents[2]
WEEK: Final = timedelta(days=7)
ADDRESSES: Final = """all => all.map(e => {
  const own = e.getAttribute("href") || "";
  return own.startsWith("#") ? "#" : new URL(own || e.src || e.action, location.href).href;
})"""


def in_fastapi(harbor: Harbor, api: Any) -> Any:
    app = FastAPI(lifespan=lifespan_for(harbor))
    app.mount("/background", api)
    return app


def in_starlette(harbor: Harbor, api: Any) -> Any:
    return Starlette(routes=[Mount("/background", api)], lifespan=lifespan_for(harbor))


@pytest.mark.parametrize("mounted", [in_fastapi, in_starlette])
def test_a_mounted_dashboard_stays_below_its_path(browser: Browser, mounted: Callable[[Harbor, Any], Any]) -> None:
    harbor = Harbor("memory://")
    app = mounted(harbor, create_app(harbor, needs_keys=False, parts=[dashboard()]))
    with serve_app(app) as address, looking_at(browser, f"{address}/background") as screen:
        harbor.client.enqueue(JobRequest(type="greet", queue="mail"))
        harbor.driver.maintenance.roll_up(keep=WEEK)
        screen.go("/queues")
        screen.page.wait_for_selector("#live:has-text('live')")
        screen.page.click("text=mail")
        screen.page.click("text=Pause…")
        screen.page.click("dialog button:has-text('Pause')")
        screen.page.wait_for_selector(".note:has-text('is paused')")
        addresses = screen.page.eval_on_selector_all("[href], [src], [action]", ADDRESSES)

        assert addresses
        assert all(each.startswith((f"{address}/background/ui", "#")) for each in addresses)
        assert {each["path"] for each in screen.context.cookies()} == {"/background/ui"}


def test_behind_a_proxy_that_removes_a_prefix_links_have_it() -> None:
    harbor = Harbor("memory://")

    class Prefixed(ThreadedServer):
        def __init__(self, app: Any) -> None:
            ApiServer.__init__(self, app, root_path="/jobs")

    with harbor, serve_app(create_app(harbor, needs_keys=False, parts=[dashboard()]), Prefixed) as address:
        page = httpx.get(f"{address}/ui/queues").text

    assert 'href="/jobs/ui/queues"' in page
    assert 'href="/ui/' not in page


def test_the_host_decides_who_may_see_the_dashboard() -> None:
    def authorize(request: Any) -> Person | None:
        name = request.headers.get("x-user")
        return None if name is None else Person(name, {"jobs:read"})

    harbor = Harbor("memory://")
    with harbor, serve_app(create_app(harbor, parts=[dashboard(authorize=authorize)])) as address:
        answers = [
            httpx.get(f"{address}/ui{path}", headers=headers).status_code
            for path, headers in (
                ("/queues", {}),
                ("/queues", {"X-User": "ana"}),
                ("/queues/mail/pause", {"X-User": "ana"}),
            )
        ]

        assert answers == [401, 200, 403]
        assert httpx.get(f"{address}/ui/login").status_code == 401


def test_djangos_staff_use_the_dashboard_with_their_own_login() -> None:
    command = [sys.executable, "-m", "tests.support.dashboard_django"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        answers = {}
        for name in ("ana", "bob"):
            with httpx.Client(base_url=address, timeout=30) as client:
                before = client.get("/background/ui/queues").status_code
                client.get("/enter", params={"name": name})
                answers[name] = (before, client.get("/background/ui/queues").status_code)
        server.communicate(timeout=30)

    assert answers == {"ana": (401, 200), "bob": (401, 401)}


@contextmanager
def looking_at(browser: Browser, url: str) -> Iterator[Screen]:
    context = browser.new_context(viewport={"width": WIDE, "height": 800})
    screen = Screen(context, url)
    yield screen
    screen.check()
    context.close()
