"""A client of an event stream. httpx's ASGI transport cannot be used because it waits for the whole response."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Self

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from types import TracebackType

    from tests.support.api_rig import ApiRig


class Stream:
    """An event stream that is read inside its context and disconnected at the end."""

    def __init__(self, site: ApiRig, path: str, *, reads: bool = True, key: str | None = None) -> None:
        self._site = site
        self._key = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        self._path, _, self._query = path.partition("?")
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._disconnected = asyncio.Event()
        self._reads = asyncio.Event()
        if reads:
            self._reads.set()
        self._is_request_sent = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": self._query.encode(),
            "root_path": "",
            "headers": [(b"host", b"localhost"), *self._key],
            "server": ("localhost", 80),
        }
        self._task = asyncio.ensure_future(self._site.app(scope, self._receive, self._send))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._disconnected.set()
        async with asyncio.timeout(LIMIT_SECONDS):
            await self._task

    async def next(self) -> tuple[str, Any]:
        """Return the next event's name and data."""
        async with asyncio.timeout(LIMIT_SECONDS):
            chunk = b""
            while not chunk.startswith(b"event: "):
                chunk = await self._chunks.get()
        name, data, *_ = chunk.decode().splitlines()
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def chunk(self) -> bytes:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await self._chunks.get()

    async def dropped(self) -> None:
        """Return once the server has ended this connection."""
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.shield(self._task)

    async def _receive(self) -> dict[str, Any]:
        if not self._is_request_sent:
            self._is_request_sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        await self._reads.wait()
        self._chunks.put_nowait(message["body"])
        if not message.get("more_body"):
            self.ended.set()
