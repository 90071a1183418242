"""Checks of messages: each is deleted only when that is safe, and every dead-letter event is published."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING
from uuid import UUID

from taskharbor.core.ids import JobId
from taskharbor.core.messages import MAX_UNKNOWN_RECEIVES, parse_message
from taskharbor.core.model import Claim
from taskharbor.core.results import Declined, RefusalReason, Refused
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
from taskharbor.testing.simulation.world import short_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from taskharbor.core.ids import Token
    from taskharbor.core.messages import NamedJob
    from taskharbor.testing.simulation.faults import FaultyStore
    from taskharbor.testing.simulation.history import DriverCall
    from taskharbor.testing.simulation.queue_service import QueueService


@dataclass(slots=True)
class JobRecord:
    """A job named by a message that one process received, and what its claim returned: None until that is known."""

    process: str
    queue: str
    named: NamedJob
    receive_count: int
    is_claiming: bool = False
    found: Token | Refused | None = None


class MessageChecker:
    """Follows each received message and checks that it is deleted only when that is safe."""

    def __init__(self) -> None:
        self._records: dict[str, list[JobRecord]] = {}
        self._last_received: dict[tuple[str, str], list[JobRecord]] = {}
        self._declined: dict[tuple[str, JobId], int] = {}
        self.published: dict[JobId, set[str]] = defaultdict(set)
        """The ids of published events, by dead job."""

    def observe(self, call: DriverCall, settled: Collection[tuple[JobId, Token]]) -> str | None:
        """Record *call* and return what is wrong with it. *settled* are the attempts settled so far."""
        match call.verb:
            case "receive" if call.fate == "ok":
                self._observe_receive(call)
            case "claim":
                self._observe_claim(call)
            case "record_dispatch" if call.fate == "ok":
                for each in call.arguments["what"]:
                    if isinstance(each, Declined):
                        # The message of a newer decline may be deleted later, with the last of its jobs.
                        key = call.process, each.job_id
                        self._declined[key] = max(each.seq, self._declined.get(key, 0))
            case "send" if call.arguments["what"] == DEAD_EVENTS_QUEUE:
                for event in (json.loads(message.body) for message in call.arguments["more"]):
                    self.published[JobId(UUID(event["job_id"]))].add(event["event_id"])
            case "delete":
                return next(self._early_deletes(call, settled), None)
        return None

    def _observe_receive(self, call: DriverCall) -> None:
        received = {
            delivery.receipt_handle: [
                JobRecord(call.process, call.arguments["what"], named, delivery.receive_count)
                for named in parse_message(delivery.body) or ()
            ]
            for delivery in call.answer
        }
        self._records |= received
        self._last_received[call.process, call.arguments["what"]] = list(chain(*received.values()))

    def _observe_claim(self, call: DriverCall) -> None:
        """Record what the claim returned. If its reply was lost, only the claimed tokens can be read back."""
        if call.fate == "late":  # its messages may have been redelivered since
            for claim in (each for each in call.answer if isinstance(each, Claim)):
                self._observe_late_claim(call, claim)
            return
        # A worker claims what it received last, in that order, and not all at once if it has few slots.
        received = self._last_received[call.process, call.arguments["queue"]]
        for job_id, answer in zip(call.arguments["what"], call.answer, strict=True):
            record = next(each for each in received if each.named.job_id == job_id and not each.is_claiming)
            record.is_claiming = True
            if isinstance(answer, Claim):
                record.found = answer.lease.token
            elif call.fate == "ok":
                record.found = answer

    def _observe_late_claim(self, call: DriverCall, claim: Claim) -> None:
        claimed = (call.process, call.arguments["queue"], claim.job.id, None)
        for record in chain(*self._records.values()):
            if (record.process, record.queue, record.named.job_id, record.found) == claimed:
                record.found = claim.lease.token

    def _early_deletes(self, call: DriverCall, settled: Collection[tuple[JobId, Token]]) -> Iterator[str]:
        for record in chain(*(self._records.get(receipt, ()) for receipt in call.arguments["more"])):
            if (wrong := self._wrong(call, record, settled)) is not None:
                yield f"the message of {short_name(record.named.job_id)} was deleted {wrong}"

    def _wrong(self, call: DriverCall, record: JobRecord, settled: Collection[tuple[JobId, Token]]) -> str | None:
        job_id, seq, found = record.named.job_id, record.named.seq, record.found
        is_declined = self._declined.get((call.process, job_id), -1) >= seq
        match found:
            case None:
                is_unclaimed = is_declined and not record.is_claiming
                return None if is_unclaimed else "before the result of its claim was known"
            case Refused(reason=RefusalReason.NOT_FOUND):
                return (
                    None if record.receive_count > MAX_UNKNOWN_RECEIVES else "though its job may not be committed yet"
                )
            case Refused(reason=RefusalReason.OTHER_QUEUE):
                return None
            case Refused(reason=RefusalReason.LEASED | RefusalReason.UNHANDLED) if seq >= found.sends:
                return f"though its job was {found.reason}"
            case Refused():
                return None if is_declined else "before the store was asked to send it again"
        return None if (job_id, found) in settled else "while its attempt is not settled"


def wrong_messages(
    store: FaultyStore, service: QueueService, published: Mapping[JobId, Collection[str]]
) -> Iterator[str]:
    """Yield the violations in the queues and the outbox, long after the last job has finished."""
    for queue, copies in service.queues.items():
        for message in (parse_message(copy.body) for copy in copies if queue != DEAD_EVENTS_QUEUE):
            # A message with a job that was pruned stays until it was received a few times.
            jobs = [store.rows.get(named.job_id) for named in message or ()]
            finished = [job for job in jobs if job is not None and job.status.is_final]
            if jobs and len(finished) == len(jobs):
                job = finished[0]
                yield f"a message of job {short_name(job.id)} is left in its queue, and the job is {job.status}"
    for row in store.outbox:
        if row.event.event_id not in published[row.event.job_id] or row.published_at is None:
            yield f"the event of dead job {short_name(row.event.job_id)} in life {row.event.life} was not published"
