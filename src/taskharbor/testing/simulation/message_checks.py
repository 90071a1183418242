"""What must be true of messages: none goes but by the table of what may become of one, and every death is told."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from taskharbor.core.ids import JobId
from taskharbor.core.messages import MAX_UNKNOWN_RECEIVES, parse_message
from taskharbor.core.model import Claim
from taskharbor.core.results import Declined, RefusalReason, Refused
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
from taskharbor.testing.simulation.world import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from taskharbor.core.ids import Token
    from taskharbor.core.messages import Message
    from taskharbor.testing.simulation.faults import FaultyStore
    from taskharbor.testing.simulation.history import DriverCall
    from taskharbor.testing.simulation.queue_service import QueueService


@dataclass(slots=True)
class MessageRecord:
    """A message as one process received it, and what that found behind it: nothing, as long as it has not heard."""

    process: str
    queue: str
    message: Message
    receive_count: int
    found: Token | Refused | None = None


class MessageChecker:
    """Follows each message that a process received to its end, by the table of what may become of it."""

    def __init__(self) -> None:
        self._rings: dict[str, MessageRecord] = {}
        self._asking: dict[tuple[str, str], list[MessageRecord]] = {}
        self._declined: dict[tuple[str, JobId], int] = {}
        self.told: dict[JobId, set[str]] = defaultdict(set)
        """The ids of events that went out, by the job that died."""

    def take(self, call: DriverCall, settled: Collection[tuple[JobId, Token]]) -> str | None:
        """Learn of a call, and of the attempts that were *settled* by then; return what is wrong with it."""
        match call.verb:
            case "receive" if call.fate == "ok":
                self._take_receive(call)
            case "claim":
                self._take_claim(call)
            case "record_dispatch" if call.fate == "ok":
                for each in call.asked["what"]:
                    if isinstance(each, Declined):
                        self._declined[call.process, each.job_id] = each.seq
            case "send" if call.asked["what"] == DEAD_EVENTS_QUEUE:
                for event in (json.loads(message.body) for message in call.asked["more"]):
                    self.told[JobId(UUID(event["job_id"]))].add(event["event_id"])
            case "delete":
                return next(self._too_early(call, settled), None)
        return None

    def _take_receive(self, call: DriverCall) -> None:
        rings = {
            delivery.receipt_handle: MessageRecord(call.process, call.asked["what"], message, delivery.receive_count)
            for delivery in call.answer
            if (message := parse_message(delivery.body)) is not None
        }
        self._rings |= rings
        self._asking[call.process, call.asked["what"]] = list(rings.values())

    def _take_claim(self, call: DriverCall) -> None:
        """Learn what was found. Of a claim whose reply was lost the token is all that can be read back."""
        if call.fate == "late":  # its messages may have come again since
            for claim in (each for each in call.answer if isinstance(each, Claim)):
                self._take_late(call, claim)
            return
        asked = self._asking[call.process, call.asked["queue"]]
        for ring, answer in zip(asked, call.answer, strict=True):
            if isinstance(answer, Claim):
                ring.found = answer.lease.token
            elif call.fate == "ok":
                ring.found = answer

    def _take_late(self, call: DriverCall, claim: Claim) -> None:
        claimed = (call.process, call.asked["queue"], claim.job.id, None)
        for ring in self._rings.values():
            if (ring.process, ring.queue, ring.message.job_id, ring.found) == claimed:
                ring.found = claim.lease.token

    def _too_early(self, call: DriverCall, settled: Collection[tuple[JobId, Token]]) -> Iterator[str]:
        for ring in (self._rings[receipt] for receipt in call.asked["more"] if receipt in self._rings):
            if (wrong := self._wrong(call, ring, settled)) is not None:
                yield f"the message of {shown(ring.message.job_id)} was deleted {wrong}"

    def _wrong(self, call: DriverCall, ring: MessageRecord, settled: Collection[tuple[JobId, Token]]) -> str | None:
        job_id, seq, found = ring.message.job_id, ring.message.seq, ring.found
        match found:
            case None:
                return "though nobody knows what became of it"
            case Refused(reason=RefusalReason.NOT_FOUND):
                return None if ring.receive_count > MAX_UNKNOWN_RECEIVES else "though its job may be on its way"
            case Refused(reason=RefusalReason.OTHER_QUEUE):
                return None
            case Refused(reason=RefusalReason.LEASED | RefusalReason.UNHANDLED) if seq >= found.sends:
                return f"though its job was {found.reason}"
            case Refused():
                is_told = self._declined.get((call.process, job_id), -1) >= seq
                return None if is_told else "though the store was not told to ring again"
        return None if (job_id, found) in settled else "while its attempt is not settled"


def wrong_messages(store: FaultyStore, service: QueueService, told: Mapping[JobId, Collection[str]]) -> Iterator[str]:
    """Yield what is wrong with what is left in the queues, long after the last job ended."""
    for queue, copies in service.queues.items():
        for message in (parse_message(copy.body) for copy in copies if queue != DEAD_EVENTS_QUEUE):
            job = None if message is None else store.rows.get(message.job_id)
            if job is not None and job.status.is_final:
                yield f"a message of job {shown(job.id)} is left, which is {job.status}"
    for row in store.outbox:
        if row.event.event_id not in told[row.event.job_id] or row.published_at is None:
            yield f"nobody was told of the death of job {shown(row.event.job_id)} in its life {row.event.life}"
