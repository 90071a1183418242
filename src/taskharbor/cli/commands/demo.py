from __future__ import annotations

import click


@click.command()
@click.option("--chaos", is_flag=True, help="Kill a worker again and again, and not just once.")
@click.pass_context
def demo(ctx: click.Context, *, chaos: bool) -> None:
    """Watch jobs survive workers that are killed.

    Real workers on a store in a temporary file, jobs that fail in every way, and a worker that is
    killed in the middle. It takes about fifteen seconds, prints a ledger that comes from the store
    and from what the jobs wrote down themselves, and exits with 1 if that is not clean.
    """
    from taskharbor.cli.demo.show import run_demo
    from taskharbor.cli.exits import ExitCode

    ctx.exit(ExitCode.OK if run_demo(chaos=chaos) else ExitCode.FAILURE)
