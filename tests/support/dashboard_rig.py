"""The dashboard on a real server, with a store that has something to show."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import httpx
import uvicorn

from taskharbor import Harbor, __version__
from taskharbor.api import create_app
from taskharbor.api.server import ApiServer, open_socket
from taskharbor.api_keys import issue_key
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.model import WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.request import JobRequest
from taskharbor.core.results import Settlement
from taskharbor.core.statistics import MINUTE, Metric, StatisticTally, begin_of
from taskharbor.dashboard import dashboard
from taskharbor.schedules import Scheduler, ScheduleSpec
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim
    from taskharbor.drivers.base import Driver

LEASE: Final = timedelta(seconds=60)
CARD_ERROR: Final = Failure(
    type="stripe.CardError",
    message="card_declined",
    traceback='Traceback (most recent call last):\n  File "charge.py", line 88, in charge\n    raise declined',
    fingerprint="c0ffee0000000001",
)
SMTP_ERROR: Final = Failure(type="SMTPError", message="421 try later", traceback="", fingerprint="c0ffee0000000002")


class UiSite:
    """One server with the dashboard, and calls that bring its store into a state."""

    def __init__(self, harbor: Harbor, url: str, app: Any) -> None:
        self.harbor = harbor
        self.app = app
        self.url = url
        self.jobs: dict[str, JobId] = {}
        """The jobs of `seed`, by what they are in."""

    @property
    def driver(self) -> Driver:
        return self.harbor.driver

    def key(self, *scopes: str, name: str = "ana", **options: Any) -> str:
        """Store a new key and return its text."""
        issued = issue_key(name, scopes or ("admin",), now=self.driver.inspector.now(), **options)
        assert self.driver.control.add_keys([issued.key]) == [True]
        return issued.text

    def enqueue(self, job_type: str = "email.send", count: int = 1, **options: Any) -> list[JobId]:
        requests = [JobRequest(type=job_type, payload={"n": n}, **options) for n in range(count)]
        return [each.id for each in self.harbor.client.enqueue_many(requests)]

    def claim(self, queue: str = "default", count: int = 1, *, worker: str = "web-1") -> list[Claim]:
        return self.driver.reserve(
            queue, token=new_token(), worker=worker, lease=LEASE, limit=count, overdue_after=LEASE
        )

    def settle(self, claims: list[Claim], outcome: Outcome) -> None:
        self.driver.settle([Settlement(each.lease, outcome) for each in claims])

    def worker(self, name: str = "web-1", **fields: Any) -> WorkerRecord:
        """Record the heartbeat of a worker."""
        known: dict[str, Any] = {
            "id": name,
            "host": name,
            "pid": 4242,
            "queues": ("default", "mail"),
            "types": ("email.send",),
            "concurrency": 16,
            "started_at": self.driver.inspector.now(),
            "version": "4f2c",
            "library": __version__,
        }
        record = WorkerRecord(**known | fields)
        self.driver.maintenance.record_worker(record)
        return record

    def roll_up(self) -> None:
        self.driver.maintenance.roll_up(keep=timedelta(days=8))

    def http(self, **options: Any) -> httpx.Client:
        """Return a client that behaves like a browser's page of this site: it sends the origin, and no key."""
        return httpx.Client(base_url=self.url, timeout=LIMIT_SECONDS, headers={"Origin": self.url}, **options)


@contextmanager
def serve_site(
    url: str = "memory://", *, needs_keys: bool | None = False, harbor: Harbor | None = None, **options: Any
) -> Iterator[UiSite]:
    """Serve the dashboard in a thread. *options* are those of `dashboard`."""
    with harbor or Harbor(url) as opened:
        app = create_app(opened, needs_keys=needs_keys, only_local_hosts=not needs_keys, parts=[dashboard(**options)])
        with serve_app(app) as address:
            yield UiSite(opened, address, app)


class ThreadedServer(ApiServer):
    """The server of the API, without signals, which only the main thread can handle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if hasattr(self._app.state, "taskharbor"):
            await super().shutdown(sockets)
        else:  # an application that the dashboard is mounted in
            await uvicorn.Server.shutdown(self, sockets)


@contextmanager
def serve_app(app: Any, kind: type[ThreadedServer] = ThreadedServer) -> Iterator[str]:
    """Serve an ASGI application on a free port, and yield its address."""
    with closing(open_socket("127.0.0.1", 0)) as sock:
        server = kind(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(LIMIT_SECONDS)


class HistoryClock:
    """The real time, shifted: a test lets an hour pass by `skip`, and ends in the present."""

    def __init__(self, behind: timedelta = timedelta(0)) -> None:
        self.behind = behind
        self._stopped_at: datetime | None = None

    def now(self) -> datetime:
        return (self._stopped_at or datetime.now(UTC)) - self.behind

    def stop(self) -> None:
        """Stand still, so that two reads have the same hour behind them."""
        self._stopped_at = datetime.now(UTC)

    def skip(self, span: timedelta) -> None:
        self.behind -= span


def seed_history(site: UiSite, clock: HistoryClock) -> None:
    """Let an hour pass in which a deploy breaks the jobs of one type for ten minutes."""
    for minute in range(59, 0, -1):
        busy, is_broken = 20 + minute * 7 % 9, 18 > minute > 8
        site.worker("web-1", version="4f2c" if minute < 20 else "41aa")
        site.enqueue("email.send", busy, queue="mail")
        claims = site.claim("mail", busy - 1)
        site.settle(claims[: len(claims) // 2] if is_broken else claims, Outcome.ack())
        if is_broken:
            site.settle(claims[len(claims) // 2 :], Outcome.fail("hopeless", failure=SMTP_ERROR))
        _tally(site, busy)
        site.roll_up()
        clock.skip(MINUTE)


def _tally(site: UiSite, busy: int) -> None:
    """Hand over the statistics of a worker: how many attempts, how long they waited and ran."""
    at = begin_of(site.driver.inspector.now(), MINUTE)
    tallies = [StatisticTally(at, Metric.ATTEMPTS, "mail", "email.send", "SUCCEEDED", busy)]
    for metric, buckets in ((Metric.WAIT, (3, 5, 8)), (Metric.RUN, (9, 10, 12))):
        counts = (busy, busy // 4, busy // 12)
        tallies += [
            StatisticTally(at, metric, "mail", "email.send", str(bucket), count)
            for bucket, count in zip(buckets, counts, strict=True)
        ]
    version = next((each.version for each in site.driver.inspector.workers()), None)
    site.driver.maintenance.record_statistics(tallies, version=version)


def beat(site: UiSite) -> None:
    """Record the heartbeats of the two workers of `seed`."""
    since = site.driver.inspector.now() - timedelta(hours=3)
    site.worker("web-1", queues=("default", "mail"), busy_slots=2, started_at=since)
    types = ("email.send", "img.resize")
    site.worker("web-2", queues=("mail", "images"), types=types, concurrency=8, started_at=since)


def seed(site: UiSite) -> dict[str, JobId]:
    """Fill a store with jobs in every state, two live workers, dead letters and a paused queue."""
    beat(site)
    [retry] = site.enqueue("email.send", queue="mail", max_attempts=8, priority=-5)
    site.settle(site.claim("mail"), Outcome.retry(after=timedelta(seconds=41), failure=SMTP_ERROR))
    done = site.enqueue("email.send", 3, queue="mail", priority=-5)
    site.settle(site.claim("mail", 3), Outcome.ack())
    running = site.enqueue("email.send", 2, queue="default")
    site.claim("default", 2)
    dead = site.enqueue("charge.card", 5, queue="payments", max_attempts=1)
    site.settle(site.claim("payments", 5), Outcome.fail("hopeless", failure=CARD_ERROR))
    waiting = site.enqueue("charge.card", 4, queue="payments")
    paused = site.enqueue("img.resize", 3, queue="images")
    canceled = site.enqueue("email.send", 1, queue="mail")
    site.driver.cancel(canceled)
    site.driver.control.pause(["images"], by="ana")
    site.enqueue("email.send", 2, queue="mail")
    spec = ScheduleSpec(name="digest", cron="0 2 * * *", timezone="Europe/Paris", type="email.send", queue="mail")
    Scheduler(site.driver, codec=site.harbor.codec).put([spec])
    site.roll_up()
    return {
        "retry": retry,
        "done": done[0],
        "running": running[0],
        "dead": dead[0],
        "waiting": waiting[0],
        "paused": paused[0],
        "canceled": canceled[0],
    }
