from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.cli.health import health_options
from taskharbor.cli.options import (
    duration,
    duration_from,
    given_options,
    json_option,
    log_options,
    queues,
    retention_options,
    size,
    startup_options,
    unknown_types,
    url_of_app_option,
)
from taskharbor.cli.queue_option import queue_option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from taskharbor.cli.health import HealthOptions
    from taskharbor.delivery.transport import Transport
    from taskharbor.harbor import Harbor
    from taskharbor.worker import Worker

CONCURRENCY: Final = 16


@click.command()
@click.argument("app", required=False)
@queue_option(
    queues,
    metavar="NAME[:N],…",
    help_text="Queues, and how many jobs of each to run concurrently.  [default: default, and those of the tasks]",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"How many jobs to run concurrently.  [default: sum of the queue limits, else {CONCURRENCY}]",
)
@click.option(
    "--prefetch",
    type=click.IntRange(min=0),
    default=4_000,
    show_default=True,
    help="How many jobs to claim ahead at most while handlers are short; none with queue limits or --sqs.",
)
@click.option(
    "--grace",
    type=duration,
    metavar="TIME",
    default="25s",
    show_default=True,
    help="How long running jobs may continue after a signal.",
)
@click.option(
    "--lease",
    type=duration_from("100ms"),
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long a worker keeps a job without a heartbeat.",
)
@click.option(
    "--poll",
    type=duration_from("10ms"),
    metavar="TIME",
    default="1s",
    show_default=True,
    help="How often to poll when no notification arrives.",
)
@click.option(
    "--unknown-types",
    type=unknown_types,
    metavar="dead-letter:TIME|dead-letter|leave",
    default="dead-letter:5m",
    show_default=True,
    help="Make jobs of types without a handler here dead letters: after they have been due for TIME, or at once;"
    " or leave them for other workers.",
)
@click.option("--sqs", is_flag=True, help="Receive jobs as SQS messages, which an enqueuer sends.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run N worker processes, replace those that end, and restart them one after the other on SIGHUP.",
)
@click.option(
    "--start-timeout",
    type=duration_from("1s"),
    metavar="TIME",
    default="5m",
    show_default=True,
    help="With --processes: how long a new process may take to start, until it is killed, and a restart is given up.",
)
@click.option(
    "--max-jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after about N jobs, with exit code 13. With --processes, a new process takes its place.",
)
@click.option(
    "--max-memory",
    type=size,
    metavar="SIZE",
    help="End when the process uses more memory, such as 512MB, with exit code 13.",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Run each attempt of every task in a child process, which can be killed; else of those with isolate=True.",
)
@click.option(
    "--child-max-jobs",
    type=click.IntRange(min=1),
    metavar="N",
    default=1_000,
    show_default=True,
    help="Replace a child process after N isolated attempts.",
)
@click.option(
    "--child-max-memory",
    type=size,
    metavar="SIZE",
    help="Replace a child process when it uses more memory after an attempt, such as 512MB.",
)
@click.option(
    "--stall-after",
    type=duration_from("10ms"),
    metavar="TIME",
    default="1s",
    show_default=True,
    help="Log the job that blocks the event loop, or holds the GIL, for so long, and its stack.",
)
@click.option("--supervisor-fd", type=int, hidden=True)
@click.option("--is-successor", is_flag=True, hidden=True)
@click.option(
    "--capture-logs",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    help="Keep the log lines of tasks from this level on with their attempts; see 'jobs show --logs'.  "
    "[default: those of tasks with capture_logs]",
)
@retention_options
@health_options
@startup_options
@url_of_app_option
@log_options
@json_option
def worker(
    *,
    app: str | None,
    url: str | None,
    as_json: bool,
    log_level: str | None,
    sqs: bool,
    health: HealthOptions,
    migrate: bool,
    wait: bool,
    processes: int | None,
    start_timeout: timedelta,
    supervisor_fd: int | None,
    is_successor: bool,
    **options: Any,
) -> None:
    """Run jobs until a signal.

    APP is module:attribute or file.py[:attribute]: a Harbor, a mapping from types to handlers, or
    a function that takes a worker and registers handlers on it. Without an attribute, the first of
    app, harbor, register and handlers is used, or the only Harbor of the module. Without APP, the app
    of [tool.taskharbor] in pyproject.toml is used, or tasks.py, app.py, jobs.py or main.py.

    Python runs one thread of a process at a time. For tasks that compute, a higher concurrency does not
    help: run one process for each core (--processes) with a low concurrency, or isolate these tasks (--isolate,
    or isolate=True of a task). Sync tasks run in threads, and must check ctx.is_cancelled to stop at their timeout;
    isolated ones are killed.

    After SIGTERM or Ctrl-C, running jobs may finish within the grace time; the others are released.
    A second signal ends the worker immediately. The log, with one line per attempt, goes to stderr;
    with --json, log and errors are JSON lines: {"at", "level", "logger", "message"}, and the job's
    data in lines about an attempt.
    """
    from contextlib import nullcontext

    from taskharbor.cli.app_loader import find_app, load_app
    from taskharbor.cli.log_output import log_to_stderr
    from taskharbor.cli.process_exit import exit_soon
    from taskharbor.cli.sqs import sqs_transport
    from taskharbor.cli.startup import prepare_store
    from taskharbor.cli.supervisor import supervise
    from taskharbor.cli.worker_service import StateReporter, run_worker
    from taskharbor.harbor import Harbor

    if processes is not None and supervisor_fd is None:
        log_to_stderr(as_json=as_json, level=log_level)
        code = supervise(processes, grace=options["grace"], start_timeout=start_timeout, health=health)
        raise click.exceptions.Exit(code)
    reporter = StateReporter(supervisor_fd)
    app = find_app() if app is None else app
    loaded = load_app(app)
    log_to_stderr(as_json=as_json, level=log_level, capture_level=options["capture_logs"])
    pollers = max(8, 4 * len(options["queues"] or ()))  # the receivers of each queue; tasks may name more queues
    with (
        loaded.harbor or Harbor() as harbor,
        health.serve("worker", harbor, is_successor=is_successor) as probes,
        sqs_transport(pollers=pollers) if sqs else nullcontext() as transport,
    ):
        if url is not None:
            harbor.use_store(url)
        made = _worker(harbor, transport, **options)
        made.use_app(app, harbor.source if isinstance(harbor.source, str) else None)
        loaded(made)
        prepare_store(harbor, "worker", migrate=migrate, wait=wait)
        probes.watch(made.watched, worker=made)
        run_worker(made, harbor, named=options["queues"] or (), reporter=reporter, health=probes.health)
    made.codec_check.raise_refusal()
    exit_soon(made.exit_code, click.get_current_context().obj)
    raise click.exceptions.Exit(made.exit_code)


def _worker(
    harbor: Harbor,
    transport: Transport | None,
    *,
    queues: Mapping[str, int | None] | None,
    concurrency: int | None,
    prefetch: int,
    grace: timedelta,
    lease: timedelta,
    poll: timedelta,
    unknown_types: str,
    max_jobs: int | None,
    max_memory: int | None,
    isolate: bool,
    child_max_jobs: int,
    child_max_memory: int | None,
    stall_after: timedelta,
    capture_logs: str | None,
    **retention: timedelta | None,
) -> Worker:
    named = queues or dict.fromkeys(harbor.queues)
    total = concurrency or _default_concurrency(named)
    limits = {name: limit or total for name, limit in named.items()}
    return harbor.worker(
        queues=limits if any(named.values()) else list(named),
        concurrency=total,
        prefetch=prefetch,
        grace=grace,
        lease=lease,
        poll=poll,
        unknown_types=unknown_types,
        max_jobs=max_jobs,
        max_memory=max_memory,
        isolate=isolate,
        child_max_jobs=child_max_jobs,
        child_max_memory=child_max_memory,
        stall_after=stall_after,
        capture_logs=capture_logs,
        transport=transport,
        **given_options(retention),
    )


def _default_concurrency(queues: Mapping[str, int | None]) -> int:
    """Return the default concurrency: the sum of the limits if every queue has one."""
    limits = [limit for limit in queues.values() if limit is not None]
    return sum(limits) if len(limits) == len(queues) else max([CONCURRENCY, *limits])
