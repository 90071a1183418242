from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.dashboard import dashboard_options
from taskharbor.cli.options import log_options

if TYPE_CHECKING:
    from taskharbor.cli.dashboard import DashboardOptions

FOLDER: Final = ".taskharbor"


@click.command()
@click.argument("app", required=False)
@click.option(
    "--url", metavar="URL", help=f"The store.  [default: the app's store, else TASKHARBOR_URL, else {FOLDER}/dev.db]"
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8_000, show_default=True, help="The port of the API.")
@click.option("--api/--no-api", default=True, help="Serve the API, if it is installed.  [default: --api]")
@dashboard_options
@log_options
def dev(
    *, app: str | None, url: str | None, port: int, api: bool, dashboard: DashboardOptions, log_level: str | None
) -> None:
    """Run worker and API for development; reload on save.

    Runs a worker for APP, and the API with the dashboard if they are installed. APP is module:attribute or
    file.py[:attribute];
    without it, the app of [tool.taskharbor] in pyproject.toml, or tasks.py, app.py, jobs.py or main.py.
    The tables of the store are created or migrated. Ctrl-C stops everything.
    """
    from taskharbor.cli.app_loader import find_app
    from taskharbor.cli.dev_server import DevServer
    from taskharbor.cli.store import check_shared

    check_shared(url)
    wanted = find_app() if app is None else app
    options = [] if log_level is None else ["--log-level", log_level]
    DevServer(
        wanted,
        Path.cwd() / FOLDER,
        url=url,
        port=port if api else None,
        options=options,
        api_options=dashboard.words(),
    ).run()


@click.command()
@click.option("--chaos", is_flag=True, help="Kill workers repeatedly instead of once.")
@click.pass_context
def demo(ctx: click.Context, *, chaos: bool) -> None:
    """Run a demo: workers are killed, no job is lost.

    Runs worker processes on a store in a temporary file, with jobs that fail in several ways, and
    kills a worker while it runs jobs. It takes about fifteen seconds. At the end it prints a
    ledger, computed from the store and from the log of the handlers, and exits with 1 if a job was
    lost or ran twice at the same time.
    """
    from taskharbor.cli.demo.run import run_demo
    from taskharbor.cli.main import ExitCode

    ctx.exit(ExitCode.OK if run_demo(chaos=chaos) else ExitCode.FAILURE)
