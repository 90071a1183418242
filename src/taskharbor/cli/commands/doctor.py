from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import click

from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.render import echo_data, printable
from taskharbor.cli.sqs import queues_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.doctor import Finding


@click.command()
@click.argument("app", required=False)
@click.option("--sqs", is_flag=True, help="Also check the SQS queues of APP, or of -q.")
@queues_option
@click.option("--container", is_flag=True, help="Check only that the store can be used; print nothing if it can.")
@click.option("--strict", is_flag=True, help="Exit with 11 also for warnings.")
@url_option
@json_option
def doctor(
    *,
    app: str | None,
    url: str,
    sqs: bool,
    queues: tuple[str, ...] | None,
    container: bool,
    strict: bool,
    as_json: bool,
) -> int:
    """Check the store, its jobs and SQS, and say what to do.

    Each check is ok, warn (a risk) or fail (something does not work now). It exits with 11 if a check
    fails. It reads only, and each statement has a time limit.

    With --json: {"findings": [{"check", "level", "text", "remedy"}]}
    """
    from taskharbor.cli.main import ExitCode
    from taskharbor.cli.store import check_exists, check_shared
    from taskharbor.doctor import Level

    check_shared(url)
    check_exists(url)
    found: list[Finding] = []
    for finding in _examine(url, app, queues, sqs=sqs, container=container):
        found.append(finding)
        if not as_json and (not container or finding.level is not Level.OK):
            click.echo(_line(finding))
    if as_json and not (container and all(each.level is Level.OK for each in found)):
        echo_data({"findings": [each.view() for each in found]}, as_json=True, plain="")
    levels = {each.level for each in found}
    is_bad = Level.FAIL in levels or (strict and Level.WARN in levels)
    return ExitCode.PROBLEMS_FOUND if is_bad else ExitCode.OK


def _examine(
    url: str, app: str | None, queues: Sequence[str] | None, *, sqs: bool, container: bool
) -> Iterator[Finding]:
    from taskharbor.cli.sqs import queue_shapes, queues_of, sqs_transport
    from taskharbor.doctor import Level
    from taskharbor.doctor.examination import examine
    from taskharbor.drivers.connect import connect
    from taskharbor.settings import Settings

    is_usable = True
    for finding in examine(url, keep=Settings.from_env().retention(None, None)["keep"], only_store=container):
        is_usable = is_usable and (finding.check != "schema" or finding.level is not Level.FAIL)
        yield finding
    if sqs:
        from taskharbor.doctor.sqs import check_queues

        specs = queue_shapes(queues_of(app, tuple(queues or ()) or None))
        with sqs_transport() as transport, closing(connect(url)) if is_usable else nullcontext() as driver:
            yield from check_queues(transport, specs, inspector=driver.inspector if driver is not None else None)


def _line(finding: Finding) -> str:
    from taskharbor.doctor import Level

    colors = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
    mark = click.style(f"{finding.level.value:<5}", fg=colors[finding.level])
    line = f"{mark}{finding.check}: {printable(finding.text)}"
    return f"{line}\n     → {printable(finding.remedy)}" if finding.remedy else line
