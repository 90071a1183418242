"""POST /v1/jobs/batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.api_rig import opened, problem

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig


def test_each_job_of_a_batch_is_answered_in_order(site: ApiRig) -> None:
    first = site.create(payload=1, idempotency_key="k")
    jobs = [
        {"type": "greet"},
        {"type": "no spaces"},
        {"type": "greet", "payload": 1, "idempotency_key": "k"},
        {"type": "greet", "payload": 2, "idempotency_key": "k"},
        7,
        {"type": "greet", "payload": "x" * 1_100_000},
    ]

    done = site.post("/v1/jobs/batch", {"jobs": jobs})

    assert done.status_code == 200
    body = done.json()
    assert body["stored"] == 1
    assert [each["status"] for each in body["results"]] == [201, 422, 200, 422, 422, 422]
    assert body["results"][2] == {"status": 200, "id": first, "existed": True, "problem": None}
    codes = [each["problem"] and each["problem"]["code"] for each in body["results"]]
    assert codes == [None, "invalid-request", None, "idempotency-conflict", "invalid-request", "invalid-request"]
    assert len(site.get("/v1/jobs").json()["jobs"]) == 2


def test_an_atomic_batch_is_stored_whole(site: ApiRig) -> None:
    done = site.post("/v1/jobs/batch", {"jobs": [{"type": "greet", "payload": n} for n in range(3)], "atomic": True})

    assert done.json()["stored"] == 3
    assert [each["status"] for each in done.json()["results"]] == [201] * 3


def test_one_invalid_job_rejects_an_atomic_batch(site: ApiRig) -> None:
    jobs = [{"type": "greet"}, {"type": "greet", "priority": "high"}]

    refused = site.post("/v1/jobs/batch", {"jobs": jobs, "atomic": True})

    assert refused.status_code == 422
    assert [each["pointer"] for each in problem(refused)["errors"]] == ["/jobs/1/priority"]
    assert site.get("/v1/jobs").json()["jobs"] == []


def test_a_payload_that_cannot_be_stored_stops_an_atomic_batch(site: ApiRig) -> None:
    jobs = [{"type": "greet"}, {"type": "greet", "payload": "x" * 1_100_000}]

    refused = site.post("/v1/jobs/batch", {"jobs": jobs, "atomic": True})

    assert refused.status_code == 422
    assert [each["pointer"] for each in problem(refused)["errors"]] == ["/jobs/1/payload"]
    assert site.get("/v1/jobs").json()["jobs"] == []


def test_an_atomic_batch_rejects_idempotency_keys(site: ApiRig) -> None:
    refused = site.post("/v1/jobs/batch", {"jobs": [{"type": "greet", "idempotency_key": "k"}], "atomic": True})

    assert refused.status_code == 422
    assert problem(refused)["errors"][0]["pointer"] == "/jobs/0/idempotency_key"


def test_a_batch_has_one_to_a_thousand_jobs(site: ApiRig) -> None:
    assert site.post("/v1/jobs/batch", {"jobs": []}).status_code == 422
    assert site.post("/v1/jobs/batch", {"jobs": [{"type": "greet"}] * 1_001}).status_code == 422
    assert site.post("/v1/jobs/batch", {"jobs": [{"type": "greet"}] * 1_000}).json()["stored"] == 1_000


def test_a_batch_may_be_larger_than_a_job_but_not_without_end() -> None:
    with opened(max_body=1_000) as site:
        assert site.post("/v1/jobs/batch", {"jobs": [{"type": "greet", "payload": "x" * 5_000}]}).status_code == 200
        assert site.post("/v1/jobs/batch", {"jobs": [{"type": "greet", "payload": "x" * 16_000}]}).status_code == 413
