"""Runs a worker until a signal, and logs its start, warnings about its queues, and what its stop waits for."""

from __future__ import annotations

import faulthandler
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from taskharbor._version import __version__
from taskharbor.cli.startup import store_name
from taskharbor.cli.store import did_you_mean
from taskharbor.cli.supervised import SupervisorLink
from taskharbor.cli.systemd import SystemdNotifier
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.text import duration_text, plural
from taskharbor.diagnosis import is_alive
from taskharbor.health.checks import is_passed
from taskharbor.service import run_until_signal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta

    from taskharbor.harbor import Harbor
    from taskharbor.health import ServiceHealth
    from taskharbor.worker import Worker

_LOG: Final = logging.getLogger("taskharbor.worker")
MAX_LISTED: Final = 10
"""How many names a line of the log lists."""


class StateReporter:
    """Reports the state of a worker to its supervisor, or else to systemd."""

    def __init__(self, supervisor_fd: int | None) -> None:
        self._link = None if supervisor_fd is None else SupervisorLink(supervisor_fd)
        self._systemd = SystemdNotifier()

    def started(self, worker: Worker, health: ServiceHealth, text: str) -> None:
        """Report that *worker* has started, and then every second that it is alive."""

        def is_alive() -> bool:
            health.beat()
            return is_passed(health.live())

        if self._link is None:
            _LOG.info("worker %s started: taskharbor %s; %s", worker.id, __version__, text)
            self._systemd.ready(text)
            self._systemd.watch(is_alive)
        else:  # the supervisor logs one line for all workers
            faulthandler.enable()  # it may send SIGABRT
            _LOG.debug("worker %s started: taskharbor %s; %s", worker.id, __version__, text)
            self._link.ready(text)
            self._link.serve(is_alive, lambda: worker.begin_stop(0))

    def stopping(self) -> None:
        self._systemd.stopping()


def run_worker(
    worker: Worker, harbor: Harbor, *, named: Collection[str], reporter: StateReporter, health: ServiceHealth
) -> None:
    """Run *worker* until a signal. *named* are the queues that the command line names; it may be empty."""

    def start() -> None:
        worker.start()
        worker.stalls.dump_stacks()
        reporter.started(worker, health, start_text(worker, store_name(harbor)))
        with suppress(StoreUnavailable):  # it is logged by the loops
            warn_about_queues(worker, harbor, named)

    def stop() -> None:
        reporter.stopping()
        if not worker.is_over:
            _LOG.info("worker %s stopping: %s", worker.id, _stop_notice(worker))
        worker.stop()
        _LOG.info("worker %s stopped", worker.id)

    run_until_signal(start, stop, is_over=lambda: worker.is_over, last_words=lambda: _exit_notice(worker))


def start_text(worker: Worker, store: str) -> str:
    """Return in one line what the worker runs, and how."""
    config = worker.config
    queues = ", ".join(f"{name} ({limit})" for name, limit in config.queues.items())
    delivery = "polling" if config.delivery is None else "SQS"
    return (
        f"store {store}; queues {queues}; concurrency {config.concurrency}; prefetch {config.prefetch}; "
        f"{_listed(worker.types)}; lease {_text(config.lease)}; delivery {delivery}; "
        f"jobs of unknown types: {_unknown_types(config.unhandled_after)}"
    )


def _unknown_types(unhandled_after: timedelta | None) -> str:
    if unhandled_after is None:
        return "left for other workers"
    return f"dead letters {_text(unhandled_after)} after they are due" if unhandled_after else "dead letters at once"


def warn_about_queues(worker: Worker, harbor: Harbor, named: Collection[str]) -> None:
    """Warn of queues that the command line names and no task has, and of queues of tasks that no live worker serves."""
    of_tasks: dict[str, list[str]] = {}
    for type_name, task in harbor.tasks.items():
        of_tasks.setdefault(task.queue, []).append(type_name)
    if not of_tasks:  # the app registers handlers, which have no queue
        return
    for queue in sorted({*named} - {*of_tasks}):
        near = did_you_mean(queue, of_tasks)
        _LOG.warning("queue %s: served, but no task of this app has it%s", queue, f"; {near}" if near else "")
    for queue in sorted({*of_tasks} - {*worker.config.queues} - _served_queues(harbor)):
        text = "queue %s: no live worker serves it; add it to --queues, or start another worker for %s"
        _LOG.warning(text, queue, _listed(of_tasks[queue]))


def _served_queues(harbor: Harbor) -> set[str]:
    """Return the queues that live workers serve."""
    inspector = harbor.driver.inspector
    now = inspector.now()
    return {queue for each in inspector.workers() if is_alive(each, now) for queue in each.queues}


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:MAX_LISTED])
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{plural(len(names), 'task')}: {shown}{more}" if names else "no tasks"


def _stop_notice(worker: Worker) -> str:
    lost = worker.lost_slots
    abandoned = f"; not waiting for {plural(lost, 'handler')} still running long after the timeout" if lost else ""
    running = worker.running_jobs - lost
    if not running:
        return f"no jobs are running{abandoned}"
    wait = _text(worker.config.grace)
    are = "is" if running == 1 else "are"
    return f"{plural(running, 'job')} {are} running; waiting up to {wait}; press Ctrl-C again to exit now{abandoned}"


def _exit_notice(worker: Worker) -> str:
    running, lease = worker.running_jobs, _text(worker.config.lease)
    if not running:
        return "exiting now"
    return f"exiting now; {plural(running, 'running job')} can run elsewhere when the leases expire, within {lease}"


def _text(length: timedelta) -> str:
    return duration_text(length.total_seconds())
