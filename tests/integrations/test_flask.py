"""The Flask integration: the harbor of the application, its context around jobs, and its command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flask import Flask, current_app, g

from taskharbor import Harbor
from taskharbor.core.errors import UsageError
from taskharbor.integrations.flask import command, current_harbor, init_app

if TYPE_CHECKING:
    from pathlib import Path


def made(folder: Path) -> tuple[Flask, Harbor]:
    app, harbor = Flask("shop"), Harbor()
    app.config["TASKHARBOR_URL"] = f"sqlite:///{folder}/jobs.db"
    init_app(app, harbor)
    return app, harbor


def test_the_store_of_the_harbor_is_that_of_the_configuration(tmp_path: Path) -> None:
    app, harbor = made(tmp_path)

    assert harbor.source == f"sqlite:///{tmp_path}/jobs.db"
    with app.app_context():
        assert current_harbor() is harbor


def test_a_harbor_that_names_its_store_keeps_it() -> None:
    app, harbor = Flask("shop"), Harbor("memory://")
    app.config["TASKHARBOR_URL"] = "sqlite:///other.db"

    init_app(app, harbor)

    assert harbor.source == "memory://"


def test_each_job_runs_in_an_application_context_of_its_own(tmp_path: Path) -> None:
    _, harbor = made(tmp_path)

    @harbor.task
    def name(value: int) -> str:
        assert not hasattr(g, "value"), "left by another job"
        g.value = value
        return str(current_app.name)

    @harbor.task
    async def aname() -> str:
        return str(current_app.name)

    handles = [name.enqueue(1), name.enqueue(2), aname.enqueue()]
    with harbor:
        harbor.worker(concurrency=1).drain()

        assert [handle.result(timeout=10) for handle in handles] == ["shop"] * 3


def test_the_harness_runs_jobs_in_the_context_too(tmp_path: Path) -> None:
    _, harbor = made(tmp_path)

    @harbor.task
    def name() -> str:
        return str(current_app.name)

    with harbor.testing() as harness:
        handle = name.enqueue()
        harness.drain()

        assert handle.result() == "shop"


def test_the_command_of_flask_runs_a_command_of_taskharbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_APP", "")  # restored after the command has set it
    monkeypatch.delenv("TASKHARBOR_APP")
    app, harbor = made(tmp_path)
    app.cli.add_command(command)

    ran = app.test_cli_runner().invoke(args=["taskharbor", "version"])

    assert ran.exit_code == 0, ran.output
    wrong = app.test_cli_runner().invoke(args=["taskharbor", "worrk"])
    assert wrong.output == "error: no such command 'worrk'; did you mean 'worker'?\n"
    wrong = app.test_cli_runner().invoke(args=["taskharbor", "enqueue"])
    assert wrong.output.endswith("see 'flask taskharbor enqueue --help'\n")
    harbor.close()


def test_an_application_without_a_harbor_says_what_to_call() -> None:
    with Flask("shop").app_context(), pytest.raises(UsageError, match="init_app"):
        current_harbor()


def test_a_second_harbor_is_refused(tmp_path: Path) -> None:
    app, _ = made(tmp_path)

    with pytest.raises(UsageError, match="once"):
        init_app(app, Harbor())
