"""The effect of heavy and hostile requests on other clients of the API.

The server is a separate process on PostgreSQL. Memory is the peak resident set (VmHWM) of a fresh server
process after one request.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.postgres import store
from taskharbor import Client, JobRequest
from taskharbor.api_keys import issue_key
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.drivers.postgres import PostgresDriver

JOBS: Final = 200
SMALL_BYTES: Final = 1_000
LARGE_BYTES: Final = 1_000_000
MAX_BATCH_BYTES: Final = 4_194_304
BATCHES: Final = 3
SLOW_CONNECTIONS: Final = 140
FILES: Final = 128
TIMEOUT_SECONDS: Final = 30.0


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), durable=False) as server:
        small, large = (list_peak(server, size) for size in (SMALL_BYTES, LARGE_BYTES))
        with store(server) as (driver, url):
            site = ApiRig(url, key_of(driver))
            return {
                "peak MB after a list of 200 jobs": {
                    "payloads of 1 KB": round(small),
                    "payloads of 1 MB": round(large),
                    "ratio": round(large / small, 2),
                },
                "slowest /livez in ms during batches": {
                    name: round(1_000 * site.slowest_livez(body), 1)
                    for name, body in {"nothing": b"", **batches()}.items()
                },
                "half requests": site.half_requests(),
            }


def list_peak(server: PostgresServer, size: int) -> float:
    """Return the peak MB of a server that listed jobs with payloads of *size* bytes once."""
    with store(server) as (driver, url):
        for _ in range(JOBS // 10):
            Client(driver).enqueue_many([JobRequest(type="greet", payload="x" * size)] * 10)
        with ApiRig(url, key_of(driver)).served() as running:
            status, body = running.get("/v1/jobs?limit=200")
            assert status == 200, body
            assert len(json.loads(body)["jobs"]) == JOBS
            return running.peak()


def key_of(driver: PostgresDriver) -> str:
    issued = issue_key("benchmark", ["jobs:read", "jobs:write"], now=driver.inspector.now())
    driver.control.add_keys([issued.key])
    return issued.text


def batches() -> dict[str, bytes]:
    """Return bodies of the maximum size that are expensive in different ways. Some are rejected."""
    return {
        "keys": _batch("{" + ",".join(f'"k{n}":1' for n in range(300_000)) + "}"),
        "keys before a space": _batch("{" + ",".join(f'"k{n}" :1' for n in range(300_000)) + "}"),
        "numbers": _batch("[" + ",".join("1" for _ in range(2_000_000)) + "]"),
        "strings": _batch("[" + ",".join('""' for _ in range(1_350_000)) + "]"),
        "lists": _batch("[" + ",".join("[]" for _ in range(1_350_000)) + "]"),
        "49,000 numbers": _batch(f"[{','.join(['1'] * 49_000)}]"),
        "49,000 strings": _batch("[" + ",".join(f'"{n:060}"' for n in range(49_000)) + "]"),
        "9,900 keys": _batch("{" + ",".join(f'"{n:0400}":1' for n in range(9_900)) + "}"),
        "4 texts of 1 MB": _jobs("x" * 1_040_000, 4),
        "1,000 jobs of 4 KB": _jobs({"a": "x" * 4_100}, 1_000),
        "1,000 jobs": _jobs(None, 1_000),
        "1,000 jobs that break rules": json.dumps({"jobs": [{"type": "", "a": 1, "b": 2}] * 1_000}).encode(),
    }


def _batch(payload: str) -> bytes:
    body = f'{{"jobs":[{{"type":"t","payload":{payload}}}]}}'.encode()
    assert len(body) <= MAX_BATCH_BYTES, len(body)
    return body


def _jobs(payload: object, count: int) -> bytes:
    return json.dumps({"jobs": [{"type": "t", "payload": payload}] * count}).encode()


class ApiRig:
    """Starts API servers for a store and measures them."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    @contextmanager
    def served(self, files: int | None = None) -> Iterator[Running]:
        """Run a server with at most *files* open files inside the block."""
        command = [sys.executable, "-m", "benchmarks._api_server", self._url]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                yield Running(int(line), process.pid, self._key)
            finally:
                process.terminate()
                process.wait(timeout=30)

    def slowest_livez(self, body: bytes) -> float:
        """Return the longest time that /livez took while batches of *body* were sent."""
        with self.served() as running:
            sending = threading.Thread(target=running.post_batches, args=(body,))
            running.livez()
            sending.start()
            slowest = 0.0  # it includes the latency of an idle server, which "nothing" measures
            while sending.is_alive():
                slowest = max(slowest, running.livez())
            return slowest

    def half_requests(self) -> dict[str, object]:
        """Hold connections with half a request each, and measure a request on another connection."""
        with self.served(FILES) as running, ExitStack() as open_ones:
            for _ in range(SLOW_CONNECTIONS):
                last = open_ones.enter_context(socket.create_connection(("127.0.0.1", running.port), TIMEOUT_SECONDS))
                last.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n")
            begun = time.monotonic()
            return {
                "open files of the server": FILES,
                "/livez ms beside them": _milliseconds(running.livez),
                "last one closed after s": _seconds(lambda: last.recv(1_000), begun),
            }


def _milliseconds(call: Callable[[], float]) -> float | str:
    try:
        return round(1_000 * call(), 1)
    except OSError as error:
        return f"no answer: {error}"


def _seconds(call: Callable[[], object], begun: float) -> float | str:
    try:
        call()
    except OSError as error:
        return f"never: {error}"
    return round(time.monotonic() - begun, 1)


class Running:
    """A running server."""

    def __init__(self, port: int, pid: int, key: str) -> None:
        self.port = port
        self._pid = pid
        self._key = key

    def get(self, path: str) -> tuple[int, bytes]:
        return self._ask("GET", path)

    def post_batches(self, body: bytes) -> None:
        """Send *body* several times, or wait a second if it is empty."""
        if not body:
            threading.Event().wait(1)
        for _ in range(BATCHES if body else 0):
            self._ask("POST", "/v1/jobs/batch", body)

    def livez(self) -> float:
        begun = time.perf_counter()
        self._ask("GET", "/livez")
        return time.perf_counter() - begun

    def peak(self) -> float:
        status = Path(f"/proc/{self._pid}/status").read_text()
        [line] = [each for each in status.splitlines() if each.startswith("VmHWM")]
        return int(line.split()[1]) / 1_000

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers: dict[str, Any] = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
