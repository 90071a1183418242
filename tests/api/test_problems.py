"""Error responses are problems without internal details."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Client, JobRequest, MemoryDriver, Status
from taskharbor.api import problems
from taskharbor.api.routes import stats
from taskharbor.core import errors
from taskharbor.core.results import JobFilter
from taskharbor.crypto import AesGcmCodec
from tests.support.api_rig import MISSING_ID, ApiRig, bearer, opened, problem
from tests.support.waiting import LIMIT_SECONDS
from tests.support.worker_rig import meddled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Broken:
    """A memory store of which some methods raise an error."""

    def __init__(self, error: Exception, *names: str) -> None:
        self._store = MemoryDriver()
        self._error, self.names = error, names

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self.fail
        if name in {"inspector", "control"}:
            return Part(getattr(self._store, name), self)
        return getattr(self._store, name)

    def fail(self, *_args: Any, **_options: Any) -> Any:
        raise self._error


class Part:
    def __init__(self, part: Any, owner: Broken) -> None:
        self._part, self._owner = part, owner

    def __getattr__(self, name: str) -> Any:
        return self._owner.fail if name in self._owner.names else getattr(self._part, name)


@pytest.fixture
def unavailable() -> Iterator[ApiRig]:
    error = errors.StoreUnavailable("connection to db.internal failed: password hunter2")
    driver: Any = Broken(error, "now", "get", "summaries", "find", "insert", "pause", "queues")
    with opened(driver) as site:
        yield site


@pytest.mark.parametrize("path", ["/v1/jobs", f"/v1/jobs/{MISSING_ID}", "/v1/queues", "/v1/stats", "/readyz"])
def test_an_unavailable_store_is_503_with_retry_after(unavailable: ApiRig, path: str) -> None:
    answer = unavailable.get(path)

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert problem(answer)["code"] in {"store-unavailable", "not-ready"}
    assert "hunter2" not in answer.text
    assert "db.internal" not in answer.text


def test_a_create_that_cannot_be_stored_is_503_and_not_a_success(unavailable: ApiRig) -> None:
    assert unavailable.post("/v1/jobs", {"type": "greet"}).status_code == 503


def test_a_process_whose_store_is_away_is_alive_and_not_ready(unavailable: ApiRig) -> None:
    assert unavailable.get("/livez").status_code == 200
    assert unavailable.get("/readyz").status_code == 503


def test_a_store_that_does_not_reply_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "READY_TIMEOUT_SECONDS", 0.05)
    may_reply = threading.Event()

    def reply_late(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "now":
            may_reply.wait(LIMIT_SECONDS)
        return call()

    with opened(meddled(MemoryDriver(), reply_late)) as site:
        answer = site.get("/readyz?verbose")
        is_alive = site.get("/livez").status_code == 200
        may_reply.set()

    assert (answer.status_code, problem(answer)["checks"]) == (503, {"store": "TimeoutError"})
    assert is_alive


def test_verbose_probes_answer_with_checks_as_those_of_a_worker_do(unavailable: ApiRig) -> None:
    with opened(MemoryDriver()) as site:
        assert site.get("/livez?verbose").json() == {"status": "ok", "checks": {"event-loop": "ok"}}
        assert site.get("/readyz?verbose").json() == {"status": "ok", "checks": {"store": "ok"}}
        assert site.get("/readyz?verbose=1").json()["checks"] == {"store": "ok"}
        assert site.get("/readyz").json() == {"status": "ok"}
        assert site.get("/readyz?verbos").status_code == 422

    assert unavailable.get("/livez?verbose").status_code == 200
    answer = unavailable.get("/readyz?verbose")
    assert answer.status_code == 503
    assert problem(answer)["checks"] == {"store": "StoreUnavailable"}
    assert "checks" not in problem(unavailable.get("/readyz"))


def test_a_store_with_other_tables_is_503_and_says_what_to_run() -> None:
    driver: Any = Broken(errors.SchemaOutOfDate("1", "2", "run 'taskharbor migrate up'"), "find")
    with opened(driver) as site:
        answer = site.get("/v1/jobs")

    assert answer.status_code == 503
    assert "migrate up" in problem(answer)["detail"]


def test_an_unexpected_error_is_500_with_details_only_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    driver: Any = Broken(ZeroDivisionError("SELECT secret FROM th_jobs"), "find")
    with opened(driver) as site, caplog.at_level(logging.ERROR):
        answer = site.get("/v1/jobs")

    assert answer.status_code == 500
    assert problem(answer)["code"] == "unexpected"
    assert "SELECT" not in answer.text
    assert "SELECT" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("boom"), errors.StoreUnavailable("gone")])
def test_the_path_of_a_request_cannot_forge_a_line_of_the_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    driver: Any = Broken(error, "keys")
    with opened(driver, needs_keys=True) as site:
        path = "/v1/schedules/a%0A2030-01-01%20INFO%20all%20is%20well%1B%5B2J" + "x" * 1_000
        site.get(path, headers=bearer(f"thk_{'0' * 12}_{'x' * 43}"))

    [line] = [record.getMessage() for record in caplog.records if record.name == "taskharbor.api"]
    assert line.startswith(r"GET /v1/schedules/a\n2030-01-01 INFO all is well\x1b[2Jxxx")
    assert line.isprintable()
    assert len(line) < 400


def test_an_audit_entry_that_cannot_be_written_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver: Any = Broken(errors.StoreUnavailable("gone"), "record_audit")
    with opened(driver) as site, caplog.at_level(logging.ERROR):
        assert site.post("/v1/jobs", {"type": "greet"}).status_code == 201

    assert "jobs.enqueue" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2/jobs", 404, "no-such-path"),
        ("GET", "/v1/jobs/", 404, "no-such-path"),
        ("DELETE", "/v1/jobs", 405, "method-not-allowed"),
        ("GET", "/v1/jobs?statsu=DEAD", 422, "invalid-request"),
    ],
)
def test_an_unknown_path_or_parameter_is_a_problem(
    site: ApiRig, method: str, path: str, status: int, code: str
) -> None:
    answer = site.request(method, path)

    assert answer.status_code == status
    assert problem(answer)["code"] == code


@pytest.mark.parametrize(
    ("method", "path", "detail"),
    [
        ("GET", "/v2/jobs", "no such path; /docs lists all of them"),
        ("DELETE", "/v1/queues", "this path does not support DELETE; it supports GET"),
        ("GET", "/v1/jobs?limit=0", "query: limit: must be greater than or equal to 1"),
    ],
)
def test_the_detail_of_an_error_of_the_framework_says_what_to_do(
    site: ApiRig, method: str, path: str, detail: str
) -> None:
    assert problem(site.request(method, path))["detail"] == detail


def test_a_method_that_is_not_allowed_names_those_that_are(site: ApiRig) -> None:
    assert {*site.request("DELETE", "/v1/queues").headers["allow"].split(", ")} == {"GET"}


def test_every_usage_error_has_a_problem_code() -> None:
    def all_of(kind: type[Exception]) -> Iterator[type[Exception]]:
        yield kind
        for each in kind.__subclasses__():
            yield from all_of(each)

    for kind in all_of(errors.UsageError):
        known = next(problems.ERROR_STATUSES[each] for each in kind.__mro__ if each in problems.ERROR_STATUSES)
        assert known.code != "unexpected", kind


def test_too_many_concurrent_store_calls_are_503(site: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.api.store.MAX_QUEUED_CALLS", 0)

    answer = site.get("/v1/queues")

    assert answer.status_code == 503
    assert problem(answer)["code"] == "overloaded"
    assert "retry-after" in answer.headers


def test_too_many_waits_are_429(site: ApiRig) -> None:
    job_id = site.create()
    api = site.app.state.taskharbor
    api.open.max_open = 0

    answer = site.get(f"/v1/jobs/{job_id}", params={"wait": 1})

    assert answer.status_code == 429
    assert problem(answer)["code"] == "too-many-open"
    assert "retry-after" in answer.headers
    assert api.open.count == 0


def test_a_failed_batch_of_reads_does_not_fail_later_reads() -> None:
    driver: Any = Broken(errors.StoreUnavailable("gone"), "get")
    with opened(driver) as site:

        async def many() -> list[Any]:
            return await asyncio.gather(*(site.client.get(f"/v1/jobs/{MISSING_ID}") for _ in range(20)))

        assert {each.status_code for each in site.run(many())} == {503}
        driver.names = ()
        assert site.get(f"/v1/jobs/{MISSING_ID}").status_code == 404


def test_a_store_with_another_codec_is_500_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = MemoryDriver()
    driver.remember("codec", "aes-gcm+json")
    with opened(driver) as site:
        answers = [
            site.post("/v1/jobs", json={"type": "pay", "payload": {"card": "4111"}}),
            site.post("/v1/jobs/batch", json={"jobs": [{"type": "pay"}]}),
        ]

    assert [(answer.status_code, problem(answer)["code"]) for answer in answers] == [(500, "codec-mismatch")] * 2
    assert "aes-gcm+json" not in "".join(answer.text for answer in answers)
    assert "written with codec 'aes-gcm+json', not 'json'" in caplog.text
    assert driver.inspector.find(JobFilter(), limit=1).jobs == ()


def test_a_new_payload_is_not_written_with_another_codec() -> None:
    driver = MemoryDriver()
    job_id = Client(driver, codec=AesGcmCodec({"k": bytes(32)})).enqueue(JobRequest(type="pay")).id
    driver.cancel([job_id])
    with opened(driver) as site:
        answer = site.post(f"/v1/jobs/{job_id}/requeue", json={"payload": {"card": "4111"}})

    assert (answer.status_code, problem(answer)["code"]) == (500, "codec-mismatch")
    assert driver.inspector.get([job_id])[job_id].status is Status.CANCELED
