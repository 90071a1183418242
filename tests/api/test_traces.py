"""The W3C trace context in the headers of requests that create jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
HEADERS = {"traceparent": PARENT, "tracestate": "a=1,b=2"}
JOB = {"type": "greet"}


def metadata(site: ApiRig) -> list[dict[str, str]]:
    """Return the metadata of all jobs, and remove the jobs' schedule."""
    jobs = site.get("/v1/jobs").json()["jobs"]
    return [{key: value for key, value in job["metadata"].items() if key != "schedule"} for job in jobs]


def test_the_context_of_a_request_is_stored_with_its_jobs(site: ApiRig) -> None:
    site.request("PUT", "/v1/schedules/nightly", json={"cron": "0 2 * * *", "type": "greet"})
    answers = [
        site.post("/v1/jobs", JOB, headers=HEADERS),
        site.post("/v1/jobs/batch", {"jobs": [JOB, JOB]}, headers=HEADERS),
        site.post("/v1/jobs/batch", {"jobs": [JOB], "atomic": True}, headers=HEADERS),
        site.post("/v1/schedules/nightly/run", headers=HEADERS),
    ]

    assert [answer.status_code for answer in answers] == [201, 200, 200, 201]
    assert metadata(site) == [HEADERS] * 5


@pytest.mark.parametrize(
    "parent", ["", "00", PARENT.upper(), f"{PARENT}-", f"00-{'0' * 32}-b7ad6b7169203331-01", "x" * 9000]
)
def test_a_malformed_context_is_ignored_and_never_stored(site: ApiRig, parent: str) -> None:
    answers = [
        site.post("/v1/jobs", JOB, headers={"traceparent": parent, "tracestate": "a=1"}),
        site.post("/v1/jobs", JOB | {"metadata": {"traceparent": parent[:1000], "tracestate": "a=1", "tenant": "7"}}),
    ]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert metadata(site) == [{"tenant": "7"}, {}]


def test_two_traceparents_are_ignored(site: ApiRig) -> None:
    made = site.post("/v1/jobs", JOB, headers=[("traceparent", PARENT), ("traceparent", OTHER)])

    assert (made.status_code, made.json()["metadata"]) == (201, {})


def test_a_context_in_the_metadata_is_kept_unless_a_header_has_another(site: ApiRig) -> None:
    body = JOB | {"metadata": {"traceparent": OTHER, "tracestate": "c=3"}}

    assert site.post("/v1/jobs", body).json()["metadata"] == body["metadata"]
    assert site.post("/v1/jobs", body, headers={"traceparent": PARENT}).json()["metadata"] == {"traceparent": PARENT}


def test_the_context_is_stored_with_a_job_that_has_all_metadata_it_may_have(site: ApiRig) -> None:
    full = {f"key{n}": "value" for n in range(32)}
    made = site.post("/v1/jobs", JOB | {"metadata": full}, headers=HEADERS)

    assert (made.status_code, made.json()["metadata"]) == (201, full | HEADERS)


def test_a_repeated_request_with_another_context_returns_the_first_job(site: ApiRig) -> None:
    body = JOB | {"idempotency_key": "k"}
    first = site.post("/v1/jobs", body, headers=HEADERS)
    second = site.post("/v1/jobs", body, headers={"traceparent": OTHER})

    assert (second.status_code, second.json()["id"]) == (200, first.json()["id"])
    assert second.json()["metadata"] == HEADERS
