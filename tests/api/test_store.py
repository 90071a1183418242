"""The API's access to the store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from taskharbor.api import store
from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.memory import MemoryDriver
from tests.support.api_rig import bearer, opened
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.base import Driver
    from tests.support.api_rig import ApiRig


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def locked() -> Iterator[ApiRig]:
    with opened(needs_keys=True) as site:
        yield site


def noted(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each recorded key use is added."""
    uses: list[str] = []
    note = site.driver.control.note_key_use

    def note_key_use(ids: Any) -> None:
        note(ids)
        uses.extend(ids)

    monkeypatch.setattr(site.driver.control, "note_key_use", note_key_use)
    return uses


def test_the_use_of_a_key_is_noted_once_a_minute(locked: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(store, "time", clock)
    uses, key = noted(locked, monkeypatch), locked.key("jobs:read")
    [key_id] = locked.driver.inspector.keys()

    for seconds, count in ((0, 1), (59, 1), (1, 2), (1, 2)):
        clock.now += seconds
        locked.get("/v1/queues", headers=bearer(key))
        locked.get("/v1/queues", headers=bearer(key))
        wait_until(lambda count=count: len(uses) >= count)  # type: ignore[misc]
        assert uses == [key_id] * count
    assert locked.driver.inspector.keys()[key_id].used_at is not None


def test_the_use_of_an_invalid_key_is_not_recorded(locked: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    uses, key = noted(locked, monkeypatch), locked.key("jobs:read")
    locked.driver.control.revoke_keys([*locked.driver.inspector.keys()])

    assert locked.get("/v1/queues", headers=bearer(key)).status_code == 401
    assert locked.get("/v1/queues", headers=bearer(key + "x")).status_code == 401
    assert uses == []


def test_no_request_waits_until_its_use_is_noted(locked: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, is_done = threading.Event(), threading.Event()

    def blocked(_ids: Any) -> None:
        assert may_end.wait(LIMIT_SECONDS)
        is_done.set()

    monkeypatch.setattr(locked.driver.control, "note_key_use", blocked)
    key = locked.key("jobs:read")

    assert locked.get("/v1/queues", headers=bearer(key)).status_code == 200
    assert not is_done.is_set()
    may_end.set()
    wait_until(is_done.is_set)


def test_a_use_that_cannot_be_noted_is_logged_and_fails_nothing(
    locked: ApiRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable(_ids: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(locked.driver.control, "note_key_use", unavailable)
    key = locked.key("jobs:read")

    assert [locked.get("/v1/queues", headers=bearer(key)).status_code for _ in range(3)] == [200] * 3
    assert [each for each in caplog.messages if each.startswith("key use not recorded")]


class Bounded:
    """The bounded inspector of a driver: it notes whether it was used."""

    def __init__(self, driver: Driver) -> None:
        self._whole, self.used = driver.inspector, threading.Event()
        driver.bounded_inspector = self  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        self.used.set()
        return getattr(self._whole, name)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs",
        "/v1/jobs/{id}",
        "/v1/jobs/{id}/why",
        "/v1/dead-letters/groups",
        "/v1/queues",
        "/v1/stats",
        "/v1/stats/timeseries",
        "/v1/types",
        "/v1/versions",
    ],
)
def test_requests_read_through_the_bounded_inspector_of_a_driver_that_has_one(site: ApiRig, path: str) -> None:
    job_id = site.create()
    bounded = Bounded(site.driver)

    assert site.get(path.format(id=job_id)).status_code == 200
    assert bounded.used.is_set()


def test_dead_letters_to_requeue_are_searched_through_the_bounded_inspector(site: ApiRig) -> None:
    bounded = Bounded(site.driver)

    answer = site.post("/v1/dead-letters/requeue", {"filter": {"type": "greet"}, "dry_run": True})

    assert answer.status_code == 200
    assert bounded.used.is_set()


def test_the_gauges_of_the_store_are_read_through_the_bounded_inspector() -> None:
    driver = MemoryDriver()
    with opened(driver, registry=CollectorRegistry()) as site:
        bounded = Bounded(driver)
        answer = site.get("/metrics")

    assert "taskharbor_store_up 1.0" in answer.text
    assert bounded.used.is_set()
