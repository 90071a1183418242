from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.cli.options import InvalidValue, duration_from, json_option, url_option
from taskharbor.cli.render import ProgressLine, echo_data, echo_status, print_table, span

if TYPE_CHECKING:
    from collections import Counter
    from datetime import timedelta

    from taskharbor.audit import Position
    from taskharbor.core.audit import Violation
    from taskharbor.drivers.operator import Auditor

MAX_SHOWN: Final = 100
"""Of the jobs that break one invariant; the others are counted."""


class NotAuditable(click.UsageError):
    """A driver of the user's own has no auditor."""

    def __init__(self, driver: str) -> None:
        super().__init__(f"the driver of this store ({driver}) cannot be audited")


@click.command()
@click.option("--after", "start", metavar="POSITION", help="Continue where an audit has stopped.")
@click.option("--for", "limit", metavar="DURATION", type=duration_from("1s"), help="Stop after this time, such as 10m.")
@url_option
@json_option
def audit(*, url: str, start: str | None, limit: timedelta | None, as_json: bool) -> int:
    """Check the invariants on the stored jobs.

    It only reads, in short statements, and can run beside workers. It exits with 11 if a job breaks
    an invariant, and names the job. Interrupted by --for or Ctrl-C, it prints where to continue.

    With --json: {"checked": ROWS, "violations": [{"invariant", "rule", "job_id", "detail"}], "omitted": N, "next":
    POSITION or null}
    """
    from taskharbor.audit import Position
    from taskharbor.cli.main import ExitCode
    from taskharbor.cli.store import open_driver

    position = Position() if start is None else parse_position(start)
    with open_driver(url) as driver:
        auditor: Auditor | None = getattr(driver, "auditor", None)
        if auditor is None:
            raise NotAuditable(type(driver).__name__)
        run = _Run(position)
        run.check(auditor, limit)
        run.show(now=driver.inspector.now(), as_json=as_json)
    return ExitCode.PROBLEMS_FOUND if run.found else ExitCode.OK


def parse_position(text: str) -> Position:
    from uuid import UUID

    from taskharbor.audit import Position
    from taskharbor.core.audit import AuditPart
    from taskharbor.core.ids import JobId

    part, _, after = text.partition(":")
    try:
        return Position(AuditPart(part), JobId(UUID(after)) if after else None)
    except ValueError:
        parts = ", ".join(AuditPart)
        raise InvalidValue(
            text, f"give a position that an audit has printed, such as jobs:ID; parts: {parts}"
        ) from None


class _Run:
    """One audit: what it has checked and found."""

    def __init__(self, start: Position) -> None:
        from collections import Counter

        self._next: Position | None = start
        self._rows = 0
        self._violations: list[Violation] = []
        self._counts: Counter[int] = Counter()
        self._took = 0.0

    @property
    def found(self) -> int:
        return self._counts.total()

    def check(self, auditor: Auditor, limit: timedelta | None) -> None:
        from taskharbor.audit import Position, audit_store

        start = time.monotonic()
        ends_at = None if limit is None else start + limit.total_seconds()
        try:
            with ProgressLine("checked rows", None) as progress:
                for page, following in audit_store(auditor, self._next or Position()):
                    self._next = following
                    self._rows += page.rows
                    self._add(page.violations)
                    progress.advance(page.rows)
                    if ends_at is not None and time.monotonic() >= ends_at:
                        break
        except KeyboardInterrupt:
            echo_status("interrupted")
        self._took = time.monotonic() - start

    def _add(self, violations: tuple[Violation, ...]) -> None:
        for each in violations:
            self._counts[each.invariant] += 1
            if self._counts[each.invariant] <= MAX_SHOWN:
                self._violations.append(each)

    def show(self, *, now: Any, as_json: bool) -> None:
        from datetime import timedelta

        from taskharbor.core.audit import INVARIANTS

        omitted = self.found - len(self._violations)
        if as_json:
            found = [
                {
                    "invariant": each.invariant,
                    "rule": INVARIANTS[each.invariant],
                    "job_id": str(each.job_id),
                    "detail": each.detail,
                }
                for each in self._violations
            ]
            following = None if self._next is None else str(self._next)
            data = {"checked": self._rows, "violations": found, "omitted": omitted, "next": following}
            echo_data(data, as_json=True, plain="")
            return
        if self._violations:
            rows = [(each.invariant, str(each.job_id), each.detail) for each in self._violations]
            print_table(("invariant", "job", "detail"), rows, now=now, empty="")
            for number, count in sorted(self._counts.items()):
                echo_status(f"invariant {number}, {INVARIANTS[number]}: broken {_times(count, 'time')}")
        took = span(timedelta(seconds=self._took))
        summary = _times(self.found, "violation") if self.found else "no violation"
        echo_status(f"checked {self._rows:,} rows in {took}: {summary}")
        if self._next is not None:
            echo_status(f"not finished; continue with: taskharbor audit --after {self._next}")


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
