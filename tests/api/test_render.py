"""The fast JSON writer for pages must match the view of each job."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor import Status
from taskharbor.api.render import page_json
from taskharbor.api.responses import JobPage
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.model import Job, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Page
from taskharbor.views import job_view

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig

NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]))
TIMES: Final = st.datetimes(
    NOW.replace(year=2000, tzinfo=None),
    NOW.replace(year=2100, tzinfo=None),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
SPANS: Final = st.timedeltas(timedelta(0), timedelta(days=900))
COUNTS: Final = st.integers(0, 2**31)
JOBS: Final = st.builds(
    Job,
    id=st.uuids().map(JobId),
    type=TEXTS,
    queue=TEXTS,
    priority=st.integers(-(2**15), 2**15),
    payload=st.just(b"null"),
    status=st.sampled_from(Status),
    scheduled_for=TIMES,
    timeout=st.none() | SPANS,
    created_at=TIMES,
    attempt_count=COUNTS,
    max_attempts=COUNTS,
    last_error=st.none() | TEXTS | TEXTS.map(lambda text: f"ValueError: {text}"),
    lease_expires_at=st.none() | TIMES,
    worker_id=st.none() | TEXTS,
    processing_started_at=st.none() | TIMES,
    completed_at=st.none() | TIMES,
    life=COUNTS,
    dead_reason=st.none() | TEXTS,
    dead_at=st.none() | TIMES,
    cancel_requested_at=st.none() | TIMES,
    idempotency_key=st.none() | TEXTS,
    progress=st.none() | st.builds(Progress, st.integers(), st.none() | st.integers(), TEXTS),
    metadata=st.dictionaries(TEXTS, TEXTS, max_size=3),
)


@given(jobs=st.lists(JOBS, max_size=4), following=st.none() | TEXTS, root=TEXTS)
def test_a_page_contains_the_view_of_each_job(jobs: list[Job], following: str | None, root: str) -> None:
    written = page_json(Page(tuple(jobs), None), following=following, now=NOW, root=root)

    views = [job_view(job, now=NOW, root=root) for job in jobs]
    assert json.loads(written) == {"jobs": views, "next": following, "looked_back_to": None}
    JobPage.model_validate_json(written)


def test_a_page_shows_neither_payload_nor_result_nor_token() -> None:
    secret = new_token()
    job = Job(
        id=JobId(UUID(int=7)),
        type="greet",
        queue="default",
        priority=0,
        payload=b'"Ada"',
        status=Status.PROCESSING,
        scheduled_for=NOW,
        timeout=None,
        created_at=NOW,
        attempt_count=1,
        max_attempts=3,
        lease_token=secret,
        settled_token=secret,
        lease_expires_at=NOW,
        result=b'"Eve"',
    )

    written = page_json(Page((job,), None), following=None, now=NOW, root="").decode()

    assert not [each for each in (str(secret), secret.hex, "Ada", "Eve") if each in written]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/dead-letters"])
def test_a_page_keeps_the_schema_of_the_document(site: ApiRig, path: str) -> None:
    site.create(idempotency_key="k", metadata={"tenant": 'a"b'})
    site.settle(site.take(), Outcome.ack())
    site.dead()
    site.create()
    site.take()
    site.create(delay=60, timeout=1.5)
    document = site.get("/openapi.json").json()
    content: dict[str, Any] = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]

    page = site.get(path).json()

    jsonschema_rs.validator_for(content["schema"] | {"components": document["components"]}).validate(page)
    assert len(page["jobs"]) == (4 if path == "/v1/jobs" else 1)
