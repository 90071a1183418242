"""The HTTP endpoint: reads requests, injects faults and waits for messages, in one thread with an event loop."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskharbor.testing.sqs.faults import EndpointFaults
from taskharbor.testing.sqs.service import REGION, Service
from taskharbor.testing.sqs.signatures import SignedRequest, check_signature
from taskharbor.testing.sqs.validation import SqsError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from types import TracebackType
    from typing import Self

    from taskharbor.testing.sqs.queues import Queue
    from taskharbor.testing.sqs.signatures import AccessKey

_TARGET: Final = "AmazonSQS."
_T = TypeVar("_T")
_HOST: Final = "127.0.0.1"
_TIMEOUT_SECONDS: Final = 10.0  # for a call into the endpoint's thread
_MAX_HEAD_BYTES: Final = 1_048_576
_CONTROL: Final = "/_control"


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. *operation* is empty if it is not an SQS call."""

    path: str
    operation: str
    body: Mapping[str, Any]
    signed: SignedRequest


async def read(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request of a connection, or None if the connection is closed."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        text = await reader.readexactly(int(headers.get("content-length") or 0))
    except asyncio.IncompleteReadError:  # also if a client is killed in the middle of a request
        return None
    method, path, _ = first.split(" ")
    return Request(
        path=path,
        operation=headers.get("x-amz-target", "").removeprefix(_TARGET),
        body=json.loads(text or b"{}"),
        signed=SignedRequest(method=method, path=path, headers=headers, content=text),
    )


def answer(body: Mapping[str, Any]) -> bytes:
    return _response(HTTPStatus.OK, body)


def refusal(error: SqsError) -> bytes:
    body = {"__type": f"com.amazonaws.sqs#{error.code}", "message": error.message}
    return _response(HTTPStatus(error.status), body, f"x-amzn-query-error: {error.header}\r\n")


def _response(status: HTTPStatus, body: Mapping[str, Any], extra_headers: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(content)}\r\n{extra_headers}\r\n"
    )
    return head.encode("latin-1") + content


class Endpoint:
    """An SQS endpoint for boto3 that injects *faults*. Assign `faults` to change them from the next call on.

    With *keys*, by access key id, it checks the signature of each call, and rejects it as SQS does.

    `requests` counts calls by operation, and `happened` counts the injected faults. If the endpoint runs in its own
    process (`python -m taskharbor.testing.sqs`), set the faults and read the counts over HTTP, at `/_control`.
    """

    region: Final = REGION

    def __init__(
        self, *, port: int, faults: EndpointFaults, seed: int, keys: Mapping[str, AccessKey] | None = None
    ) -> None:
        self.port, self.faults, self._keys = port, faults, keys
        self.requests: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        random = Random(seed)  # noqa: S311  not used for security
        self._service = Service(random, self.happened)
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._clock_offset_seconds = 0.0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sqs-endpoint", daemon=True)
        self._thread.start()

    @classmethod
    def start(
        cls,
        *,
        port: int = 0,
        faults: EndpointFaults | None = None,
        seed: int = 0,
        keys: Mapping[str, AccessKey] | None = None,
    ) -> Endpoint:
        """Start an endpoint in this process, on a free port unless one is given."""
        endpoint = cls(port=port, faults=faults or EndpointFaults(), seed=seed, keys=keys)
        endpoint.come_back()
        return endpoint

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def depth(self, name: str) -> tuple[int, int, int]:
        """Return how many messages of the SQS queue *name* are ready, in flight and delayed."""
        return self._run(self._depth(name))

    def go_away(self) -> None:
        """Close all connections and refuse new ones."""
        self._run(self._stop_listening())

    def come_back(self, *, keep: bool = True) -> None:
        """Listen on the same port again. Unless *keep*, all messages and receipt handles are lost."""
        self._run(self._listen(keep=keep))

    def advance(self, duration: timedelta) -> None:
        """Advance the endpoint's clock: visibility timeouts pass and delayed messages become visible."""
        self._run(self._advance(duration.total_seconds()))

    def stop(self) -> None:
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_SECONDS)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_SECONDS)

    def _now(self) -> float:
        return time.monotonic() + self._clock_offset_seconds

    async def _advance(self, seconds: float) -> None:
        self._clock_offset_seconds += seconds
        for name in list(self._waiters):
            self._wake(name)

    async def _depth(self, name: str) -> tuple[int, int, int]:
        return self._service.queues[name].counts(self._now())

    async def _listen(self, *, keep: bool) -> None:
        if not keep:
            self._service.forget()
        self._server = await asyncio.start_server(self._serve, _HOST, self.port, limit=_MAX_HEAD_BYTES, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        connections = dict(self._connections)
        for task, writer in connections.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine always has a task
        self._connections[task] = writer
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                while (request := await read(reader)) is not None:
                    writer.write(await self._respond(request, reader))
                    await writer.drain()
        finally:
            writer.transport.abort()
            del self._connections[task]

    async def _respond(self, request: Request, reader: asyncio.StreamReader) -> bytes:
        if request.path == _CONTROL:
            return answer(self._control(request.body))
        self.requests[request.operation] += 1
        faults = self.faults
        if faults.operations and request.operation not in faults.operations:
            faults = EndpointFaults(stale=faults.stale)
        self._cut_if(faults.cut_before, "cut_before")
        try:
            if self._keys is not None:
                now = datetime.now(UTC) + timedelta(seconds=self._clock_offset_seconds)
                check_signature(request.signed, self._keys, operation=request.operation, region=self.region, now=now)
            self._refuse_if(faults.errors)
            result = await self._execute(request, reader, faults)
        except SqsError as error:
            return refusal(error)
        self._cut_if(faults.cut, "cut")
        if self._service.draw_fault("stall", faults.stall):
            await asyncio.sleep(faults.stall_for.total_seconds())
        return answer(result)

    async def _execute(self, request: Request, reader: asyncio.StreamReader, faults: EndpointFaults) -> dict[str, Any]:
        start, wait = self._now(), self._service.wait_of(request.operation, request.body)
        while True:
            now = self._now()
            result = self._service.do(request.operation, request.body, now=now, faults=faults)
            left = start + wait - now
            if result or left <= 0:
                if request.operation.startswith(("Send", "Change")):
                    self._wake(self._service.queue(request.body).name)
                return result
            await self._wait_for_message(self._service.queue(request.body), left)
            if reader.at_eof():  # the client has disconnected: a message received now would be hidden for nothing
                raise ConnectionResetError

    async def _wait_for_message(self, queue: Queue, timeout_seconds: float) -> None:
        """Wait until a message may be visible."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.setdefault(queue.name, set()).add(waiter)
        visible_in = (queue.next_visible() or float("inf")) - self._now()
        await asyncio.wait([waiter], timeout=max(0.0, min(timeout_seconds, visible_in)))
        self._waiters.get(queue.name, set()).discard(waiter)

    def _wake(self, name: str) -> None:
        for waiter in self._waiters.pop(name, ()):
            waiter.set_result(None)

    def _cut_if(self, rate: float, name: str) -> None:
        if self._service.draw_fault(name, rate):
            raise ConnectionResetError

    def _refuse_if(self, errors: Mapping[str, float]) -> None:
        for code, rate in errors.items():
            if self._service.draw_fault(code, rate):
                raise SqsError(code)

    def _control(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if "faults" in body:
            self.faults = EndpointFaults.from_json(json.dumps(body["faults"]))
        now = self._now()
        depths = {name: queue.counts(now) for name, queue in self._service.queues.items()}
        return {"requests": self.requests, "happened": self.happened, "depths": depths}
