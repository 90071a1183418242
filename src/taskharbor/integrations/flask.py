"""TaskHarbor for Flask: a harbor in the application, its context around each job, and ``flask taskharbor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from flask import current_app
from flask.cli import ScriptInfo, with_appcontext

from taskharbor.cli.main import cli, run
from taskharbor.core.errors import Problem, UsageError
from taskharbor.settings import export_app

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from flask import Flask

    from taskharbor.core.model import Job
    from taskharbor.harbor import Harbor
    from taskharbor.worker.context import Context

NAME: Final = "taskharbor"
"""The key of the harbor in ``app.extensions``."""
URL: Final = "TASKHARBOR_URL"


def init_app(app: Flask, harbor: Harbor) -> None:
    """Connect *harbor* with *app*: its jobs run inside the application context of *app*.

    The harbor is ``app.extensions["taskharbor"]``. If it names no store, ``app.config["TASKHARBOR_URL"]`` does, or
    else the environment variable of that name. Call it once for each application.
    """
    if NAME in app.extensions:
        rule = "this application has one; call init_app once"
        raise UsageError(Problem(field="harbor", value=repr(NAME), rule=rule))
    app.extensions[NAME] = harbor
    if app.config.get(URL) and harbor.source is None:
        harbor.use_store(app.config[URL])

    def around(job: Job, ctx: Context, call: Callable[[Job, Context], Any]) -> Any:
        with app.app_context():
            return call(job, ctx)

    async def around_async(job: Job, ctx: Context, call: Callable[[Job, Context], Awaitable[Any]]) -> Any:
        with app.app_context():
            return await call(job, ctx)

    harbor.wrap((around, around_async))


def current_harbor() -> Harbor:
    """Return the harbor of the application that handles the request, or runs the job."""
    found: Harbor | None = current_app.extensions.get(NAME)
    if found is None:
        rule = "call taskharbor.integrations.flask.init_app(app, harbor)"
        raise UsageError(Problem(field="harbor", value="not in app.extensions", rule=rule))
    return found


@click.command(
    NAME,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@with_appcontext
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Run a command of TaskHarbor on the harbor of the application, such as 'worker'."""
    current_harbor()  # before another process looks for it
    info = ctx.ensure_object(ScriptInfo)
    named = {"FLASK_APP": info.app_import_path} if info.app_import_path else {}
    export_app("taskharbor.integrations.flask_app:harbor", **named)
    raise click.exceptions.Exit(run(cli, words, program="flask taskharbor"))
