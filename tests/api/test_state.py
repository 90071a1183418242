"""The state of an application: whether keys are required, and its open streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.api import sse, state
from taskharbor.api.problems import HttpProblem
from taskharbor.core.errors import StoreUnavailable
from tests.support.api_rig import bearer, opened, problem
from tests.support.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_rig import ApiRig


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(state, "time", made)
    return made


@pytest.fixture
def keyless() -> Iterator[ApiRig]:
    """The API of a store without keys."""
    with opened(needs_keys=None, only_local_hosts=True) as site:
        yield site


def test_the_first_key_locks_an_api_that_was_started_without_any(keyless: ApiRig, clock: Clock) -> None:
    assert keyless.get("/v1/jobs").status_code == 200
    key = bearer(keyless.key("jobs:read"))

    clock.now += state.KEYS_CHECK_SECONDS
    refused, allowed = keyless.get("/v1/jobs"), keyless.get("/v1/jobs", headers=key)

    assert (problem(refused)["code"], allowed.status_code) == ("unauthorized", 200)


def test_an_api_without_keys_asks_the_store_for_one_every_few_seconds(keyless: ApiRig, clock: Clock) -> None:
    keyless.get("/v1/jobs")
    keyless.key("jobs:read")

    clock.now += state.KEYS_CHECK_SECONDS - 0.1
    assert keyless.get("/v1/jobs").status_code == 200
    clock.now += 0.1
    assert keyless.get("/v1/jobs").status_code == 401


def test_an_api_that_was_locked_once_stays_locked(keyless: ApiRig, clock: Clock) -> None:
    keyless.key("jobs:read")
    assert keyless.get("/v1/jobs").status_code == 401
    keyless.driver.control.revoke_keys([*keyless.driver.inspector.keys()])

    clock.now += state.KEYS_CHECK_SECONDS

    assert keyless.get("/v1/jobs").status_code == 401


def test_a_revoked_key_does_not_make_keys_required(keyless: ApiRig) -> None:
    keyless.key("jobs:read")
    keyless.driver.control.revoke_keys([*keyless.driver.inspector.keys()])

    assert keyless.get("/v1/jobs").status_code == 200


def test_an_api_that_cannot_check_for_keys_rejects_requests(
    keyless: ApiRig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_ids: object = None) -> Any:
        raise StoreUnavailable("gone")

    keyless.get("/v1/jobs")
    monkeypatch.setattr(keyless.driver.inspector, "keys", unavailable)
    clock.now += state.KEYS_CHECK_SECONDS

    assert problem(keyless.get("/v1/jobs"))["code"] == "store-unavailable"


def test_a_stream_without_a_key_ends_once_keys_are_needed(
    keyless: ApiRig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)

    async def follow() -> None:
        async with Stream(keyless, "/v1/events") as stream:
            await stream.next()
            await asyncio.to_thread(keyless.key, "jobs:read")
            clock.now += state.KEYS_CHECK_SECONDS
            await stream.dropped()

    keyless.run(follow())


def test_one_key_leaves_waits_and_streams_for_the_others() -> None:
    with opened(needs_keys=True) as site:
        one, other = site.key("jobs:read"), site.key("jobs:read")
        api = site.app.state.taskharbor
        api.open.max_per_key = 2

        async def follow() -> list[int]:
            async with Stream(site, "/v1/events", key=one) as first, Stream(site, "/v1/events", key=one) as second:
                await first.next()
                await second.next()
                async with Stream(site, "/v1/events", key=one) as third:
                    assert b"this key has 2 waits" in await third.chunk()
                async with Stream(site, "/v1/events", key=other) as others:
                    await others.next()
                    return [third.status, others.status]

        assert site.run(follow()) == [429, 200]
        assert (api.open.count, site.run(_joined(site, one))) == (0, 200)


async def _joined(site: ApiRig, key: str) -> int:
    async with Stream(site, "/v1/events", key=key) as stream:
        await stream.next()
        return stream.status


def test_a_closed_stream_is_subtracted_once_from_its_key() -> None:
    streams = state.OpenStreams(max_per_key=1)
    leave = streams.enter(lambda: None, "k1")

    leave()
    leave()

    assert not streams._by_key  # noqa: SLF001  it must not grow
    streams.enter(lambda: None, "k1")
    with pytest.raises(HttpProblem):
        streams.enter(lambda: None, "k1")


def test_without_a_key_only_the_total_is_limited() -> None:
    streams = state.OpenStreams(max_open=3, max_per_key=1)
    for _ in range(3):
        streams.enter(lambda: None, None)

    with pytest.raises(HttpProblem):
        streams.enter(lambda: None, None)
