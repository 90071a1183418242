"""Server-sent events and long polls, many at the same time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.api import sse
from taskharbor.api.app import close_streams
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.outcome import Outcome
from tests.support.streams import Stream
from tests.support.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.02)


def test_a_job_stream_sends_every_state_and_an_end_event(site: ApiRig) -> None:
    job_id = site.create()

    async def follow() -> list[tuple[str, str]]:
        async with Stream(site, f"/v1/jobs/{job_id}/events") as stream:
            seen = [await stream.next()]
            claim = site.take()
            seen.append(await stream.next())
            site.settle(claim, Outcome.ack())
            seen += [await stream.next(), await stream.next()]
            await asyncio.wait_for(stream.ended.wait(), 30)
            assert stream.status == 200
            assert stream.headers[b"content-type"].startswith(b"text/event-stream")
        return [(name, data["status"]) for name, data in seen]

    assert site.run(follow()) == [
        ("job", "PENDING"),
        ("job", "PROCESSING"),
        ("job", "SUCCEEDED"),
        ("end", "SUCCEEDED"),
    ]


def test_all_jobs_are_followed_with_the_counts_of_queues_first(site: ApiRig) -> None:
    site.create()

    async def follow() -> list[tuple[str, Any]]:
        async with Stream(site, "/v1/events") as stream:
            seen = [await stream.next()]
            made = await site.client.post("/v1/jobs", json={"type": "greet", "payload": "canary"})
            while seen[-1][0] != "job":
                seen.append(await stream.next())
            assert seen[-1][1]["id"] == made.json()["id"]
        return seen

    seen = site.run(follow())

    assert seen[0][0] == "queues"
    assert seen[0][1]["queues"][0]["counts"]["PENDING"] == 1
    assert "canary" not in repr(seen)


def test_the_event_feed_sends_only_jobs_that_changed(site: ApiRig) -> None:
    site.create()

    async def follow() -> list[str]:
        async with Stream(site, "/v1/events") as stream:
            await stream.next()
            claim = site.take()
            first = await next_job(stream)
            site.settle(claim, Outcome.ack())
            return [first["status"], (await next_job(stream))["status"]]

    assert site.run(follow()) == ["PROCESSING", "SUCCEEDED"]


async def next_job(stream: Stream) -> dict[str, Any]:
    while True:
        name, data = await stream.next()
        if name == "job":
            found: dict[str, Any] = data
            return found


def test_an_idle_stream_sends_keep_alive_comments(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)
    job_id = site.create()

    async def listen() -> bytes:
        async with Stream(site, f"/v1/jobs/{job_id}/events") as stream:
            await stream.next()
            return await stream.chunk()

    assert site.run(listen()) == b": beat\n\n"


def test_a_client_that_does_not_read_is_disconnected_and_others_continue(
    site: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "SEND_TIMEOUT_SECONDS", 0.1)

    async def listen() -> None:
        async with Stream(site, "/v1/events", reads=False) as slow, Stream(site, "/v1/events") as quick:
            await quick.next()
            await slow.dropped()
            await site.client.post("/v1/jobs", json={"type": "greet"})
            assert await next_job(quick)

    site.run(listen())


def test_a_full_buffer_ends_the_stream() -> None:
    async def listen() -> tuple[int, bytes]:
        buffer = sse.StreamBuffer(size=3)
        for _ in range(10):
            buffer.offer(b"x")
        return buffer._events.qsize(), await buffer.next(1)  # noqa: SLF001  it must stay small

    assert asyncio.run(listen()) == (3, b"")


def test_the_store_is_not_polled_without_clients(site: ApiRig) -> None:
    async def listen() -> None:
        async with Stream(site, "/v1/events") as stream:
            await stream.next()

    def is_quiet() -> bool:
        before = site.driver.statements  # type: ignore[attr-defined]
        site.run(asyncio.sleep(0.1))  # long enough for five polls
        return bool(site.driver.statements == before)  # type: ignore[attr-defined]

    site.run(listen())

    wait_until(is_quiet)
    assert site.app.state.taskharbor.open.count == 0


def test_a_short_store_outage_does_not_end_a_stream(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = list[bool]()

    def fail(*_args: Any, **_options: Any) -> Any:
        failed.append(True)
        raise StoreUnavailable("gone")

    async def listen() -> Any:
        async with Stream(site, "/v1/events") as stream:
            await stream.next()
            with monkeypatch.context() as patch:
                patch.setattr(site.driver.inspector, "find", fail)
                await wait_until_async(lambda: len(failed) > 1)
            await site.client.post("/v1/jobs", json={"type": "greet"})
            return await next_job(stream)

    assert site.run(listen())["type"] == "greet"


def test_closing_ends_every_stream_and_answers_every_wait(site: ApiRig) -> None:
    job_id = site.create()

    async def listen() -> str:
        async with Stream(site, "/v1/events") as all_jobs, Stream(site, f"/v1/jobs/{job_id}/events") as one_job:
            waiting = asyncio.ensure_future(site.client.get(f"/v1/jobs/{job_id}?wait=60"))
            await all_jobs.next()
            await one_job.next()
            await wait_until_async(lambda: site.app.state.taskharbor.open.count == 3)
            async with asyncio.timeout(30):
                close_streams(site.app)
                await asyncio.gather(all_jobs.ended.wait(), one_job.ended.wait())
                return str((await waiting).json()["status"])

    assert site.run(listen()) == "PENDING"


def test_a_wait_ends_when_its_client_disconnects(site: ApiRig) -> None:
    job_id = site.create()

    async def leave() -> int:
        async with Stream(site, f"/v1/jobs/{job_id}?wait=60"):
            await wait_until_async(lambda: site.app.state.taskharbor.open.count == 1)
        return int(site.app.state.taskharbor.open.count)

    assert site.run(leave()) == 0


def test_a_thousand_open_waits_and_streams_take_no_thread_each(site: ApiRig) -> None:
    job_id = site.create()
    claim = site.take()

    async def crowd() -> tuple[int, list[int]]:
        async with AsyncExitStack() as stack:
            paths = [f"/v1/jobs/{job_id}/events", "/v1/events"]
            streams = [await stack.enter_async_context(Stream(site, paths[n % 2])) for n in range(500)]
            waits = [
                asyncio.ensure_future(site.client.get(f"/v1/jobs/{job_id}", params={"wait": 60})) for _ in range(500)
            ]
            await asyncio.gather(*(stream.next() for stream in streams))
            await wait_until_async(lambda: site.app.state.taskharbor.open.count == 1_000)
            threads = threading.active_count()
            site.settle(claim, Outcome.ack())
            return threads, [each.status_code for each in await asyncio.gather(*waits)]

    threads, statuses = site.run(crowd())

    assert threads < 30
    assert statuses == [200] * 500
    assert site.app.state.taskharbor.open.count == 0
