"""`taskharbor dev`: child processes, and a restart when a file is saved."""

from __future__ import annotations

import signal
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Client, JobRequest, Status
from taskharbor.cli import dev_server
from taskharbor.cli.app_loader import find_app
from taskharbor.cli.dev_server import FileWatcher, children_for, folder_of
from taskharbor.cli.errors import NoApp
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.drivers import migrate
from taskharbor.drivers.connect import connect
from taskharbor.drivers.postgres.schema import MIGRATIONS
from tests.support.cli_processes import LIMIT_SECONDS, PYTHON
from tests.support.postgres import database, schema_at
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

APP: Final = """
# for taskharbor
def greet(job):
    return "hello"

handlers = {"greet": greet}
"""
HARBOR: Final = """
from taskharbor import Harbor

harbor = Harbor({store!r})

@harbor.task
def greet() -> str:
    return "hello"
"""


def test_dev_runs_jobs_and_restarts_the_worker_on_save(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with started(tmp_path, "dev", "--no-api") as dev:
        wait_until(lambda: "1 task: greet" in dev.log())
        assert result_of(tmp_path) == b'"hello"'

        (tmp_path / "tasks.py").write_text(APP.replace("hello", "good day, all"))
        wait_until(lambda: dev.log().count("1 task: greet") == 2)

        assert result_of(tmp_path) == b'"good day, all"'
        assert "tasks.py changed; restarting worker\n" in dev.log()


def test_an_app_that_names_no_store_gets_a_file_and_other_terminals_its_url(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with started(tmp_path, "dev", "--no-api") as dev:
        wait_until(lambda: "greet" in dev.log())

    file = tmp_path.resolve() / ".taskharbor" / "dev.db"
    assert dev.log().startswith(
        f"tasks.py names no store; jobs are stored in {file}\n"
        "to use the same store in other terminals, first run:\n"
        f"export TASKHARBOR_URL=sqlite:///{file}\n"
    )


def test_an_app_that_names_a_store_is_run_on_it_whatever_the_environment_names(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(HARBOR.format(store="sqlite:///jobs.db"))
    with started(tmp_path, "dev", "--no-api", TASKHARBOR_URL="sqlite:///other.db") as dev:
        wait_until(lambda: "greet" in dev.log())

        assert result_of(tmp_path, "jobs.db") == b'"hello"'

    assert "jobs are stored in sqlite:///jobs.db\n" in dev.log()
    assert "export" not in dev.log()
    assert {path.name for path in tmp_path.iterdir()} & {".taskharbor", "other.db"} == set()


def test_an_app_that_names_no_store_is_run_on_that_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with started(tmp_path, "dev", "--no-api", TASKHARBOR_URL="sqlite:///other.db") as dev:
        wait_until(lambda: "greet" in dev.log())

        assert result_of(tmp_path, "other.db") == b'"hello"'

    assert not (tmp_path / ".taskharbor").exists()


def test_an_app_that_names_another_store_after_a_change_is_run_on_that(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(HARBOR.format(store="sqlite:///jobs.db"))
    with started(tmp_path, "dev", "--no-api") as dev:
        wait_until(lambda: "greet" in dev.log())

        (tmp_path / "tasks.py").write_text(HARBOR.format(store="sqlite:///second.db"))
        wait_until(lambda: "jobs are stored in sqlite:///second.db\n" in dev.log())

        assert result_of(tmp_path, "second.db") == b'"hello"'


def test_an_app_whose_store_is_memory_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(HARBOR.format(store="memory://"))
    with started(tmp_path, "dev", "--no-api") as dev:
        wait_until(lambda: "was not loaded" in dev.log())

    assert "error: memory:// is the memory of a single process" in dev.log()


def test_dev_creates_the_tables_of_a_database(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with database(migrated=False) as url, started(tmp_path, "dev", "--no-api", "--url", url) as dev:
        wait_until(lambda: "greet" in dev.log())
        dev.terminate()
        dev.wait(LIMIT_SECONDS)

        migrate.check_schema(schema_at(url), MIGRATIONS)


def test_code_that_cannot_be_loaded_is_retried_on_save(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("taskharbor = 1 / 0")
    with started(tmp_path, "dev", "--no-api") as dev:
        wait_until(lambda: "tasks.py was not loaded; trying again when a file is saved\n" in dev.log())
        assert "error: cannot load tasks.py: tasks.py:1: ZeroDivisionError: division by zero" in dev.log()
        assert not (tmp_path / ".taskharbor").exists()

        (tmp_path / "tasks.py").write_text(APP)
        wait_until(lambda: "1 task: greet" in dev.log())

        (tmp_path / "tasks.py").write_text("taskharbor = (")
        wait_until(lambda: "SyntaxError" in dev.log() and dev.log().endswith("when a file is saved\n"))

        (tmp_path / "tasks.py").write_text(APP)
        wait_until(lambda: dev.log().count("1 task: greet") == 2)


def test_a_worker_that_ends_by_itself_is_restarted_on_save(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("# taskharbor\nhandlers = {}")
    with started(tmp_path, "dev", "--no-api") as dev:
        wait_until(lambda: "worker exited with code 10; restarting when a file is saved\n" in dev.log())

        (tmp_path / "tasks.py").write_text(APP)

        wait_until(lambda: "1 task: greet" in dev.log())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_dev_with_0_and_all_its_processes(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with started(tmp_path, "dev", "tasks.py", "--no-api") as dev:
        wait_until(lambda: "1 task: greet" in dev.log())

        dev.send_signal(number)

        assert dev.wait(LIMIT_SECONDS) == 0
    assert dev.log().endswith(" stopped\n")


def test_the_processes_of_a_dev_that_was_killed_stop(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with started(tmp_path, "dev", "tasks.py", "--no-api") as dev:
        wait_until(lambda: "1 task: greet" in dev.log())

        dev.kill()

        wait_until(lambda: dev.log().endswith(" stopped\n"))


def test_a_worker_finds_its_app_as_well(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    with started(tmp_path, "worker", "--url", "sqlite:///jobs.db") as worker:
        wait_until(lambda: "1 task: greet" in worker.log())


def test_without_an_app_the_error_lists_the_tried_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(cli, ["dev"]) == ExitCode.USAGE

    assert "tasks.py, app.py, jobs.py, main.py" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_pyproject_names_the_app_before_any_file_does(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    assert find_app(tmp_path) == "tasks.py"

    (tmp_path / "pyproject.toml").write_text("[tool.taskharbor]\napp = 'shop.work:harbor'\n")

    assert find_app(tmp_path) == "shop.work:harbor"


@pytest.mark.parametrize("config", ["[tool.taskharbor]\napp = 7\n", "not toml at all", "[project]\nname = 'shop'\n"])
def test_a_file_that_does_not_mention_taskharbor_is_not_imported(config: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(config)
    (tmp_path / "main.py").write_text("print('launch the rocket')")

    with pytest.raises(NoApp):
        find_app(tmp_path)


def test_file_changes_are_reported_once_and_only_for_python_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "b.py").write_text("1")
    for name in (".hidden", "__pycache__", "env"):
        (tmp_path / name).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    files = FileWatcher(tmp_path)

    assert files.changed() == []
    (tmp_path / "a.py").write_text("12")
    (tmp_path / "pkg" / "b.py").unlink()
    (tmp_path / "pkg" / "c.py").touch()
    (tmp_path / "notes.txt").touch()
    for name in (".hidden", "__pycache__", "env"):
        (tmp_path / name / "d.py").touch()

    assert files.changed() == ["a.py", "pkg/b.py", "pkg/c.py"]
    assert files.changed() == []


def test_the_watched_folder_is_that_of_the_file_or_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert folder_of("shop/tasks.py:harbor") == tmp_path.resolve() / "shop"
    assert folder_of("shop.tasks:harbor") == Path.cwd()


@pytest.mark.parametrize(
    ("port", "has_api", "delivers", "names"),
    [
        (8000, True, False, ["worker", "api"]),
        (None, True, False, ["worker"]),
        (8000, False, False, ["worker"]),
        (8000, True, True, ["worker", "api", "enqueuer"]),
    ],
)
def test_dev_starts_api_and_enqueuer_only_if_available(
    port: int | None, has_api: bool, delivers: bool, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev_server, "_has_api", lambda: has_api)
    monkeypatch.setattr(dev_server, "_uses_sqs", lambda: delivers)

    children = children_for("tasks.py", "sqlite:///jobs.db", port=port)

    assert [child.name for child in children] == names
    assert all(child.command[3:5] == [child.name, "tasks.py"] for child in children)


def result_of(folder: Path, file: str = ".taskharbor/dev.db") -> bytes | None:
    with closing(connect(f"sqlite:///{folder}/{file}")) as driver:
        job_id = Client(driver).enqueue(JobRequest(type="greet", payload={})).id
        wait_until(lambda: driver.inspector.get([job_id])[job_id].status is Status.SUCCEEDED)
        return driver.inspector.get([job_id])[job_id].result


class Started(subprocess.Popen[bytes]):
    stderr_file: Path

    def log(self) -> str:
        return self.stderr_file.read_text()


@contextmanager
def started(folder: Path, *words: str, **environ: str) -> Iterator[Started]:
    """Start a command in *folder*; stop it at the end."""
    stderr_file = folder / "stderr"
    with stderr_file.open("wb") as stderr:
        environ["PYTHONDONTWRITEBYTECODE"] = "1"
        process = Started([*PYTHON, "-m", "taskharbor.cli", *words], cwd=folder, stderr=stderr, env=environ)
    process.stderr_file = stderr_file
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_SECONDS)
