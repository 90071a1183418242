"""The cost of delivery by SQS: calls per job, the enqueuer compared with a raw loop, and both modes on the same jobs.

Endpoints are separate processes on this machine, without a network or the latency of AWS. Compared sides
are measured in turn. More than 0.35 calls per job, or 0.05 with ten jobs in a message, or an enqueuer with less
than 0.8 times the rate of the loop, raises.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import _sqs
from benchmarks.postgres import compared, store
from benchmarks.worker import fill, nothing, percentiles
from taskharbor import Client, JobRequest
from taskharbor.delivery.transport import BATCH_LIMIT
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.runtime import ThreadRuntime
from taskharbor.service import tuned_interpreter
from taskharbor.testing.postgres import PostgresServer
from taskharbor.worker import Worker
from tests.delivery.test_endpoint import process
from tests.support.transport_subjects import REGION, raw_client
from tools.sqs_endpoints import EMULATORS, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.delivery.sqs import SqsTransport
    from taskharbor.drivers.postgres import PostgresDriver

PAIRS: Final = 5
SENDS: Final = 5  # pairs
JOBS: Final = 5_000
SENT: Final = 8_000
STARTS: Final = 100
CONCURRENCY: Final = 100
VISIBILITY: Final = timedelta(minutes=1)
TIMEOUT_SECONDS: Final = 60.0
MAX_CALLS: Final = {1: 0.35, 10: 0.05}
"""The most calls for a job, by the number of jobs in a message."""
MIN_RATIO: Final = 0.8


def figures() -> dict[str, object]:
    with (
        _sqs.credentials(),
        tempfile.TemporaryDirectory() as folder,
        PostgresServer.start(Path(folder), durable=True) as server,
        tuned_interpreter(),
    ):
        with process() as (_, url):
            counted = {bundle: calls_for_each_job(server, url, bundle) for bundle in MAX_CALLS}
            sent = beside_raw(server, url)
            ours = both_modes(server, url)
        with running(EMULATORS["ministack"]) as url:
            theirs = both_modes(server, url)
    for bundle, (calls, _) in counted.items():
        if calls["in all"] > MAX_CALLS[bundle]:
            raise RuntimeError(f"a job takes {calls['in all']} calls, more than {MAX_CALLS[bundle]}")
    if sent["ratio"] < MIN_RATIO:
        raise RuntimeError(f"the enqueuer has {sent['ratio']} times the rate of the loop, less than {MIN_RATIO}")
    return {
        "calls for each job": counted[1][0],
        "calls for each job, ten jobs in a message": counted[10][0],
        "jobs a second, one worker, all messages sent before": counted[1][1],
        "jobs a second, one worker, all messages sent before, ten jobs in a message": counted[10][1],
        "messages sent a second": sent,
        "both modes, our endpoint": ours,
        "both modes, ministack": theirs,
    }


def calls_for_each_job(server: PostgresServer, url: str, bundle: int) -> tuple[dict[str, float], int]:
    """Return the SQS calls per job for many jobs, as counted by the endpoint, and the jobs per second."""
    with store(server) as (driver, _), _sqs.transport_to(url, visibility=VISIBILITY) as transport:
        before = _sqs.asked(url)
        fill(driver, JOBS)
        send_all(driver, transport, JOBS, bundle)
        worker = Worker(driver, concurrency=CONCURRENCY, transport=transport, receive_wait=timedelta(0), janitor=False)
        worker.register("greet", nothing)
        start = time.perf_counter()
        worker.drain()
        drained = round(JOBS / (time.perf_counter() - start))
        after = _sqs.asked(url)
    if left := _sqs.depth(url):
        raise RuntimeError(f"{left} messages were left")
    calls = {name: after.get(name, 0) - before.get(name, 0) for name in _sqs.OPERATIONS}
    rates = {name: round(count / JOBS, 3) for name, count in calls.items()}
    return {**rates, "in all": round(sum(calls.values()) / JOBS, 3)}, drained


def beside_raw(server: PostgresServer, url: str) -> dict[str, float]:
    """Return the messages per second of the enqueuer and of a loop without a store."""
    with _sqs.transport_to(url, visibility=VISIBILITY) as transport:
        return compared([sent_both_ways(server, url, transport) for _ in range(SENDS)], "enqueuer", "raw boto3 loop")


def sent_both_ways(server: PostgresServer, url: str, transport: SqsTransport) -> tuple[float, float]:
    # A new store for each turn: in an older one jobs would be due for a resend.
    with store(server) as (driver, _), closing(raw_client(url)) as sqs:
        fill(driver, SENT)
        rates = rate(lambda: send_all(driver, transport, SENT)), rate(lambda: send_by_hand(sqs))
        if (found := _sqs.depth(url)) != 2 * SENT:
            raise RuntimeError(f"{found} messages were sent, not {2 * SENT}")
        sqs.purge_queue(QueueUrl=sqs.get_queue_url(QueueName=_sqs.NAME)["QueueUrl"])
        return rates


def rate(send: Callable[[], None]) -> float:
    start = time.perf_counter()
    send()
    return SENT / (time.perf_counter() - start)


def send_all(driver: PostgresDriver, transport: SqsTransport, count: int, bundle: int = 1) -> None:
    enqueuer = DueTaskEnqueuer(
        ThreadRuntime(sync_threads=1),
        driver,
        transport,
        queues=[_sqs.QUEUE],
        max_unclaimed=2 * count,
        bundle=bundle,
    )
    wanted = transport.calls["SendMessageBatch"] + count // (BATCH_LIMIT * bundle)
    enqueuer.start()
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while transport.calls["SendMessageBatch"] < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError("not all messages were sent")
            time.sleep(0.005)  # noqa: TID251  there is no event for the last send
    finally:
        enqueuer.stop()


def send_by_hand(sqs: Any) -> None:
    queue = sqs.get_queue_url(QueueName=_sqs.NAME)["QueueUrl"]
    body = '{"v":1,"id":"019a8f00-0000-7000-8000-000000000001","seq":1}'
    for _ in range(0, SENT, BATCH_LIMIT):
        sqs.send_message_batch(
            QueueUrl=queue, Entries=[{"Id": str(number), "MessageBody": body} for number in range(BATCH_LIMIT)]
        )


def both_modes(server: PostgresServer, url: str) -> dict[str, Any]:
    """Run the same jobs by polling and by messages in turn, each mode on its own store."""
    with (
        store(server) as (polled, _),
        store(server) as (delivered, store_url),
        _sqs.transport_to(url, visibility=VISIBILITY) as transport,
        enqueuer_process(store_url, url),
    ):
        pairs = [(jobs_a_second(delivered, transport), jobs_a_second(polled, None)) for _ in range(PAIRS)]
        starts = {"SQS": seconds_to_start(delivered, transport), "polling": seconds_to_start(polled, None)}
    return {
        "jobs a second": compared(pairs, "SQS", "polling"),
        "milliseconds from enqueue to start": {mode: percentiles(seconds) for mode, seconds in starts.items()},
    }


@contextmanager
def enqueuer_process(store_url: str, url: str) -> Iterator[None]:
    given = ["env", f"AWS_ENDPOINT_URL_SQS={url}", f"AWS_REGION={REGION}"]
    command = [*given, sys.executable, "-m", "taskharbor.cli", "enqueuer", "--url", store_url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as enqueuer:
        assert enqueuer.stderr is not None
        line = enqueuer.stderr.readline()
        assert "serves" in line, line
        try:
            yield
        finally:
            enqueuer.terminate()
            enqueuer.wait(TIMEOUT_SECONDS)


@contextmanager
def running_worker(
    driver: PostgresDriver, transport: SqsTransport | None, job_type: str, handler: Any
) -> Iterator[None]:
    worker = Worker(driver, concurrency=CONCURRENCY, transport=transport)
    worker.register(job_type, handler)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def jobs_a_second(driver: PostgresDriver, transport: SqsTransport | None) -> float:
    """Return the jobs per second, from before the first is enqueued until the last has finished."""
    done = _sqs.Count()
    with running_worker(driver, transport, "greet", done.handle):
        start = time.perf_counter()
        fill(driver, JOBS)
        done.wait_for(JOBS)
        return JOBS / (time.perf_counter() - start)


def seconds_to_start(driver: PostgresDriver, transport: SqsTransport | None) -> list[float]:
    """Return the seconds from enqueue to start of several jobs, one after the other."""
    started, seconds = threading.Event(), list[float]()
    begun = 0.0

    async def note(_job: Any) -> None:
        seconds.append(time.perf_counter() - begun)
        started.set()

    client = Client(driver)
    with running_worker(driver, transport, "note", note):
        for _ in range(STARTS):
            started.clear()
            begun = time.perf_counter()
            client.enqueue(JobRequest(type="note"))
            if not started.wait(TIMEOUT_SECONDS):
                raise TimeoutError("a job did not start")
    return seconds
