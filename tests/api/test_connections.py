"""Connection limits: slow clients and many clients do not block others."""

from __future__ import annotations

import asyncio
import logging
import resource
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from fastapi import FastAPI
from uvicorn import Config
from uvicorn.server import ServerState

from taskharbor.api import connections
from taskharbor.api.connections import BoundedProtocol, ConnectionLimits, max_connections
from taskharbor.api.server import ApiServer
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

GET: Final = b"GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF: Final = b"GET /quick HTTP/1.1\r\nHost: loc"
HALF_BODY: Final = b"POST /reads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"
CHUNKED: Final = b"GET /quick HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
BAD_CHUNK: Final = b"ZZ\r\n"
SHORT_SECONDS: Final = 0.5


class App:
    """An app that responds immediately; /slow waits for an event, /reads for the body, /large sends 50 MB.

    /endless begins a response, and ends it only when the client is gone.
    """

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.is_requested = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b"ok"
        if scope["path"] == "/slow":
            self.is_requested.set()
            await self.may_end.wait()
        elif scope["path"] == "/reads":
            while (await receive()).get("more_body"):
                pass
        elif scope["path"] == "/large":
            body = bytes(50_000_000)
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> bytes:
        """Return the status line of a response; nothing if the connection is closed."""
        try:
            return (await self._reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def body(self) -> bytes:
        return await self._reader.readexactly(2)

    async def closed(self) -> bool:
        try:
            return await self._reader.read() is not None
        except ConnectionError:
            return True

    def close(self) -> None:
        self._writer.transport.abort()


class ConnectionRig:
    """A server with connection limits and its clients, on one event loop."""

    def __init__(self, app: App, bounds: ConnectionLimits, port: int) -> None:
        self.app, self.bounds = app, bounds
        self._port = port
        self._clients: list[Client] = []

    async def connect(self, data: bytes = b"") -> Client:
        """Connect and send *data*."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port, limit=2**20))
        client.send(data)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def serving(max_open: int = 100) -> AsyncIterator[ConnectionRig]:
    app, bounds, state = App(), ConnectionLimits(max_open), ServerState()
    config = Config(app, log_config=None, access_log=False, timeout_keep_alive=30)
    config.load()

    def make() -> BoundedProtocol:
        return BoundedProtocol(config=config, server_state=state, app_state={}, bounds=bounds)

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    rig = ConnectionRig(app, bounds, server.sockets[0].getsockname()[1])
    try:
        yield rig
    finally:
        app.may_end.set()
        rig.close()
        server.close()
        await asyncio.gather(*state.tasks, return_exceptions=True)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await work

    asyncio.run(timed())


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(connections, name, SHORT_SECONDS)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("sent", [b"", HALF])
def test_a_request_whose_headers_do_not_end_is_closed(sent: bytes) -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(sent)

            assert await client.answer() == b"HTTP/1.1 408 Request Timeout"
            assert await client.closed()

    run(check())


def test_single_bytes_do_not_extend_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 2.0)  # no pause between two bytes takes so long

    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(HALF)
            answer = asyncio.create_task(client.answer())
            while not answer.done():
                client.send(b"x")
                await asyncio.wait([answer], timeout=0.05)

            assert answer.result() == b"HTTP/1.1 408 Request Timeout"

    run(check())


@pytest.mark.usefixtures("_quick")
def test_a_second_request_on_a_connection_has_a_deadline_too() -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(GET)
            assert await client.answer() == b"HTTP/1.1 200 OK"
            assert await client.body() == b"ok"
            client.send(HALF)

            assert await client.answer() == b"HTTP/1.1 408 Request Timeout"

    run(check())


@pytest.mark.usefixtures("_quick")
def test_a_connection_idle_between_requests_has_no_header_deadline() -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(GET)
            await client.answer()
            await client.body()
            await asyncio.sleep(2 * SHORT_SECONDS)
            client.send(GET)

            assert await client.answer() == b"HTTP/1.1 200 OK"

    run(check())


@pytest.mark.usefixtures("_quick")
def test_a_body_that_does_not_end_is_closed() -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(HALF_BODY)

            assert await client.answer() == b""

    run(check())


def test_a_malformed_body_is_refused_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(CHUNKED + BAD_CHUNK)

            assert await client.answer() == b"HTTP/1.1 400 Bad Request"
            assert await client.closed()

    run(check())
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_a_malformed_body_of_a_head_request_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(CHUNKED.replace(b"GET", b"HEAD") + BAD_CHUNK)

            assert await client.closed()

    run(check())
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("path", [b"/quick", b"/endless"])
def test_a_malformed_body_after_the_response_has_begun_is_no_error(
    path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(CHUNKED.replace(b"/quick", path))
            assert await client.answer() == b"HTTP/1.1 200 OK"

            client.send(BAD_CHUNK)
            assert await client.closed()

    run(check())
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.usefixtures("_quick")
def test_an_answer_may_take_longer_than_a_request() -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(GET.replace(b"/quick", b"/slow"))
            await rig.app.is_requested.wait()
            await asyncio.sleep(2 * SHORT_SECONDS)
            rig.app.may_end.set()

            assert await client.answer() == b"HTTP/1.1 200 OK"

    run(check())


@pytest.mark.usefixtures("_quick")
def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    async def check() -> None:
        async with serving() as rig:
            client = await rig.connect(GET.replace(b"/quick", b"/large"))
            await asyncio.to_thread(wait_until, lambda: len(rig.bounds) == 1)
            await asyncio.to_thread(wait_until, lambda: len(rig.bounds) == 0)  # 50 MB exceed all buffers

            assert await client.closed()

    run(check())


def test_incomplete_requests_are_closed_for_new_connections_oldest_first() -> None:
    async def check() -> None:
        async with serving(max_open=3) as rig:
            half = [await rig.connect(HALF) for _ in range(3)]
            await asyncio.to_thread(wait_until, lambda: len(rig.bounds) == 3)
            client = await rig.connect(GET)

            assert await client.answer() == b"HTTP/1.1 200 OK"
            assert await half[0].answer() == b""
            assert len(rig.bounds) == 3

    run(check())


def test_idle_connections_are_closed_for_new_ones() -> None:
    async def check() -> None:
        async with serving(max_open=2) as rig:
            idle = [await rig.connect(GET) for _ in range(2)]
            for client in idle:
                await client.answer()
                await client.body()
            new = await rig.connect(GET)

            assert await new.answer() == b"HTTP/1.1 200 OK"
            assert await idle[0].answer() == b""

    run(check())


def test_a_connection_with_a_running_request_is_not_closed_for_another(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with serving(max_open=2) as rig:
            slow = [await rig.connect(GET.replace(b"/quick", b"/slow")), await rig.connect(HALF_BODY)]
            await rig.app.is_requested.wait()
            phases = rig.bounds._phases  # noqa: SLF001  both requests were read
            await asyncio.to_thread(
                wait_until, lambda: sorted(map(str, phases.values())) == ["RequestPhase.ANSWER", "RequestPhase.BODY"]
            )
            refused = await rig.connect(GET)
            assert await refused.answer() == b""

            rig.app.may_end.set()
            assert await slow[0].answer() == b"HTTP/1.1 200 OK"
            assert await (await rig.connect(GET)).answer() == b"HTTP/1.1 200 OK"

    run(check())

    assert caplog.messages[0] == "connection refused: all 2 connections are processing requests"


def test_an_installed_websocket_library_takes_over_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvicorn.protocols.websockets.auto.AutoWebSocketsProtocol", object)  # as if it was installed
    config = ApiServer(FastAPI()).config

    config.load()

    assert config.ws_protocol_class is None


def test_there_are_no_more_connections_than_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        most = max_connections()
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert most == min(connections.MAX_CONNECTIONS, allowed - connections.RESERVED_FILES)
        assert allowed >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
