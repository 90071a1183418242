"""Batches of new jobs that have everything but their id and payload in common, as calls of one task have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Final, overload

from taskharbor.core.model import NewJob, mutable_twin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taskharbor.core.ids import JobId


class JobBatch(Sequence[NewJob]):
    """Jobs like *model*, which has no idempotency key, with these *ids* and *payloads*.

    A driver may store the columns. For all others it is a sequence of jobs, which are made when the first one is read:
    that takes as long as encoding their payloads. They must not be changed, as the columns would not be.
    """

    def __init__(self, model: NewJob, ids: list[JobId], payloads: list[bytes]) -> None:
        self.model: Final = model
        self.ids: Final = ids
        self.payloads: Final = payloads

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> NewJob: ...
    @overload
    def __getitem__(self, place: slice) -> list[NewJob]: ...
    def __getitem__(self, place: int | slice) -> NewJob | list[NewJob]:
        return self._jobs[place]

    def __iter__(self) -> Iterator[NewJob]:
        return iter(self._jobs)

    @cached_property
    def _jobs(self) -> list[NewJob]:
        return jobs_like(repeat(self.model, len(self)), self.ids, self.payloads)


def distinct(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return jobs that have all queues, times and keys of *jobs*: one job stands for a batch."""
    return [jobs.model] if isinstance(jobs, JobBatch) else jobs


def jobs_like(models: Iterable[NewJob], ids: Iterable[JobId], payloads: Iterable[bytes]) -> list[NewJob]:
    """Return a job like each of *models*, with another id and payload, in half the time of `new_job`."""
    jobs: list[NewJob] = []
    # fmt: off
    for model, job_id, payload in zip(models, ids, payloads, strict=True):
        job = _new(_MutableNewJob)
        job.id, job.payload, job.type, job.queue = job_id, payload, model.type, model.queue
        job.created_at, job.max_attempts = model.created_at, model.max_attempts
        job.scheduled_for, job.delay, job.timeout = model.scheduled_for, model.delay, model.timeout
        job.priority, job.idempotency_key, job.digest = model.priority, model.idempotency_key, model.digest
        job.metadata = model.metadata
        job.__class__ = NewJob
        jobs.append(job)
    # fmt: on
    return jobs


_new: Final = object.__new__
_MutableNewJob: Final = mutable_twin(NewJob)
