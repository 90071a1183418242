"""Commands that write payloads use the app's codec."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import pytest

from taskharbor import Client, Harbor, JobRequest
from taskharbor.api import server
from taskharbor.cli import dev_server
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.core.results import JobFilter
from taskharbor.crypto import AesGcmCodec
from taskharbor.drivers.connect import connect
from taskharbor.schedules import Scheduler, ScheduleSpec
from tests.support.worker_rig import running_worker

if TYPE_CHECKING:
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from tests.support.console import Console

pytestmark = pytest.mark.usefixtures("_in_a_folder")

AES = AesGcmCodec({"k": bytes(32)})
APP = """
from taskharbor import Harbor
from taskharbor.crypto import AesGcmCodec

harbor = Harbor(codec=AesGcmCodec({"k": bytes(32)}), max_attempts=4)

@harbor.task
def pay(card: str) -> None: ...
"""
REFUSED = "written with codec 'aes-gcm+json', not 'json'"


@pytest.mark.parametrize("named", [[], ["--app", "shop.py"], ["--app", "shop:harbor"]])
def test_enqueue_writes_with_the_codec_of_the_app_that_is_named_or_found(
    named: list[str], any_console: Console, tmp_path: Path
) -> None:
    (tmp_path / ("shop.py" if named else "tasks.py")).write_text(APP)

    said = any_console("enqueue", "pay", "card=4111", *named)

    [job] = any_console.driver.inspector.find(JobFilter(), limit=10).jobs
    assert (said.code, said.err, said.out) == (ExitCode.OK, "", f"{job.id}\n")
    assert b"4111" not in any_console.driver.inspector.get([job.id])[job.id].payload
    assert Harbor(any_console.driver, codec=AES).handle(job.id).job().max_attempts == 4
    assert any_console.driver.inspector.settings() == {"codec": "aes-gcm+json"}


def test_a_result_is_printed_with_the_codec_of_the_app(console: Console, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with running_worker(console.driver, {"pay": lambda _: {"on": date(2030, 1, 1)}}, codec=AES):
        said = console("enqueue", "pay", "card=4111", "--wait")

    assert (said.code, said.out) == (ExitCode.OK, '{"on": {"$date": "2030-01-01"}}\n')


def test_enqueue_into_an_encrypted_store_without_its_app_is_refused(any_console: Console) -> None:
    Client(any_console.driver, codec=AES).enqueue(JobRequest(type="pay"))

    said = any_console("enqueue", "pay", "card=4111")

    assert (said.code, said.out) == (ExitCode.CONFLICT, "")
    assert REFUSED in said.err
    assert "taskharbor codec --help" in said.err
    assert len(any_console.driver.inspector.find(JobFilter(), limit=10).jobs) == 1


@pytest.mark.parametrize("app", ["handlers = {'pay': print}\n", "def register(worker): ...\n"])
def test_an_app_without_a_harbor_writes_json(app: str, console: Console, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(app)

    console("enqueue", "pay", "card=4111", "--app", "shop.py")

    [job] = console.driver.inspector.find(JobFilter(), limit=10).jobs
    assert console.driver.inspector.get([job.id])[job.id].data == {"card": 4111}


def test_an_app_that_cannot_be_loaded_is_not_ignored(console: Console, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("import taskharbor, no_such_module\n")

    said = console("enqueue", "pay")

    assert (said.code, "cannot load tasks.py" in said.err) == (ExitCode.APP_IMPORT_FAILED, True)
    assert console.driver.inspector.find(JobFilter(), limit=10).jobs == ()


def test_the_store_is_the_apps_own_and_else_the_one_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///other.db")
    app = tmp_path / "tasks.py"

    app.write_text("from taskharbor import Harbor\nharbor = Harbor('sqlite:///own.db')\n")
    own = run(cli, ["enqueue", "greet"])  # it has no tasks, so any type will do
    app.write_text("from taskharbor import Harbor\nharbor = Harbor()  # it names no store\n")
    other = run(cli, ["enqueue", "greet"])

    assert (own, other) == (ExitCode.OK, ExitCode.OK)
    for name in ("own", "other"):
        assert len(connect(f"sqlite:///{name}.db").inspector.find(JobFilter(), limit=10).jobs) == 1


def test_without_any_store_the_error_says_where_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["enqueue", "greet"]) == ExitCode.USAGE
    assert "TASKHARBOR_URL" in capsys.readouterr().err


def test_a_new_payload_for_a_job_is_written_with_the_codec_of_the_app(any_console: Console, tmp_path: Path) -> None:
    harbor = Harbor(any_console.driver, codec=AES)
    job_id = harbor.client.enqueue(JobRequest(type="pay", payload={"card": "1"})).id
    any_console.driver.cancel([job_id])

    refused = any_console("jobs", "requeue", str(job_id), "--payload", '{"card": "4111"}')
    (tmp_path / "tasks.py").write_text(APP)
    done = any_console("jobs", "requeue", str(job_id), "--payload", '{"card": "4111"}')

    assert (refused.code, REFUSED in refused.err) == (ExitCode.CONFLICT, True)
    assert done.code == ExitCode.OK
    assert read(any_console, job_id) == {"card": "4111"}


def test_a_requeue_without_a_payload_needs_no_app(console: Console, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("import taskharbor, no_such_module\n")
    job_id = console.enqueue()
    console.driver.cancel([job_id])

    assert console("jobs", "requeue", str(job_id)).code == ExitCode.OK


def test_a_schedule_is_run_with_the_codec_of_the_app(console: Console, tmp_path: Path) -> None:
    spec = ScheduleSpec(name="daily", cron="0 0 * * *", type="pay", payload={"card": "4111"})
    Scheduler(console.driver, codec=AES).put([spec])
    (tmp_path / "shop.py").write_text(APP)

    said = console("schedules", "run", "daily", "--app", "shop.py")

    [job] = console.driver.inspector.find(JobFilter(), limit=10).jobs
    assert said.out == f"{job.id}\n"
    assert read(console, job.id) == {"card": "4111"}


@pytest.mark.parametrize("words", [["shop.py"], []])
def test_the_api_serves_the_app(
    words: list[str], console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("shop.py" if words else "tasks.py")).write_text(APP)
    Client(console.driver, codec=AES).enqueue(JobRequest(type="pay"))
    served: list[object] = []
    monkeypatch.setattr(server.ApiServer, "run", lambda self, **_: served.append(self._app))

    said = console("api", *words, "--port", "0")

    assert (said.code, len(served)) == (ExitCode.OK, 1)


def test_an_api_with_another_codec_than_the_stores_does_not_serve(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    Client(console.driver, codec=AES).enqueue(JobRequest(type="pay"))
    monkeypatch.setattr(server.ApiServer, "run", lambda *_, **__: pytest.fail("it was not rejected"))

    said = console("api", "--port", "0")

    assert (said.code, REFUSED in said.err) == (ExitCode.CONFLICT, True)


def test_an_api_that_has_written_nothing_records_nothing(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.ApiServer, "run", lambda *_, **__: None)

    console("api", "--port", "0")

    assert console.driver.inspector.settings() == {}


def test_for_development_the_api_has_the_app_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Child:
        def __init__(self, words: list[str], *, url: str) -> None:  # noqa: ARG002  same signature
            started.append(words)

    monkeypatch.setattr(dev_server, "ChildProcess", Child)
    dev_server.children_for("shop.py", "sqlite:///a.db", port=1)

    assert [words[:2] for words in started] == [["worker", "shop.py"], ["api", "shop.py"]]


def test_a_worker_with_another_codec_ends_with_one_line(console: Console, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("handlers = {'pay': print}\n")
    Client(console.driver, codec=AES).enqueue(JobRequest(type="pay"))

    said = console("worker", "shop.py")

    assert said.code == ExitCode.CONFLICT
    [line] = [each for each in said.err.splitlines() if "codec" in each]
    assert line.startswith("error: ")
    assert REFUSED in line


def test_the_recorded_codec_is_shown_and_changed_after_confirmation(any_console: Console) -> None:
    none = any_console("codec", "show")
    as_json = any_console("codec", "show", "--json")
    any_console("codec", "set", "json")
    shown = any_console("codec", "show")
    refused = any_console("codec", "set", "zip")
    dry = any_console("codec", "set", "zip", "--dry-run")
    changed = any_console("codec", "set", "zip", "--yes")

    assert (none.out, as_json.data, shown.out) == ("", {"codec": None}, "json\n")
    assert (refused.code, dry.out, changed.out) == (ExitCode.REFUSED, "json\n", "zip\n")
    assert any_console.driver.inspector.settings() == {"codec": "zip"}
    assert [entry.action for entry in any_console.audit()] == ["codec.set", "codec.set"]


def test_a_name_that_no_codec_can_have_is_not_recorded(console: Console) -> None:
    assert console("codec", "set", "a\nb").code == ExitCode.USAGE
    assert console.driver.inspector.settings() == {}


def test_a_concurrent_change_of_the_codec_is_reported(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.driver.remember("codec", "json")
    monkeypatch.setattr("taskharbor.drivers.sqlite.control.SqliteControl.change_setting", lambda *_, **__: False)

    said = console("codec", "set", "zip", "--yes")

    assert said.code == ExitCode.CONFLICT
    assert "another process recorded 'json' at the same time" in said.err


def read(console: Console, job_id: JobId) -> object:
    return replace(console.job(job_id), codec=AES).data
