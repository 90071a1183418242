"""Login, sessions, cookies, and forged requests."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
from fastapi import Request, Response

from taskharbor import Harbor, MemoryDriver
from taskharbor.api import create_app
from taskharbor.api.openapi import routes_of
from taskharbor.api.routing import PUBLIC
from taskharbor.api.server import ApiServer
from taskharbor.api_keys import SCOPES, KeyCache, issue_key, issue_session
from taskharbor.dashboard import dashboard
from taskharbor.dashboard.routing import HEADERS, UiRoute
from taskharbor.dashboard.sessions import Cookies, Person
from taskharbor.testing.clock import ManualClock
from tests.support.api_rig import bearer
from tests.support.dashboard_rig import ThreadedServer, serve_app, serve_site
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite

TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')


def token_of(response: httpx.Response) -> str:
    found = TOKEN.search(response.text)
    assert found is not None, response.text
    return found[1]


def log_in(client: httpx.Client, key: str) -> httpx.Response:
    form = {"token": token_of(client.get("/ui/login")), "key": key, "to": "/ui/queues"}
    return client.post("/ui/login", data=form)


def test_a_key_opens_a_session_that_its_revocation_ends(locked: UiSite) -> None:
    key = locked.key("jobs:read")
    with locked.http() as client:
        entered = log_in(client, key)
        assert (entered.status_code, entered.headers["location"]) == (303, "/ui/queues")
        assert client.get("/ui/queues").status_code == 200

        locked.driver.control.revoke_keys([key.split("_")[1]])

        took = wait_until(lambda: client.get("/ui/queues").status_code == 303)
        assert took < 15  # two, and what a busy machine adds


def test_a_session_ends_when_its_key_expires() -> None:
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)
    parent = issue_key("ana", ["jobs:read"], now=clock.now(), expires_at=clock.now() + timedelta(minutes=1))
    session = issue_session(parent.key, now=clock.now())
    driver.control.add_keys([parent.key, session.key])
    cache = KeyCache(lambda: driver.inspector, seconds=0, sessions=True)
    assert cache.find(session.text) == parent.key

    clock.advance(61)

    assert cache.find(session.text) is None


def test_the_session_cookie_is_strict_and_hidden_from_scripts(locked: UiSite) -> None:
    with locked.http() as client:
        cookie = log_in(client, locked.key("jobs:read")).headers["set-cookie"]

    assert cookie.startswith("taskharbor_")
    assert {"HttpOnly", "SameSite=strict", "Path=/ui", "Max-Age=43200"} <= {each.strip() for each in cookie.split(";")}
    assert "Secure" not in cookie


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_cookies_are_secure_under_https(scheme: str, is_secure: bool) -> None:
    request = Request({"type": "http", "scheme": scheme, "path": "/ui/login", "headers": [], "server": ("host", 80)})
    response = Response()

    Cookies("").put_session(response, "ths_x", request=request)

    assert ("Secure" in response.headers["set-cookie"]) is is_secure


def test_the_store_has_no_text_of_a_session(locked: UiSite) -> None:
    with locked.http() as client:
        log_in(client, locked.key("jobs:read"))
        [text] = [value for name, value in client.cookies.items() if "seed" not in name]

    assert text.startswith("ths_")
    assert text.split("_", 2)[2] not in repr(locked.driver.inspector.keys())


def test_a_wrong_key_is_rejected_on_the_login_page(locked: UiSite) -> None:
    with locked.http() as client:
        refused = log_in(client, "thk_000000000000_" + "x" * 43)

    assert refused.status_code == 422
    assert "not a valid API key" in refused.text


def test_the_api_takes_no_cookie_and_the_pages_take_no_key(locked: UiSite) -> None:
    key = locked.key("admin")
    with locked.http() as client:
        assert client.get("/ui/queues", headers=bearer(key)).status_code == 303
        log_in(client, key)
        [text] = [value for name, value in client.cookies.items() if "seed" not in name]

        assert client.get("/v1/queues", headers={"Cookie": f"{next(iter(client.cookies))}={text}"}).status_code == 401
        assert client.get("/v1/queues", headers=bearer(text)).status_code == 401


def test_a_key_with_a_parent_is_no_key_of_the_api() -> None:
    driver = MemoryDriver()
    child = issue_key("ana", ["admin"], now=driver.inspector.now(), parent="1a2b3c4d5e6f")
    driver.control.add_keys([child.key])

    assert KeyCache(lambda: driver.inspector).find(child.text) is None


def test_logging_out_ends_the_session_in_the_store(locked: UiSite) -> None:
    with locked.http() as client:
        log_in(client, locked.key("jobs:read"))
        kept = dict(client.cookies)
        client.post("/ui/logout", data={"token": token_of(client.get("/ui/queues"))})

    with locked.http(cookies=kept) as thief:
        assert thief.get("/ui/queues").status_code == 303


@pytest.mark.parametrize("flaw", ["token", "origin", "malformed origin", "site"])
def test_a_forged_form_is_rejected_and_changes_nothing(locked: UiSite, flaw: str) -> None:
    with locked.http() as client:
        log_in(client, locked.key("admin"))
        token = "0" * 64 if flaw == "token" else token_of(client.get("/ui/queues/mail/pause"))
        headers = {
            "origin": {"Origin": "http://evil.example"},
            "malformed origin": {"Origin": "http://["},
            "site": {"Sec-Fetch-Site": "same-site"},
        }.get(flaw, {})

        refused = client.post("/ui/queues/mail/pause", data={"token": token}, headers=headers)

    assert refused.status_code == 403
    assert locked.driver.inspector.queues() == []


def test_read_only_mode_rejects_every_form(tmp_path: object) -> None:
    with serve_site(f"sqlite:///{tmp_path}/jobs.db", read_only=True) as site, site.http() as client:
        token = token_of(client.get("/ui/queues"))
        posts = [each for each in ui_routes(site) if each.methods == {"POST"}]
        assert posts
        for route in posts:
            path = route.path_format.format(**dict.fromkeys(route.param_convertors, "nothing"))
            answer = client.post(path, data={"token": token})
            is_own = route.path_format in {"/ui/login", "/ui/logout", "/ui/look"}
            assert (answer.status_code == 403) is not is_own, path


def test_a_read_only_application_rejects_forms_of_its_dashboard(tmp_path: object) -> None:
    with Harbor(f"sqlite:///{tmp_path}/jobs.db") as harbor:
        app = create_app(harbor, needs_keys=False, read_only=True, parts=[dashboard()])
        with serve_app(app) as url, httpx.Client(base_url=url, headers={"Origin": url}) as client:
            page = client.get("/ui/queues")
            refused = client.post("/ui/queues/mail/pause", data={"token": token_of(page)})

        assert "read only" in page.text
        assert refused.status_code == 403
        assert harbor.driver.inspector.queues() == []


def ui_routes(site: UiSite) -> list[UiRoute]:
    return [each for each in routes_of(site.app) if isinstance(each, UiRoute)]


def test_every_page_needs_its_scope_and_names_it(locked: UiSite) -> None:
    streams = {"/ui/events"}
    routes = [each for each in ui_routes(locked) if each.path_format not in streams and each.methods == {"GET"}]
    keys = {scope: locked.key(scope) for scope in SCOPES}
    for scope, key in keys.items():
        with locked.http() as client:
            log_in(client, key)
            for route in routes:
                path = route.path_format.format(**dict.fromkeys(route.param_convertors, "nothing"))
                answer = client.get(path)
                if route.needs in {scope, PUBLIC} or scope == "admin":
                    assert answer.status_code in {200, 303, 308, 404, 422}, (path, scope)
                else:
                    assert answer.status_code == 403, (path, scope)
                    assert f"<code>{route.needs}</code>" in answer.text
                assert {name: answer.headers[name] for name in HEADERS if name != "Cache-Control"} == {
                    name: value for name, value in HEADERS.items() if name != "Cache-Control"
                }


def test_a_link_from_a_chat_opens_the_page(locked: UiSite, screen: Screen) -> None:
    screen.log_in(locked.key("admin"))
    screen.page.goto("about:blank")
    screen.page.set_content(f'<a href="{locked.url}/ui/queues/mail">look</a>')

    screen.page.click("a")

    screen.page.wait_for_selector("h1:has-text('mail')")


def test_without_scripts_a_link_from_a_chat_opens_the_page(locked: UiSite) -> None:
    with locked.http() as client:
        log_in(client, locked.key("admin"))
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Cookie": ""}
        first = client.get("/ui/queues", headers=link)

    assert (first.status_code, 'http-equiv="refresh"' in first.text) == (200, True)


def test_a_person_logs_in_and_out_in_the_browser(locked: UiSite, screen: Screen) -> None:
    screen.log_in(locked.key("jobs:read", name="ana"))
    screen.allowed.add(401)  # of an update of the page at that moment

    screen.page.click("summary[aria-label='View and account']")
    screen.page.click("text=Log out")

    screen.page.wait_for_url("**/ui/login")


def test_an_update_of_the_page_does_not_stop_a_logout(locked: UiSite, screen: Screen) -> None:
    screen.log_in(locked.key("jobs:read", name="ana"))
    screen.allowed.add(401)
    logouts: list[Route] = []

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            logouts.append(route)
        elif logouts and not route.request.is_navigation_request():
            route.fulfill(status=401)
        else:
            route.continue_()

    screen.page.route(re.compile(r"/ui/(logout)?$"), answer)
    screen.page.click("summary[aria-label='View and account']")
    with screen.page.expect_request("**/ui/logout"):
        screen.page.click("text=Log out", no_wait_after=True)
    with screen.page.expect_response(lambda response: response.status == 401):
        locked.enqueue("email.send", 1, queue="mail")
    logouts[0].continue_()

    screen.page.wait_for_url("**/ui/login")


ELSEWHERE: Final = "127.0.0.2"
"""An address of this machine that is not the one which is trusted by default, as that of a proxy elsewhere."""


@pytest.mark.parametrize(
    ("trusted", "is_secure"), [(None, False), (ELSEWHERE, True), ("10.0.0.7,127.0.0.2/31", True), ("10.0.0.7", False)]
)
def test_cookies_are_secure_behind_a_trusted_proxy_elsewhere(
    trusted: str | None, is_secure: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Trusting(ThreadedServer):
        def __init__(self, app: Any) -> None:
            ApiServer.__init__(self, app, forwarded_allow_ips=trusted)

    harbor = Harbor("memory://")
    key = issue_key("ana", ["jobs:read"], now=harbor.driver.inspector.now())
    harbor.driver.control.add_keys([key.key])
    app = create_app(harbor, needs_keys=True, parts=[dashboard()])
    with caplog.at_level("WARNING", "taskharbor.api"), harbor, serve_app(app, Trusting) as url:
        through = httpx.HTTPTransport(local_address=ELSEWHERE)
        headers = {"X-Forwarded-Proto": "https", "Host": "jobs.example.com", "Origin": "https://jobs.example.com"}
        with httpx.Client(base_url=url, transport=through, headers=headers) as client:
            seed = client.get("/ui/login")
            form = {"token": token_of(seed), "key": key.text, "to": "/ui/queues"}
            cookie = next(iter(seed.cookies.items()))
            entered = client.post("/ui/login", data=form, headers={"Cookie": "=".join(cookie)})

    assert entered.status_code == 303
    assert ("Secure" in entered.headers["set-cookie"]) is is_secure
    assert (f"the proxy {ELSEWHERE} says that it serves https, and is not trusted" in caplog.text) is not is_secure


def test_the_path_of_a_page_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_request: Request) -> Person:
        raise ZeroDivisionError

    with serve_site(authorize=fail) as site, site.http() as client:
        answer = client.get("/ui/queues/a%0A2030-01-01%20INFO%20all%20is%20well%1B%5B2J")

    [line] = [record.getMessage() for record in caplog.records if record.name == "taskharbor.api"]
    assert answer.status_code == 500
    assert line == r"GET /ui/queues/a\n2030-01-01 INFO all is well\x1b[2J failed"
