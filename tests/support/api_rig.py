"""The HTTP API on a memory store, with a client for it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import httpx

from taskharbor import Client, JsonCodec, MemoryDriver
from taskharbor.api import create_app
from taskharbor.api_keys import issue_key
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.core.retention import KEEP, check_retention
from taskharbor.watcher import JobWatcher

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from taskharbor.core.model import AuditEntry, Claim
    from taskharbor.drivers.base import Driver
    from taskharbor.tasks import Task

LEASE: Final = timedelta(seconds=30)
BOOM: Final = Failure(type="ValueError", message="boom", traceback="Traceback …", fingerprint="f00d")
MISSING_ID: Final = "01890a5d-ac96-774b-bcce-b302099a8057"


class FakeBackend:
    """The store, client and watcher that the API needs from a harbor, without tasks."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.codec = JsonCodec()
        self.client = Client(driver, codec=self.codec)
        self.watcher = JobWatcher(driver.inspector)
        self.source: Driver | None = driver
        self.retention = check_retention(KEEP, None)
        self.version: str | None = "4f2c"

    def close(self) -> None:
        self.watcher.close()
        self.client.close()
        self.driver.close()


class ApiRig:
    """One application and its client, on an event loop that runs only during calls."""

    def __init__(self, driver: Driver | None = None, **options: Any) -> None:
        self.backend = FakeBackend(driver or MemoryDriver())
        self.app = create_app(self.backend, **{"needs_keys": False} | options)
        self._runner = asyncio.Runner()
        # An error that reaches the server must become a 500 response, which the tests check.
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30)

    @property
    def driver(self) -> Driver:
        return self.backend.driver

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        response: httpx.Response = self.run(self.client.request(method, path, **options))
        return response

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return (
            self.request("POST", path, json=json, **options)
            if json is not None
            else self.request("POST", path, **options)
        )

    def create(self, **fields: Any) -> str:
        """Create a job and return its id."""
        response = self.post("/v1/jobs", {"type": "greet"} | fields)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    def take(self, queue: str = "default") -> Claim:
        """Reserve the next job."""
        [claim] = self.driver.reserve(queue, token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE)
        return claim

    def settle(self, claim: Claim, outcome: Outcome) -> None:
        self.driver.settle([Settlement(claim.lease, outcome)])

    def dead(self, **fields: Any) -> str:
        """Create a dead job."""
        job_id = self.create(**fields)
        self.settle(self.take(fields.get("queue", "default")), Outcome.fail("hopeless", failure=BOOM))
        return job_id

    def roll_up(self) -> None:
        self.driver.maintenance.roll_up(keep=timedelta(days=1))

    def audited(self) -> list[AuditEntry]:
        """Return the audit entries, oldest first."""
        return self.driver.inspector.audit(limit=100)[::-1]

    def key(self, *scopes: str, **options: Any) -> str:
        """Store a new key and return it."""
        issued = issue_key("ci", scopes, now=self.driver.inspector.now(), **options)
        assert self.driver.control.add_keys([issued.key]) == [True]
        return issued.text

    def close(self) -> None:
        self.run(self.client.aclose())
        self._runner.close()
        self.backend.close()


@contextmanager
def opened(driver: Driver | None = None, **options: Any) -> Iterator[ApiRig]:
    site = ApiRig(driver, **options)
    try:
        yield site
    finally:
        site.close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def problem(response: httpx.Response) -> dict[str, Any]:
    """Return the problem in an error response. Every error response has this form."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body: dict[str, Any] = response.json()
    assert body["status"] == response.status_code
    assert body["type"] == f"urn:taskharbor:problem:{body['code']}"
    return body
