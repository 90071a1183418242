"""With an app, 'taskharbor enqueue' uses the options and the parameters of its tasks."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import pytest

from taskharbor.api import server
from taskharbor.cli.main import ExitCode
from taskharbor.core.ids import JobId
from taskharbor.core.results import JobFilter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.console import Console

pytestmark = pytest.mark.usefixtures("_in_a_folder")

APP = """
from datetime import datetime
from taskharbor import Harbor

harbor = Harbor()

@harbor.task(type="email.send", aliases=("mail",), queue="mail", timeout=30, priority=-2,
             max_attempts=3, metadata={"team": "post"})
def send(to: str, copies: int = 1, at: datetime | None = None) -> str:
    return f"{copies} to {to} at {at}"
"""


@pytest.fixture
def _app(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)


def jobs(console: Console) -> int:
    return len(console.driver.inspector.find(JobFilter(), limit=10).jobs)


@pytest.mark.parametrize("named", [[], ["--app", "shop.py"]])
def test_a_job_gets_the_options_of_its_task(named: list[str], any_console: Console, tmp_path: Path) -> None:
    (tmp_path / ("shop.py" if named else "tasks.py")).write_text(APP)

    said = any_console("enqueue", "email.send", "to=ada", *named)

    job = any_console.job(JobId(UUID(said.out.strip())))
    assert (job.queue, job.timeout, job.priority, job.max_attempts) == ("mail", timedelta(seconds=30), -2, 3)
    assert (job.metadata, job.data) == ({"team": "post"}, {"to": "ada"})


@pytest.mark.usefixtures("_app")
def test_given_options_win_over_those_of_the_task(console: Console) -> None:
    said = console(
        *("enqueue", "email.send", "to=ada", "--queue", "bulk", "--max-attempts", "1", "--priority", "0"),
        *("--timeout", "1s", "--tag", "team=ops", "--tag", "a=b"),
    )

    job = console.job(JobId(UUID(said.out.strip())))
    assert (job.queue, job.timeout, job.priority, job.max_attempts) == ("bulk", timedelta(seconds=1), 0, 1)
    assert job.metadata == {"team": "ops", "a": "b"}


@pytest.mark.usefixtures("_app")
def test_an_alias_is_stored_as_it_was_given(console: Console) -> None:
    said = console("enqueue", "mail", "to=ada")

    job = console.job(JobId(UUID(said.out.strip())))
    assert (job.type, job.queue) == ("mail", "mail")


@pytest.mark.usefixtures("_app")
def test_a_value_is_read_as_the_parameter_takes_it(console: Console) -> None:
    said = console("enqueue", "email.send", "to=4711", "copies=2", "at=2030-01-01T12:00Z")

    job = console.job(JobId(UUID(said.out.strip())))
    assert job.data == {"to": "4711", "copies": 2, "at": datetime(2030, 1, 1, 12, tzinfo=UTC)}


@pytest.mark.usefixtures("_app")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["email.sned", "to=ada"],
            "type is 'email.sned': no task of the app has this type; did you mean 'email.send'? --no-app",
        ),
        (["report"], "no task of the app has this type; known types: email.send, mail; --no-app enqueues it without"),
        (["email.send"], "payload.to is missing: required by task 'send'"),
        (["email.send", "to=a", "copies=two"], "payload.copies is invalid: must be int, not str"),
        (["email.send", "to=a", "copeis=2"], "payload.copeis is unknown: task 'send' has no such parameter; did you"),
        (["email.send", "to=a", "at=soon"], "payload.at is invalid: must be a time in ISO 8601, such as"),
        (
            ["email.send", "--payload", "[1]"],
            "payload is invalid: must be an object with the parameters of task 'send'",
        ),
        (["email.send", "to=a", "--app", "tasks.py", "--no-app"], "give --app or --no-app, not both"),
    ],
)
def test_what_the_task_does_not_take_is_refused_and_nothing_is_stored(
    words: list[str], message: str, console: Console
) -> None:
    said = console("enqueue", *words)

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    assert message in said.err
    assert jobs(console) == 0


@pytest.mark.usefixtures("_app")
def test_without_the_app_any_type_and_payload_are_stored(console: Console) -> None:
    said = console("enqueue", "email.sned", "copies=two", "--no-app")

    job = console.job(JobId(UUID(said.out.strip())))
    assert (said.code, job.type, job.queue, job.data) == (ExitCode.OK, "email.sned", "default", {"copies": "two"})


@pytest.mark.usefixtures("_app")
def test_an_unknown_type_has_a_code_of_its_own(console: Console) -> None:
    said = console("enqueue", "email.sned", "--json")

    assert '"code": "unknown-type"' in said.err


@pytest.mark.usefixtures("_app")
@pytest.mark.parametrize(("words", "status"), [([], 422), (["--unknown-types", "accept"], 201)])
def test_the_api_has_the_tasks_of_the_app_that_a_worker_would_find(
    words: list[str],
    status: int,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    answers: list[httpx.Response] = []

    async def ask(app: Any) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            answers.append(await client.post("/v1/jobs", json={"type": "email.send", "payload": {"to": "ada"}}))
            answers.append(await client.post("/v1/jobs", json={"type": "email.sned"}))

    monkeypatch.setattr(server.ApiServer, "run", lambda self, **_: asyncio.run(ask(self._app)))

    said = console("api", "--port", "0", *words)

    assert (said.code, [each.status_code for each in answers]) == (ExitCode.OK, [201, status])
    assert answers[0].json()["queue"] == "mail"
    assert "new jobs are checked against the tasks of the app (1); other types are" in caplog.text


@pytest.mark.usefixtures("_app")
def test_a_new_payload_of_a_requeued_job_must_match_its_task(console: Console) -> None:
    job_id = JobId(UUID(console("enqueue", "email.send", "to=ada").out.strip()))
    console.driver.cancel([job_id])

    refused = console("jobs", "requeue", str(job_id), "--payload", '{"too": "ada"}')
    done = console("jobs", "requeue", str(job_id), "--payload", '{"to": "ada", "at": "2030-01-01T12:00Z"}')

    assert (refused.code, "did you mean 'to'?" in refused.err) == (ExitCode.USAGE, True)
    assert done.code == ExitCode.OK
    assert console.job(job_id).data == {"to": "ada", "at": datetime(2030, 1, 1, 12, tzinfo=UTC)}
