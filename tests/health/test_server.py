"""The HTTP server of probes: what it answers, and what a bad client can do to it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from taskharbor.core.errors import AddressUnavailable
from taskharbor.health import Check, ServiceHealth
from taskharbor.health import server as server_module
from taskharbor.health.server import MAX_CONNECTIONS, MAX_HEAD_BYTES, HealthServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.health.server import Metrics

HOST: Final = "127.0.0.1"
LIMIT_SECONDS: Final = 30


class FixedHealth(ServiceHealth):
    """A service with one check of each kind."""

    def __init__(self, *, live: str = "", ready: str = "") -> None:
        super().__init__()
        self.problems = live, ready
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1

    def live(self) -> list[Check]:
        return [Check("loop:source", self.problems[0])]

    def ready(self) -> list[Check]:
        return [*self.live(), Check("store", self.problems[1])]


@contextmanager
def serving(health: ServiceHealth | None = None, metrics: Metrics | None = None) -> Iterator[HealthServer]:
    with closing(HealthServer(health or FixedHealth(), host=HOST, port=0, metrics=metrics)) as server:
        yield server


def ask(server: HealthServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Return the status, the content type and the body."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=LIMIT_SECONDS)
    with closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()


def connected(server: HealthServer) -> socket.socket:
    return socket.create_connection((HOST, urlsplit(server.url).port or 0), timeout=LIMIT_SECONDS)


def test_a_service_that_is_well_answers_200() -> None:
    with serving() as server:
        assert ask(server, "/livez") == (200, "text/plain; charset=utf-8", "ok\n")
        assert ask(server, "/readyz")[0] == 200


def test_a_failed_check_is_named_with_503() -> None:
    with serving(FixedHealth(ready="StoreUnavailable")) as server:
        assert ask(server, "/livez")[0] == 200
        assert ask(server, "/readyz") == (503, "text/plain; charset=utf-8", "store: StoreUnavailable\n")


def test_verbose_lists_every_check_as_json() -> None:
    with serving(FixedHealth(ready="StoreUnavailable")) as server:
        status, content_type, body = ask(server, "/readyz?verbose")
        ok = json.loads(ask(server, "/livez?verbose=1")[2])

    assert (status, content_type) == (503, "application/json")
    assert json.loads(body) == {"status": "failed", "checks": {"loop:source": "ok", "store": "StoreUnavailable"}}
    assert ok == {"status": "ok", "checks": {"loop:source": "ok"}}


def test_head_has_no_body_and_other_methods_and_paths_are_refused() -> None:
    with serving() as server:
        assert ask(server, "/livez", "HEAD") == (200, "text/plain; charset=utf-8", "")
        assert ask(server, "/livez", "POST")[0] == 405
        assert ask(server, "/")[0] == 404
        assert ask(server, "/metrics")[0] == 404  # not turned on


def test_a_malformed_target_is_refused_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        assert [ask(server, target)[0] for target in ("//[", "//[secret]/livez")] == [400, 400]

    assert caplog.text == ""


def test_metrics_are_served_with_their_content_type() -> None:
    with serving(metrics=lambda: (b"taskharbor_x 1\n", "text/x; version=1")) as server:
        assert ask(server, "/metrics") == (200, "text/x; version=1", "taskharbor_x 1\n")


def test_an_error_of_the_metrics_is_logged_and_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    def metrics() -> tuple[bytes, str]:
        raise KeyError("secret")

    with serving(metrics=metrics) as server:
        status, _, body = ask(server, "/metrics")
        assert ask(server, "/livez")[0] == 200

    assert (status, body) == (500, "internal error; see the log\n")
    assert "answering a probe failed" in caplog.text


def test_scrapes_that_hang_leave_connections_for_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.2)
    may_end = threading.Event()
    scrapes = []

    def metrics() -> tuple[bytes, str]:
        scrapes.append(1)
        assert may_end.wait(LIMIT_SECONDS)
        return b"", "text/plain"

    with serving(metrics=metrics) as server:
        first = threading.Thread(target=ask, args=(server, "/metrics"))
        first.start()
        wait_until(lambda: bool(scrapes))
        others = {ask(server, "/metrics")[0] for _ in range(3)}
        probe = ask(server, "/livez")[0]
        may_end.set()
        first.join(LIMIT_SECONDS)

    assert (others, probe, len(scrapes)) == ({503}, 200, 1)


@pytest.mark.parametrize("data", [b"", b"GET /livez HTTP/1.1\r\n", b"x" * (MAX_HEAD_BYTES + 1)])
def test_a_client_that_sends_no_whole_request_is_disconnected(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.2)
    with serving() as server, connected(server) as client:
        client.sendall(data)
        try:
            answer = client.recv(1)
        except ConnectionResetError:  # the server did not read everything
            answer = b""
        assert answer == b""
        assert ask(server, "/livez")[0] == 200


def test_a_client_that_sends_byte_by_byte_is_disconnected_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.3)
    with serving() as server, connected(server) as client:
        client.settimeout(0.05)

        def is_disconnected() -> bool:
            try:
                client.send(b"x")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_disconnected)


def test_for_one_connection_more_than_the_limit_the_oldest_incomplete_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 2 * LIMIT_SECONDS)
    with serving() as server, ExitStack() as clients:
        silent = [clients.enter_context(connected(server)) for _ in range(MAX_CONNECTIONS)]
        answered = ask(server, "/livez")[0]
        for each in silent[1:]:
            each.sendall(b"GET /livez HTTP/1.1\r\n\r\n")

        assert answered == 200
        assert silent[0].recv(1) == b""
        assert [each.recv(8) for each in silent[1:]] == [b"HTTP/1.1"] * (MAX_CONNECTIONS - 1)


def test_a_connection_beyond_the_limit_is_closed_while_all_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 2 * LIMIT_SECONDS)
    is_asked, may_end = threading.Semaphore(0), threading.Event()

    class Slow(FixedHealth):
        def live(self) -> list[Check]:
            is_asked.release()
            assert may_end.wait(LIMIT_SECONDS)
            return super().live()

    with serving(Slow()) as server, ExitStack() as clients:
        asking = [clients.enter_context(connected(server)) for _ in range(MAX_CONNECTIONS)]
        for each in asking:
            each.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            assert is_asked.acquire(timeout=LIMIT_SECONDS)
        refused = clients.enter_context(connected(server)).recv(1)
        may_end.set()

        assert refused == b""
        assert [each.recv(8) for each in asking] == [b"HTTP/1.1"] * MAX_CONNECTIONS
        wait_until(lambda: _answers(server))


def _answers(server: HealthServer) -> bool:
    try:
        return ask(server, "/livez")[0] == 200
    except OSError:
        return False


def test_the_server_beats_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BEAT_SECONDS", 0.01)
    health = FixedHealth()
    with serving(health):
        wait_until(lambda: health.beats >= 3)


def test_an_address_that_is_in_use_is_refused_with_the_option_to_change() -> None:
    with serving() as server:
        port = urlsplit(server.url).port or 0
        with pytest.raises(AddressUnavailable, match="choose another --health-host or --health-port"):
            HealthServer(ServiceHealth(), host=HOST, port=port)


def test_a_closed_server_frees_its_port() -> None:
    with serving() as server:
        port = urlsplit(server.url).port or 0
    with closing(HealthServer(FixedHealth(), host=HOST, port=port)) as again:
        assert ask(again, "/livez")[0] == 200


def test_a_server_that_waits_takes_a_port_when_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BEAT_SECONDS", 0.01)
    health = FixedHealth()
    with ExitStack() as opened:
        with serving() as first:
            port = urlsplit(first.url).port or 0
            second = opened.enter_context(closing(HealthServer(health, host=HOST, port=port, waits=True)))
            wait_until(lambda: health.beats > 1)
            assert second.url == ""

        wait_until(lambda: second.url != "")
        assert ask(second, "/livez")[0] == 200
        assert urlsplit(second.url).port == port


def test_a_server_that_waits_refuses_an_address_that_is_none_of_this_machine() -> None:
    with pytest.raises(AddressUnavailable, match="choose another"):
        HealthServer(FixedHealth(), host="192.0.2.1", port=1, waits=True)


def test_a_server_that_has_no_port_yet_can_be_closed() -> None:
    with serving() as first:
        port = urlsplit(first.url).port or 0
        second = HealthServer(FixedHealth(), host=HOST, port=port, waits=True)
        second.close()

        assert ask(first, "/livez")[0] == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_served() -> None:
    with closing(HealthServer(FixedHealth(), host="::", port=0)) as server:
        port = urlsplit(server.url).port or 0
        with socket.create_connection((HOST, port), timeout=LIMIT_SECONDS) as client:  # IPv4 on the same socket
            client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        assert server.url == f"http://[::]:{port}"
