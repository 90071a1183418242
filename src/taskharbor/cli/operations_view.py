"""Bulk operations on the command line: preview, confirm, create and follow one; find and show stored ones."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import click

from taskharbor import operations
from taskharbor.cli.errors import PartlyRefused
from taskharbor.cli.options import ConflictingOptions, confirm
from taskharbor.cli.render import ProgressLine, echo_data, echo_status, first_line, print_facts, printable
from taskharbor.cli.store import current_actor, no_matches, wait
from taskharbor.core.errors import OperationNotFound
from taskharbor.core.operations import OperationId, OperationKind, OperationOptions, OperationRefusal, OperationState
from taskharbor.diagnosis import is_alive
from taskharbor.observability.hook_caller import NO_HOOKS
from taskharbor.operations import OperationRequest, OperationRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.cli.render import Cell
    from taskharbor.core.operations import Operation
    from taskharbor.core.results import JobFilter
    from taskharbor.drivers.base import Driver
    from taskharbor.observability.hook_caller import HookCaller
    from taskharbor.operations import Preview

POLL: Final = timedelta(seconds=0.2)
PATIENCE: Final = timedelta(seconds=3)
"""How long the next step may be due before this process performs it, although there are live workers."""
MAX_RECENT: Final = 1_000
"""How many of the newest operations are searched for an id that begins with a text."""
REFUSED: Final = {
    OperationRefusal.NOT_FOUND: "not found",
    OperationRefusal.NOT_ALLOWED: "in a state that does not allow it",
    OperationRefusal.LATER: "created or ended after the operation was created",
    OperationRefusal.UNPUBLISHED: "dead-letter event not published yet",
}


class _Words(NamedTuple):
    verb: str
    done: str


_WORDS: Final = {
    OperationKind.REQUEUE: _Words("requeue", "requeued"),
    OperationKind.CANCEL: _Words("cancel", "canceled"),
    OperationKind.RESCHEDULE: _Words("reschedule", "rescheduled"),
    OperationKind.PURGE: _Words("permanently remove", "removed"),
}


class NoSelection(click.UsageError):
    """Neither ids nor a filter were given."""

    def __init__(self, what: str) -> None:
        super().__init__(f"give ids or a filter; --all selects every {what}")


class BulkSettings(NamedTuple):
    """The options that every bulk command has."""

    yes: bool
    dry_run: bool
    as_json: bool
    starts_in: timedelta
    no_wait: bool


class BulkOperation:
    """One operation on the jobs of a filter, which are called *what* in messages."""

    def __init__(
        self,
        driver: Driver,
        kind: OperationKind,
        wanted: JobFilter,
        *,
        what: str,
        reason: str,
        options: OperationOptions,
        call_hooks: HookCaller = NO_HOOKS,
    ) -> None:
        self._driver = driver
        self._call_hooks = call_hooks
        self._what = what
        self._words = _WORDS[kind]
        self._request = OperationRequest(kind=kind, by=current_actor(), reason=reason, filter=wanted, options=options)

    def run(self, settings: BulkSettings) -> None:
        """Print a preview; unless it is a dry run, ask for confirmation, create the operation, and follow it."""
        found = operations.preview(self._driver, self._request)
        self._show(found)
        if settings.dry_run or not found.matched:
            self._print(None, found, settings)
            return
        count = _count(found.matched, is_capped=found.is_capped)
        confirm(f"{self._words.verb} {count} {self._what}{'' if found.matched == 1 else 's'}", yes=settings.yes)
        operation, _ = operations.create(self._driver, self._request, found, starts_in=settings.starts_in)
        if not settings.no_wait:
            operation = self._follow(operation)
        self._print(operation, found, settings)
        if not settings.no_wait:
            self._check(operation)

    def _show(self, found: Preview) -> None:
        if not found.matched:
            queue = self._request.filter.queue if self._request.filter else None
            echo_status(no_matches(self._driver, self._what, queue))
        for job in found.sample:
            echo_status(f"  {job.id}  {job.queue}  {job.type}  {printable(first_line(job.last_error or ''))}".rstrip())
        if found.matched > len(found.sample):
            echo_status(f"  and {_count(found.matched - len(found.sample), is_capped=found.is_capped)} more")

    def _follow(self, operation: Operation) -> Operation:
        total = None if operation.is_capped else operation.matched
        with ProgressLine(self._words.done, total) as progress:
            try:
                return follow(self._driver, operation, progress, call_hooks=self._call_hooks)
            except KeyboardInterrupt:
                echo_status(
                    f"operation {operation.id} continues in any running worker or janitor; "
                    f"stop it with 'taskharbor operations stop {operation.id}'"
                )
                raise

    def _print(self, operation: Operation | None, found: Preview, settings: BulkSettings) -> None:
        """Print what was done: data on stdout, reasons on stderr."""
        done = 0 if operation is None else operation.done
        refused = {} if operation is None else operation.refused
        total = found.matched if operation is None or settings.no_wait else max(found.matched, _handled(operation))
        kept: object = dict(refused)
        name = "kept"
        if self._request.kind is not OperationKind.PURGE:
            kept = [{"code": reason, "count": count} for reason, count in refused.items()]
            name = "refused"
        data = {
            "matched": total,
            self._words.done: done,
            "dry_run": settings.dry_run,
            name: kept,
            "operation": None if operation is None else str(operation.id),
        }
        plain = f"{self._words.done} {done} of {total}"
        if operation is not None and settings.no_wait:
            plain = str(operation.id)
            echo_status(f"operation {operation.id} created; 'taskharbor operations show {operation.id}' shows it")
        echo_data(data, as_json=settings.as_json, plain=plain)

    def _check(self, operation: Operation) -> None:
        """Raise `PartlyRefused`, after the reasons were printed, unless all jobs were changed."""
        if operation.refused:
            echo_status(why_refused(self._driver, operation.refused))
        if operation.state is OperationState.STOPPED:
            echo_status(f"operation {operation.id} was stopped by {printable(operation.stopped_by or '')}")
        total = max(operation.matched, _handled(operation))
        if operation.refused or operation.state is OperationState.STOPPED:
            raise PartlyRefused(total - operation.done, total)


def follow(
    driver: Driver, operation: Operation, progress: ProgressLine, *, call_hooks: HookCaller = NO_HOOKS
) -> Operation:
    """Wait until the operation has ended, and return it. Perform its steps here if no worker or janitor does.

    Live workers get some time for it: their hooks and metrics report the jobs that a step cancels.
    """
    runner = OperationRunner(driver, time.monotonic, call_hooks=call_hooks)
    now = driver.inspector.now()
    performs = not any(is_alive(worker, now) for worker in driver.inspector.workers())
    last_at, last_step = now, operation.step
    while operation.state.is_open:
        pause = runner.tick() if performs else POLL
        if operation.id in runner.errors:
            raise runner.errors[operation.id]
        if pause:
            wait(min(pause, POLL))
        operation, now = operations.get(driver, operation.id), driver.inspector.now()
        progress.advance(_handled(operation) - progress.done)
        if operation.step != last_step:
            last_at, last_step = now, operation.step
        performs = performs or now - max(last_at, operation.next_at) > PATIENCE
    return operation


def check_selection(*, has_ids: bool, has_filter: bool, settings: BulkSettings, what: str) -> None:
    """Raise a usage error unless either ids or a filter were given, and options of operations only with a filter."""
    if has_ids and has_filter:
        raise ConflictingOptions("ids", "filters")
    if has_ids and settings.no_wait:
        raise ConflictingOptions("ids", "--no-wait")
    if not has_ids and not has_filter:
        raise NoSelection(what)


def why_refused(driver: Driver, refused: Mapping[str, int]) -> str:
    """Return how many jobs were left unchanged, and why."""
    parts = [
        f"{count:,} not changed: {REFUSED.get(OperationRefusal(reason), reason)}" for reason, count in refused.items()
    ]
    if OperationRefusal.UNPUBLISHED not in refused:
        return "; ".join(parts)
    seen_at = driver.inspector.publisher_seen_at()
    seen = "" if seen_at is None else f"a publisher was last seen at {seen_at:%Y-%m-%d %H:%M} UTC; "
    return f"{'; '.join(parts)} ({seen}wait for it, or pass --unpublished to give the events up)"


def find_operation(driver: Driver, text: str) -> Operation:
    """Return the operation whose id is *text*, or the only recent one whose id begins with it."""
    digits = text.strip().lower()
    try:
        return operations.get(driver, OperationId(UUID(digits)))
    except ValueError:
        found = [each.id for each in driver.operations.recent(limit=MAX_RECENT) if str(each.id).startswith(digits)]
    if len(found) != 1:
        raise OperationNotFound(text)
    return operations.get(driver, found[0])


def show_operation(operation: Operation, *, as_json: bool, plain: str = "") -> None:
    """Print all fields of an operation, or *plain* if given."""
    from taskharbor.views import operation_view

    view = operation_view(operation)
    if as_json or plain:
        echo_data(view, as_json=as_json, plain=plain)
        return
    facts: list[tuple[str, Cell]] = [
        ("id", str(operation.id)),
        ("kind", operation.kind.value),
        ("state", operation.state.value),
        ("by", operation.by),
        ("reason", operation.reason or None),
        ("filter", _pairs(view["filter"] or {}) or None),
        ("options", _pairs(view["options"]) or None),
        ("matched", _count(operation.matched, is_capped=operation.is_capped)),
        ("done", operation.done),
        ("refused", _pairs(view["refused"]) or None),
        ("left", view["left"]),
        ("created", operation.created_at),
        ("starts", operation.next_at if view["starts_at"] else None),
        ("started", operation.started_at),
        ("ended", operation.ended_at),
        ("stopped by", operation.stopped_by),
    ]
    print_facts(facts, now=operation.ended_at or operation.next_at)


def operation_row(operation: Operation) -> list[Cell]:
    """Return an operation as a row of a table."""
    refused = sum(operation.refused.values())
    matched = _count(operation.matched, is_capped=operation.is_capped)
    return [
        str(operation.id),
        operation.kind.value,
        operation.state.value,
        operation.done,
        refused,
        matched,
        operation.created_at,
        operation.by,
        operation.reason,
    ]


def _handled(operation: Operation) -> int:
    return operation.done + sum(operation.refused.values())


def _count(count: int, *, is_capped: bool) -> str:
    return f"{count:,}{'+' if is_capped else ''}"


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {', '.join(value) if isinstance(value, list) else value}" for name, value in values.items()
    )
