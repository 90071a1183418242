from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from taskharbor.cli.render import echo_status

FOLDER: Final = ".taskharbor"


@click.command()
@click.argument("app", required=False)
@click.option("--url", metavar="URL", help=f"The store.  [default: the file {FOLDER}/dev.db]")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_000, show_default=True, help="The port of the API.")
@click.option("--api/--no-api", default=True, help="Serve the API, if it is installed.  [default: --api]")
def dev(*, app: str | None, url: str | None, port: int, api: bool) -> None:
    """Run worker and API for development; reload on save.

    Runs a worker for APP, and the API if it is installed, with a store in a file. APP is
    module:attribute or file.py[:attribute]; without it, the app of [tool.taskharbor] in
    pyproject.toml, or tasks.py, app.py, jobs.py or main.py. Ctrl-C stops everything.
    """
    from taskharbor.cli.app_loader import find_app
    from taskharbor.cli.dev_server import DevServer, children_for

    wanted = find_app() if app is None else app
    store = url or _embedded(Path.cwd() / FOLDER)
    DevServer(wanted, children_for(wanted, store, port=port if api else None)).run()


def _embedded(folder: Path) -> str:
    """Return the URL of the SQLite file for jobs, and print its path."""
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n", "utf-8")
    file = folder / "dev.db"
    url = f"sqlite:///{file.as_posix()}"
    echo_status(f"jobs are stored in {file}")
    echo_status(f"for other commands, use --url {url}")
    return url


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
