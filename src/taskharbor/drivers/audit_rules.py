"""The rules of `Auditor` as SQL conditions, which PostgreSQL and SQLite understand alike, and their statement.

A condition counts rows instead of using EXISTS: PostgreSQL might answer EXISTS by reading a whole table.
``item.paused_from`` is the time from which no job of its queue may start: a minute after the pause, because a claim
that began before the pause was committed may have a later time.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.audit import AuditPage, AuditPart, Violation
from taskharbor.core.outcome import MAX_RELEASES
from taskharbor.core.states import TRANSITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from taskharbor.core.ids import JobId

AUDIT_COLUMNS: Final[LiteralString] = """
    id, status, queue, attempt_count, max_attempts, life, scheduled_for, processing_started_at,
    lease_token, lease_expires_at, cancel_requested_at, idempotency_key, releases
"""


@dataclass(frozen=True, slots=True)
class AuditRule:
    """A condition that is true for a row that breaks an invariant."""

    invariant: int
    detail: str
    condition: LiteralString


_KNOWN_MOVES: Final[LiteralString] = ", ".join(
    f"('{event.value}', '{target.value}')" for event, move in TRANSITIONS.items() for target in move.targets
)
# fmt: off
RULES: Final[Mapping[AuditPart, tuple[AuditRule, ...]]] = MappingProxyType({
    AuditPart.JOBS: (
        AuditRule(5, "its attempt_count is above its max_attempts",
                  "item.attempt_count > item.max_attempts"),
        AuditRule(7, "not every one of its requeues is recorded",
                  """item.life > 1
                     AND (SELECT count(DISTINCT past.life)
                            FROM th_attempts AS past
                           WHERE past.job_id = item.id AND past.event = 'requeue') <> item.life - 1"""),
        AuditRule(8, "its life has a final event too many",
                  """(SELECT count(*)
                        FROM th_attempts AS past
                       WHERE past.job_id = item.id
                         AND past.life = item.life
                         AND past.status IN ('DEAD', 'CANCELED'))
                     > CASE WHEN item.status IN ('DEAD', 'CANCELED') THEN 1 ELSE 0 END"""),
        AuditRule(11, "it is DEAD without a dead-letter event",
                  """item.status = 'DEAD'
                     AND (SELECT count(*)
                            FROM th_outbox AS event
                           WHERE event.job_id = item.id AND event.life = item.life) = 0"""),
        AuditRule(12, "it was started before it was due",
                  "item.status IN ('PROCESSING', 'SUCCEEDED') AND item.processing_started_at < item.scheduled_for"),
        AuditRule(12, "it was started after its cancel was requested",
                  "item.status = 'PROCESSING' AND item.cancel_requested_at < item.processing_started_at"),
        AuditRule(12, "it was started while its queue was paused",
                  "item.status = 'PROCESSING' AND item.processing_started_at > item.paused_from"),
        AuditRule(13, "it has a lease but is not PROCESSING, or the other way round",
                  """(item.status = 'PROCESSING') <> (item.lease_token IS NOT NULL)
                     OR (item.lease_token IS NULL) <> (item.lease_expires_at IS NULL)"""),
        AuditRule(13, "its lease token belongs to an earlier attempt",
                  """item.lease_token IS NOT NULL
                     AND (SELECT count(*)
                            FROM th_attempts AS past
                           WHERE past.job_id = item.id AND past.token = item.lease_token) > 0"""),
        AuditRule(15, "its idempotency key is not held by it",
                  """item.idempotency_key IS NOT NULL
                     AND (SELECT count(*)
                            FROM th_keys AS held
                           WHERE held.key = item.idempotency_key
                             AND held.queue = item.queue
                             AND held.job_id = item.id) = 0"""),
        AuditRule(17, "it was released too often without a counted attempt",
                  f"item.attempt_count < item.releases - {MAX_RELEASES}"),
        AuditRule(21, "it waits, but has no attempts left",
                  "item.status IN ('PENDING', 'ENQUEUED', 'FAILED') AND item.attempt_count >= item.max_attempts"),
        AuditRule(23, "its id occurs more than once",
                  "item.copies > 1"),
        AuditRule(24, "it waits, but its cancel was requested",
                  "item.status IN ('PENDING', 'ENQUEUED', 'FAILED') AND item.cancel_requested_at IS NOT NULL"),
    ),
    AuditPart.ATTEMPTS: (
        AuditRule(1, "it has a recorded attempt, but there is no such job",
                  "item.is_whole AND (SELECT count(*) FROM th_jobs AS job WHERE job.id = item.id) = 0"),
        AuditRule(6, "a recorded attempt ended in a way that the transition table does not have",
                  f"(item.event, item.status) NOT IN (VALUES {_KNOWN_MOVES})"),
        AuditRule(7, "an attempt is recorded for a life that it has not reached",
                  "item.life > (SELECT max(job.life) FROM th_jobs AS job WHERE job.id = item.id)"),
        AuditRule(8, "an earlier life has a final event too many",
                  """item.status IN ('DEAD', 'CANCELED')
                     AND item.life < (SELECT max(job.life) FROM th_jobs AS job WHERE job.id = item.id)
                     AND (SELECT count(*)
                            FROM th_attempts AS past
                           WHERE past.job_id = item.id
                             AND past.life = item.life
                             AND past.status IN ('DEAD', 'CANCELED')) > 1"""),
        AuditRule(11, "an earlier life ended in DEAD without a dead-letter event",
                  """item.status = 'DEAD'
                     AND item.life < (SELECT max(job.life) FROM th_jobs AS job WHERE job.id = item.id)
                     AND (SELECT count(*)
                            FROM th_outbox AS event
                           WHERE event.job_id = item.id AND event.life = item.life) = 0"""),
    ),
    AuditPart.EVENTS: (
        AuditRule(1, "it has a dead-letter event, but there is no such job",
                  "item.is_whole AND (SELECT count(*) FROM th_jobs AS job WHERE job.id = item.id) = 0"),
        AuditRule(11, "it has a dead-letter event of a life that did not end in DEAD",
                  """(SELECT count(*)
                        FROM th_jobs AS job
                       WHERE job.id = item.id
                         AND (job.life < item.life OR job.life = item.life AND job.status <> 'DEAD')) > 0"""),
    ),
    AuditPart.KEYS: (
        AuditRule(15, "it holds an idempotency key that is not its own",
                  """item.is_whole
                     AND (SELECT count(*)
                            FROM th_jobs AS job
                           WHERE job.id = item.id
                             AND job.queue = item.queue
                             AND job.idempotency_key = item.key) = 0"""),
    ),
    AuditPart.RUNS: (
        AuditRule(16, "another job was made for the same fire time of its schedule",
                  """(SELECT count(DISTINCT run.job_id)
                        FROM th_schedule_runs AS run
                       WHERE run.schedule = item.schedule AND run.fire_time = item.fire_time) > 1"""),
    ),
})
# fmt: on


def audit_statement(part: AuditPart, page: LiteralString) -> LiteralString:
    """Return the statement that checks the rows of *page*, a query, ordered by id.

    Each of its rows is an id, the position in the page, and the indexes of the broken rules. Rows that
    break none are omitted, except the last one.
    """
    broken: LiteralString = " || ".join(
        f"CASE WHEN {rule.condition} THEN ' {number}' ELSE '' END" for number, rule in enumerate(RULES[part])
    )
    return f"""
        SELECT id, number, broken
          FROM (
               SELECT item.id,
                      row_number() OVER (ORDER BY item.id) AS number,
                      count(*) OVER () AS total,
                      {broken} AS broken
                 FROM ({page}) AS item
               ) AS checked
         WHERE broken <> '' OR number = total
         ORDER BY number
    """  # noqa: S608  its parts are constants


def audit_page(part: AuditPart, rows: Sequence[tuple[JobId, Any, Any]], limit: int) -> AuditPage:
    """Return the result for the *rows* of an `audit_statement` whose page had at least *limit* rows, if there are."""
    if not rows:
        return AuditPage(0, (), None)
    found = [
        Violation(rule.invariant, job_id, rule.detail)
        for job_id, _, broken in rows
        for rule in (RULES[part][int(number)] for number in broken.split())
    ]
    last, count, _ = rows[-1]
    return AuditPage(count, tuple(dict.fromkeys(found)), last if count >= limit else None)
