"""Third-party SQS emulators, each in its own virtual environment because they pin dependencies.

python -m tools.sqs_endpoints [NAME ...]     install missing ones, start each once, and print how long that took
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.testing.postgres import _free_port, _mortal  # an emulator has the same needs as the test server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CACHE: Final = Path(__file__).resolve().parent.parent / ".cache"
INSTALL_SECONDS: Final = 1_200.0  # LocalStack has eighty packages
START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """An emulator: the packages to install, and the settings to start it with a port and a folder."""

    name: str
    packages: Sequence[str]
    module: str
    settings: Callable[[int, Path], Mapping[str, str]]


EMULATORS: Final = {
    each.name: each
    for each in (
        Emulator(
            name="ministack",
            packages=["ministack==1.5.33"],
            module="ministack",
            settings=lambda port, folder: {
                "SERVICES": "sqs",
                "BIND_HOST": "127.0.0.1",
                "GATEWAY_PORT": str(port),
                "IOT_MTLS_ENABLED": "0",
                "SFTP_ENABLED": "0",
                "LOG_LEVEL": "WARNING",
                "TMPDIR": str(folder),
            },
        ),
        Emulator(
            name="localstack",
            packages=[
                "localstack-core[base-runtime]==4.13.1",
                "cbor2<6",
                "pyopenssl<25.2",
                "cryptography<46",
                "service-identity<26",
                "localstack-twisted<26",
            ],
            module="localstack.runtime.main",
            settings=lambda port, folder: {
                "SERVICES": "sqs",
                "STRICT_SERVICE_LOADING": "1",
                "EAGER_SERVICE_LOADING": "1",
                "GATEWAY_LISTEN": f"127.0.0.1:{port}",
                "DISABLE_EVENTS": "1",
                "SKIP_SSL_CERT_DOWNLOAD": "1",
                "SQS_ENDPOINT_STRATEGY": "path",
                "LOCALSTACK_HOST": f"127.0.0.1:{port}",
                "FILESYSTEM_ROOT": str(folder),
            },
        ),
    )
}


def main(names: Sequence[str]) -> int:
    for name in names or EMULATORS:
        start = time.monotonic()
        install(EMULATORS[name])
        installed = time.monotonic()
        with running(EMULATORS[name]) as url:
            ready = time.monotonic()
            print(f"{name}: installed in {installed - start:.1f} s, ready in {ready - installed:.2f} s at {url}")
    return 0


@contextmanager
def running(emulator: Emulator) -> Iterator[str]:
    """Install *emulator* if needed, start it, and yield its URL. It is stopped at the end of the block."""
    python = install(emulator)
    with tempfile.TemporaryDirectory(prefix=f"taskharbor-{emulator.name}-") as name:
        folder, port = Path(name), _free_port()
        given = [f"{key}={value}" for key, value in emulator.settings(port, folder).items()]
        command = ["env", *given, *_mortal(), str(python), "-m", emulator.module]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, process_group=0
            )
        try:
            _wait_until_ready(emulator, port, process, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def install(emulator: Emulator) -> Path:
    """Return the Python of the environment with *emulator*, which is created once."""
    folder, wanted = CACHE / emulator.name, "\n".join(emulator.packages)
    done = folder / ".installed"
    if not done.exists() or done.read_text("utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        for command in _installing(folder, emulator.packages):
            _run(emulator, command)
        done.write_text(wanted, "utf-8")
    return folder / "bin" / "python"


def _installing(folder: Path, packages: Sequence[str]) -> list[list[str]]:
    if uv := shutil.which("uv"):
        python = str(folder / "bin" / "python")
        return [[uv, "venv", "--quiet", str(folder)], [uv, "pip", "install", "--quiet", "--python", python, *packages]]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [[sys.executable, "-m", "venv", str(folder)], [*pip, *packages]]


def _run(emulator: Emulator, command: Sequence[str]) -> None:
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotRun(emulator.name, "could not be installed", str(error)) from error
    if ran.returncode != 0:
        raise NotRun(emulator.name, "could not be installed", ran.stderr)


def _wait_until_ready(emulator: Emulator, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotRun(emulator.name, "did not start", log.read_text("utf-8", errors="replace"))
        threading.Event().wait(_PAUSE_SECONDS)


def _answers(port: int) -> bool:
    """Return whether it lists its queues. Some report healthy long before they have loaded SQS."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS / 2)
    headers = {
        "Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/sqs/aws4_request",
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": "AmazonSQS.ListQueues",
    }
    try:
        connection.request("POST", "/", "{}", headers)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and its children."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_SECONDS)


class NotRun(Exception):
    """An emulator could not be installed or started. Tests fail then: skipped tests would be forgotten."""

    def __init__(self, name: str, what: str, output: str) -> None:
        super().__init__(name, what, output)

    def __str__(self) -> str:
        name, what, output = self.args
        return f"NOT RUN: {name} {what}; its output:\n{output[-2_000:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
