from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from taskharbor.cli.render import echo_status

FOLDER: Final = ".taskharbor"


@click.command()
@click.argument("app", required=False)
@click.option("--url", metavar="URL", help=f"The store.  [default: the file {FOLDER}/dev.db]")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_000, show_default=True, help="Where the API listens.")
@click.option("--api/--no-api", default=True, help="Serve the API, where it is installed.  [default: --api]")
def dev(*, app: str | None, url: str | None, port: int, api: bool) -> None:
    """Run everything for development, and reload on save.

    A worker for APP (module:attribute or file.py[:attribute]; without it, what pyproject.toml
    names under [tool.taskharbor] as app, or tasks.py, app.py, jobs.py or main.py), the API if it
    is installed, and a store in a file, whose place is told. Ctrl-C ends all of it.
    """
    from taskharbor.cli.app_loader import find_app
    from taskharbor.cli.dev_server import DevServer, children_for

    wanted = find_app() if app is None else app
    store = url or _embedded(Path.cwd() / FOLDER)
    DevServer(wanted, children_for(wanted, store, port=port if api else None)).run()


def _embedded(folder: Path) -> str:
    """Return the URL of the file that holds the jobs, and say where it is."""
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n", "utf-8")
    file = folder / "dev.db"
    url = f"sqlite:///{file.as_posix()}"
    echo_status(f"jobs are kept in {file}")
    echo_status(f"other commands reach them with --url {url}")
    return url


@click.command()
@click.option("--chaos", is_flag=True, help="Kill a worker again and again, and not just once.")
@click.pass_context
def demo(ctx: click.Context, *, chaos: bool) -> None:
    """Watch jobs survive workers that are killed.

    Real workers on a store in a temporary file, jobs that fail in every way, and a worker that is
    killed in the middle. It takes about fifteen seconds, prints a ledger that comes from the store
    and from what the jobs wrote down themselves, and exits with 1 if that is not clean.
    """
    from taskharbor.cli.demo.run import run_demo
    from taskharbor.cli.main import ExitCode

    ctx.exit(ExitCode.OK if run_demo(chaos=chaos) else ExitCode.FAILURE)
