"""Streams check the caller's key periodically and have a maximum duration."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.api import sse
from taskharbor.api.sse import EventStream, StreamBuffer, event
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.results import JobFilter
from tests.support.api_rig import bearer, opened, problem
from tests.support.streams import Stream
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_rig import ApiRig

_ALL: Final = JobFilter()
NEWS: Final = event("job", {"id": 7})


class Steps:
    """A clock that advances by one second with every reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def locked() -> Iterator[ApiRig]:
    with opened(needs_keys=True) as site:
        yield site


def revoke(site: ApiRig) -> None:
    """Revoke every key, and clear the API's key cache."""
    site.driver.control.revoke_keys([*site.driver.inspector.keys()])
    site.app.state.taskharbor.store._key_cache._cached.clear()  # noqa: SLF001  as five seconds would do


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/{id}/events"])
def test_a_revoked_keys_stream_ends_at_the_next_check(
    locked: ApiRig, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)
    key = locked.key("jobs:read", "jobs:write")
    made = locked.post("/v1/jobs", {"type": "t"}, headers=bearer(key)).json()["id"]

    async def follow() -> int:
        async with Stream(locked, path.format(id=made), key=key) as stream:
            await stream.next()
            assert [await stream.chunk(), await stream.chunk()] == [b": beat\n\n"] * 2
            revoke(locked)
            await stream.dropped()
            return stream.status

    assert locked.run(follow()) == 200
    assert locked.app.state.taskharbor.open.count == 0


def test_a_stream_continues_while_its_key_cannot_be_checked(locked: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)
    key = locked.key("jobs:read")
    queries: list[object] = []

    def unavailable(ids: object) -> Any:
        queries.append(ids)
        raise StoreUnavailable("gone")

    async def follow() -> None:
        async with Stream(locked, "/v1/events", key=key) as stream:
            await stream.next()
            monkeypatch.setattr(locked.driver.inspector, "keys", unavailable)
            locked.app.state.taskharbor.store._key_cache._cached.clear()  # noqa: SLF001  as above
            await asyncio.to_thread(wait_until, lambda: len(queries) > 2)
            assert not stream.ended.is_set()

    locked.run(follow())


def test_the_job_of_a_wait_is_not_shown_to_a_key_that_was_revoked_meanwhile(locked: ApiRig) -> None:
    key = bearer(locked.key("jobs:read", "jobs:write"))
    made = locked.post("/v1/jobs", {"type": "t"}, headers=key).json()["id"]

    async def wait() -> Any:
        waiting = asyncio.create_task(locked.client.get(f"/v1/jobs/{made}?wait=30", headers=key))
        await asyncio.to_thread(wait_until, lambda: locked.app.state.taskharbor.open.count)
        revoke(locked)
        locked.driver.cancel([locked.driver.inspector.find(_ALL, limit=1).jobs[0].id])
        return await waiting

    assert problem(locked.run(wait()))["code"] == "unauthorized"


@pytest.mark.parametrize(("beats", "allowed_for"), [(3, 2), (sse.MAX_LIFE_SECONDS // sse.KEEP_ALIVE_SECONDS, 10**6)])
def test_a_busy_stream_is_checked_and_has_a_maximum_duration(
    monkeypatch: pytest.MonkeyPatch, beats: int, allowed_for: int
) -> None:
    clock, checks, sent = Steps(), [0], [0]
    monkeypatch.setattr(sse, "time", clock)
    buffer = StreamBuffer()

    async def is_allowed() -> bool:
        checks[0] += 1
        return checks[0] <= allowed_for

    async def send(_message: Any) -> None:
        sent[0] += 1
        if sent[0] < 20_000:
            buffer.offer(NEWS)  # there is always more
        else:
            buffer.end()

    async def never() -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await EventStream(buffer, lambda: None, is_allowed=is_allowed)({}, never, send)

    asyncio.run(run())

    assert checks[0] <= beats
    assert clock.now <= beats * sse.KEEP_ALIVE_SECONDS + beats * 3 + sse.KEEP_ALIVE_SECONDS
    assert beats < sent[0] < 20_000
