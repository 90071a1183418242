"""The two parts of the contract that are for people: what they look at, and what they steer.

What holds for every method stands in `taskharbor.drivers.base`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, JobSummary, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import DeadLetterGroup, FinishedCount, JobFilter, Page, QueueStats


class Inspector(Protocol):
    """Reads only. Nothing here locks, counts over history, or changes a row."""

    def now(self) -> datetime:
        """Return the store's time."""

    def get(self, job_ids: Sequence[JobId]) -> dict[JobId, Job]:
        """Return the jobs there are, by id."""

    def summaries(self, job_ids: Sequence[JobId]) -> dict[JobId, JobSummary]:
        """Return the jobs there are, by id, without reading their payloads and results."""

    def find(self, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
        """Return a page of jobs, newest id first, from below *after* on, without reading payloads and results.

        Paging is stable: jobs inserted meanwhile neither repeat nor hide others. No more jobs are
        looked at than `taskharbor.core.results.reach` says, however few of them match: so a page
        may have fewer than *limit* jobs, even none, while its ``after`` says where to go on.
        """

    def find_by_key(self, key: str) -> list[JobId]:
        """Return the jobs that hold the idempotency key *key*, one for each queue at most, by queue."""

    def attempts(self, job_ids: Sequence[JobId]) -> list[Attempt]:
        """Return what is recorded of these jobs, job by job as asked, each job's entries by the time they ended."""

    def outbox(self, job_ids: Sequence[JobId]) -> list[OutboxRow]:
        """Return the events of these jobs' deaths, job by job as asked, oldest life first."""

    def kept_by_events(self, *, older_than: timedelta, limit: int) -> list[JobId]:
        """Return up to *limit* SUCCEEDED and CANCELED jobs that `Maintenance.prune` keeps because of an event, by id.

        They ended at least *older_than* ago, and the event of an earlier death is neither published nor given up.
        """

    def publisher_seen_at(self) -> datetime | None:
        """Return when a publisher was last noted by `Maintenance.claim_outbox`; None if none ever was."""

    def queues(self) -> list[QueueStats]:
        """Return every queue that holds jobs or is paused, by name; counts as of the last `roll_up` or newer."""

    def next_due_in(self, queue: str) -> timedelta | None:
        """Return how long it is until the next job of *queue* is due, or None where none waits for its time.

        Jobs that are due already are left out.
        """

    def finished_counts(
        self, *, since: datetime, queue: str | None = None, limit: int | None = None
    ) -> list[FinishedCount]:
        """Return how many jobs ended in each minute that begins at *since* or later, oldest minute first.

        Of one *queue*, if given; of more than *limit* entries the newest, by minute, queue and status.
        A minute, queue and status in which no job ended is left out. As of the last `roll_up`
        or newer.
        """

    def dead_letter_groups(self, *, limit: int, queue: str | None = None) -> list[DeadLetterGroup]:
        """Return what dead letters died of, the largest group first; as of the last `roll_up` or newer.

        What died without an error of its own (its lease was lost, it was spent) has an empty
        fingerprint. ``sample`` is the newest of the group, and ``error`` is its.
        """

    def workers(self) -> list[WorkerRecord]:
        """Return the known workers, by id."""

    def schedules(self) -> Mapping[str, Schedule]:
        """Return all schedules, by name."""

    def settings(self) -> dict[str, str]:
        """Return the settings of the store, by name, as `Driver.remember` and `Control.change_setting` left them."""

    def keys(self, ids: Sequence[str] | None = None) -> dict[str, ApiKey]:
        """Return the API keys there are, or those of *ids*, by id; revoked and expired ones too."""

    def audit(self, *, limit: int, before: Token | None = None) -> list[AuditEntry]:
        """Return what people and keys did, newest first, from below the entry *before* on."""


class Control(Protocol):
    """What people steer."""

    def pause(self, queues: Sequence[str], *, by: str) -> list[bool]:
        """Let no job of these queues start; running ones go on. False where it was paused already."""

    def resume(self, queues: Sequence[str]) -> list[bool]:
        """Let jobs start again. False where the queue was not paused."""

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Store schedules by name.

        One that is there with the same cron and timezone keeps its ``next_at``, or a
        process that starts more often than the schedule fires would never fire it.
        ``fired_at`` and ``paused_at`` of one that is there are always kept.
        """

    def delete_schedules(self, names: Sequence[str]) -> list[bool]:
        """Remove schedules. False where there was none."""

    def pause_schedules(self, names: Sequence[str]) -> list[bool]:
        """Let schedules rest. False where one is unknown or rests already."""

    def resume_schedules(self, names: Sequence[str]) -> list[bool]:
        """Let schedules fire again. False where one is unknown or does not rest."""

    def change_setting(self, name: str, value: str, *, instead_of: str) -> bool:
        """Replace the value *instead_of* of a setting by *value*. False if the setting has another value, or none."""

    def add_keys(self, keys: Sequence[ApiKey]) -> list[bool]:
        """Store new API keys. False where the id is taken."""

    def revoke_keys(self, ids: Sequence[str]) -> list[bool]:
        """Let API keys open nothing any more. False where one is unknown or revoked already."""

    def note_key_use(self, ids: Sequence[str]) -> None:
        """Stamp the ``used_at`` of these API keys with the store's time; unknown ones are passed over.

        A store whose schema has no place for it yet does nothing.
        """

    def record_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Write down what people and keys did; the store stamps ``at``. Entries that are there are left as they are."""
