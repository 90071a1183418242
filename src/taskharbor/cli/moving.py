"""What became of jobs that a person wanted moved, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.output import echo_data, echo_status
from taskharbor.cli.refusals import PartlyRefused
from taskharbor.cli.shown import views_of
from taskharbor.core.answers import Transitioned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.errors import IllegalTransition, JobNotFound
    from taskharbor.drivers.base import Driver


def report_transitions(
    driver: Driver,
    answers: Sequence[Transitioned | IllegalTransition | JobNotFound],
    *,
    as_json: bool,
    note: Callable[[str], None],
) -> None:
    """Print every job that was moved, say why others were not, and raise what ends the command.

    *note* is called for each that was moved, to write it down.
    """
    moved = [answer for answer in answers if isinstance(answer, Transitioned)]
    refused = [answer for answer in answers if not isinstance(answer, Transitioned)]
    for answer in moved:
        note(str(answer.job_id))
    if as_json:
        jobs = driver.inspector.summaries([answer.job_id for answer in moved])
        echo_data({"jobs": views_of(driver, list(jobs.values()))}, as_json=True, plain="")
    else:
        for answer in moved:
            click.echo(f"{answer.job_id}\t{answer.status}")
    if len(answers) == 1 and refused:
        raise refused[0]
    for error in refused:
        echo_status(str(error))
    if refused:
        raise PartlyRefused(len(refused), len(answers))
