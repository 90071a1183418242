"""Run CLI commands in this process on one store, and create jobs in given states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor import Client, JobRequest
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers.connect import connect

if TYPE_CHECKING:
    import pytest

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import AuditEntry, Claim, Job
    from taskharbor.drivers.base import Driver

LEASE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CliResult:
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        assert self.code == ExitCode.OK, self.err
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The rows of a table, without its header."""
        assert self.code == ExitCode.OK, self.err
        return [line.split("\t") for line in self.out.splitlines()[1:]]


class Console:
    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.driver: Driver = connect(url)
        self._capsys = capsys

    def __call__(self, *words: str) -> CliResult:
        self._capsys.readouterr()
        code = run(cli, [*words, "--url", self.url])
        out, err = self._capsys.readouterr()
        return CliResult(code=code, out=out, err=err)

    def enqueue(self, type: str = "greet", payload: object = None, **fields: Any) -> JobId:
        return Client(self.driver).enqueue(JobRequest(type=type, payload=payload, **fields)).id

    def enqueue_many(self, count: int) -> None:
        Client(self.driver).enqueue_many([JobRequest(type="greet")] * count)

    def dead(self, message: str = "no such user", **fields: Any) -> JobId:
        """Create a dead job."""
        job_id = self.enqueue(**fields)
        self.settle(
            job_id,
            Outcome.fail("gave up", failure=Failure.of(LookupError(message))),
            queue=fields.get("queue", "default"),
        )
        return job_id

    def done(self, **fields: Any) -> JobId:
        job_id = self.enqueue(**fields)
        self.settle(job_id, Outcome.ack(b'"fine"'), queue=fields.get("queue", "default"))
        return job_id

    def running(self) -> JobId:
        job_id = self.enqueue()
        self._reserve("default")
        return job_id

    def job(self, job_id: JobId) -> Job:
        return self.driver.inspector.get([job_id])[job_id]

    def audit(self) -> list[AuditEntry]:
        return self.driver.inspector.audit(limit=100)

    def settle(self, job_id: JobId, outcome: Outcome, *, queue: str = "default") -> None:
        """Reserve all due jobs, settle this one, and release the others."""
        self.driver.settle(
            [
                Settlement(claim.lease, outcome if claim.job.id == job_id else Outcome.release())
                for claim in self._reserve(queue)
            ]
        )

    def _reserve(self, queue: str) -> list[Claim]:
        return self.driver.reserve(queue, token=new_token(), worker="w-1", lease=LEASE, limit=100, overdue_after=LEASE)
