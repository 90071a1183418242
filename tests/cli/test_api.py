from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from taskharbor.api import server
from taskharbor.api_keys import issue_key
from taskharbor.cli.main import cli, run
from taskharbor.drivers.connect import connect
from taskharbor.installation import install_command
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def _nothing_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test whose command should be rejected but serves; it would block the test process."""

    def fail(*_: object, **__: object) -> None:
        pytest.fail("the command was not rejected")

    monkeypatch.setattr(server.ApiServer, "run", fail)


@pytest.mark.usefixtures("_nothing_serves")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_an_address_that_others_can_reach_is_refused_while_there_is_no_key(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(cli, ["api", "--host", host, "--url", f"sqlite:///{tmp_path}/jobs.db"])

    assert code == 6
    assert "taskharbor keys create" in capsys.readouterr().err


@pytest.mark.usefixtures("_nothing_serves")
def test_a_revoked_key_does_not_allow_other_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    driver = connect(url)
    key = issue_key("ci", ["admin"], now=driver.inspector.now()).key
    driver.control.add_keys([key])
    driver.control.revoke_keys([key.id])
    driver.close()

    assert run(cli, ["api", "--host", "0.0.0.0", "--url", url]) == 6
    assert "refused to listen" in capsys.readouterr().err


@pytest.mark.usefixtures("_nothing_serves")
def test_an_address_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code = run(cli, ["api", "--port", str(taken.getsockname()[1]), "--url", f"sqlite:///{tmp_path}/jobs.db"])

    assert code == 1
    assert "choose another --host or --port" in capsys.readouterr().err


def test_the_server_socket_allows_disabling_nagles_algorithm() -> None:
    with server.open_socket("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP  # asyncio disables Nagle's algorithm only then


@pytest.mark.usefixtures("_nothing_serves")
def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("commands.run", "metrics"):  # a module imported below would keep the replacement
        import_module(f"taskharbor.cli.{name}")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    code = run(cli, ["api", "--url", "memory://"])

    assert code == 2
    assert f"FastAPI is not installed; run: {install_command('api')}\n" in capsys.readouterr().err


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """Serve a store in another process, on any free port."""
    log = tmp_path / "log"
    words = ["api", "--port", "0", "--url", f"sqlite:///{tmp_path}/jobs.db"]
    with log.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "taskharbor.cli", *words], stderr=stderr)
    try:
        wait_until(lambda: "listening on" in log.read_text())
        address = re.search(r"listening on (\S+)", log.read_text())
        assert address is not None
        yield address[1], process, log
    finally:
        process.kill()
        process.wait()


def test_it_serves_until_a_signal_and_exits_with_0(served: tuple[str, subprocess.Popen[bytes], Path]) -> None:
    address, process, log = served

    with httpx.Client(base_url=address, timeout=30) as client:
        made = client.post("/v1/jobs", json={"type": "greet"})
        assert made.status_code == 201
        assert client.get(made.headers["location"]).json()["type"] == "greet"
        assert client.get("/v1/jobs", headers={"Host": "evil.example"}).status_code == 403
        assert "server" not in made.headers
    process.terminate()

    assert process.wait(timeout=30) == 0
    assert "every local user has full access" in log.read_text()


CURL: Final = [
    line.removeprefix("$ ")
    for page in ("README.md", "docs/http.md")
    for line in (ROOT / page).read_text("utf-8").splitlines()
    if line.startswith("$ curl ")
]


def test_the_curl_commands_of_the_docs_create_jobs_as_they_are_typed(
    served: tuple[str, subprocess.Popen[bytes], Path],
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("NOT RUN: this machine has no curl")
    assert len(CURL) >= 3

    for command in CURL:
        typed = shlex.split(command.replace("http://127.0.0.1:8000", served[0]))
        done = subprocess.run([*typed, "--silent"], capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout)["status"] == "PENDING", command


def test_a_form_of_curl_gets_415_and_the_command_that_works(
    served: tuple[str, subprocess.Popen[bytes], Path],
) -> None:
    with httpx.Client(base_url=served[0], timeout=30) as client:  # as curl -d sends it
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        refused = client.post("/v1/jobs", content=b'{"type": "greet"}', headers=form)
        again = client.post("/v1/jobs", json={"type": "greet"})  # the connection is still good

    assert (refused.status_code, again.status_code) == (415, 201)
    assert "curl --json '{...}' URL" in refused.json()["detail"]


def test_an_open_stream_does_not_keep_it_from_stopping(served: tuple[str, subprocess.Popen[bytes], Path]) -> None:
    address, process, _ = served

    with httpx.Client(base_url=address, timeout=30) as client, client.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: queues"
        process.terminate()
        assert wait_until(lambda: process.poll() is not None) < 8  # less than the grace for running requests

    assert process.returncode == 0


def test_a_body_that_is_too_large_is_refused_while_it_streams_in(
    served: tuple[str, subprocess.Popen[bytes], Path],
) -> None:
    address, _, _ = served
    host, port = address.removeprefix("http://").split(":")

    with socket.create_connection((host, int(port)), timeout=30) as raw:
        head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        for _ in range(5):  # never the last one; the response comes before the end of the body
            raw.sendall(chunk)
        answer = raw.recv(1_000)

    assert answer.startswith(b"HTTP/1.1 413 ")
