"""The endpoint: HTTP on a port of this machine, served by one thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskharbor.testing.sqs.faults import EndpointFaults
from taskharbor.testing.sqs.service import REGION, Service
from taskharbor.testing.sqs.validation import SqsError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from taskharbor.testing.sqs.queues import Queue

_TARGET: Final = "AmazonSQS."
_T = TypeVar("_T")
_HOST: Final = "127.0.0.1"
_DEADLINE: Final = 10.0  # seconds for anything that is asked of the thread
_MAX_HEAD: Final = 1_048_576
_CONTROL: Final = "/_control"


@dataclass(frozen=True, slots=True)
class Request:
    """A call. *operation* is empty where it is none of SQS."""

    path: str
    operation: str
    body: Mapping[str, Any]


async def read(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request of a connection, or None where it ends."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        text = await reader.readexactly(int(headers.get("content-length") or 0))
    except asyncio.IncompleteReadError:  # also where a client is killed in the middle of a request
        return None
    return Request(
        path=first.split(" ")[1],
        operation=headers.get("x-amz-target", "").removeprefix(_TARGET),
        body=json.loads(text or b"{}"),
    )


def answer(body: Mapping[str, Any]) -> bytes:
    return _response(HTTPStatus.OK, body)


def refusal(error: SqsError) -> bytes:
    body = {"__type": f"com.amazonaws.sqs#{error.code}", "message": error.message}
    return _response(HTTPStatus(error.status), body, f"x-amzn-query-error: {error.header}\r\n")


def _response(status: HTTPStatus, body: Mapping[str, Any], more: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    )
    return head.encode("latin-1") + content


class Endpoint:
    """An SQS that speaks with boto3, and fails as *faults* says: assign another, and it holds from the next call on.

    `requests` counts calls by operation, `happened` the faults that came true. A process of its own
    (`python -m taskharbor.testing.sqs`) is told and asked the same over HTTP, at `/_control`.
    """

    region: Final = REGION

    def __init__(self, *, port: int, faults: EndpointFaults, seed: int) -> None:
        self.port, self.faults = port, faults
        self.requests: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        random = Random(seed)  # noqa: S311  which call fails is no secret
        self._service = Service(random, self.happened)
        self._bells: dict[str, set[asyncio.Future[None]]] = {}
        self._connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._ahead = 0.0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sqs-endpoint", daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, *, port: int = 0, faults: EndpointFaults | None = None, seed: int = 0) -> Endpoint:
        """Start an endpoint in this process, on a free port unless one is given."""
        endpoint = cls(port=port, faults=faults or EndpointFaults(), seed=seed)
        endpoint.come_back()
        return endpoint

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def depth(self, name: str) -> tuple[int, int, int]:
        """Return how many messages of a queue are ready, in flight and delayed. *name* is its name in SQS."""
        return self._run(self._depth(name))

    def go_away(self) -> None:
        """Cut all connections, and refuse new ones."""
        self._run(self._stop_listening())

    def come_back(self, *, keep: bool = True) -> None:
        """Listen on the same port again; without *keep* all messages are forgotten, and their receipts."""
        self._run(self._listen(keep=keep))

    def advance(self, duration: timedelta) -> None:
        """Let so much time pass, for the endpoint alone: visibility ends, late messages come."""
        self._run(self._advance(duration.total_seconds()))

    def stop(self) -> None:
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE)

    def _now(self) -> float:
        return time.monotonic() + self._ahead

    async def _advance(self, seconds: float) -> None:
        self._ahead += seconds
        for name in list(self._bells):
            self._ring(name)

    async def _depth(self, name: str) -> tuple[int, int, int]:
        return self._service.queues[name].counts(self._now())

    async def _listen(self, *, keep: bool) -> None:
        if not keep:
            self._service.forget()
        self._server = await asyncio.start_server(self._serve, _HOST, self.port, limit=_MAX_HEAD, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        under_way = dict(self._connections)
        for task, writer in under_way.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  this is a coroutine
        self._connections[task] = writer
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                while (request := await read(reader)) is not None:
                    writer.write(await self._answered(request, reader))
                    await writer.drain()
        finally:
            writer.transport.abort()
            del self._connections[task]

    async def _answered(self, request: Request, reader: asyncio.StreamReader) -> bytes:
        if request.path == _CONTROL:
            return answer(self._controlled(request.body))
        self.requests[request.operation] += 1
        faults = self.faults
        if faults.operations and request.operation not in faults.operations:
            faults = EndpointFaults(stale=faults.stale)
        self._cut_if(faults.cut_before, "cut_before")
        try:
            self._refuse_if(faults.errors)
            done = await self._done(request, reader, faults)
        except SqsError as error:
            return refusal(error)
        self._cut_if(faults.cut, "cut")
        if self._service.strikes("stall", faults.stall):
            await asyncio.sleep(faults.stall_for.total_seconds())
        return answer(done)

    async def _done(self, request: Request, reader: asyncio.StreamReader, faults: EndpointFaults) -> dict[str, Any]:
        start, wait = self._now(), self._service.wait_of(request.operation, request.body)
        while True:
            now = self._now()
            answer = self._service.do(request.operation, request.body, now=now, faults=faults)
            left = start + wait - now
            if answer or left <= 0:
                if request.operation.startswith(("Send", "Change")):
                    self._ring(self._service.queue(request.body).name)
                return answer
            await self._hear(self._service.queue(request.body), left)
            if reader.at_eof():  # nobody is there any more: a message taken now would be hidden for nothing
                raise ConnectionResetError

    async def _hear(self, queue: Queue, most: float) -> None:
        """Wait until a message may be there."""
        bell: asyncio.Future[None] = self._loop.create_future()
        self._bells.setdefault(queue.name, set()).add(bell)
        shown_in = (queue.next_visible() or float("inf")) - self._now()
        await asyncio.wait([bell], timeout=max(0.0, min(most, shown_in)))
        self._bells.get(queue.name, set()).discard(bell)

    def _ring(self, name: str) -> None:
        for bell in self._bells.pop(name, ()):
            bell.set_result(None)

    def _cut_if(self, rate: float, name: str) -> None:
        if self._service.strikes(name, rate):
            raise ConnectionResetError

    def _refuse_if(self, errors: Mapping[str, float]) -> None:
        for code, rate in errors.items():
            if self._service.strikes(code, rate):
                raise SqsError(code)

    def _controlled(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if "faults" in asked:
            self.faults = EndpointFaults.from_json(json.dumps(asked["faults"]))
        now = self._now()
        depths = {name: queue.counts(now) for name, queue in self._service.queues.items()}
        return {"requests": self.requests, "happened": self.happened, "depths": depths}
