"""What must be true of messages: none goes before its outcome is recorded, and every death is told."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from taskharbor.core.messages import parse
from taskharbor.core.model import Claim
from taskharbor.delivery.transport import DEAD_EVENTS
from taskharbor.testing.simulation.world import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.messages import Message
    from taskharbor.core.model import Job
    from taskharbor.testing.simulation.faults import Store
    from taskharbor.testing.simulation.history import Call
    from taskharbor.testing.simulation.queue_service import QueueService

    Ring = tuple[str, JobId, int]


class Ringing:
    """Follows messages from their receipt to their end."""

    def __init__(self) -> None:
        self._received: dict[str, Message] = {}
        self._seqs: dict[tuple[str, JobId], int] = {}
        self._tokens: dict[Ring, set[Token]] = defaultdict(set)
        self.told: set[str] = set()
        """The ids of events that went out."""

    def take(self, call: Call, jobs: Mapping[JobId, Job], settled: Collection[tuple[JobId, Token]]) -> str | None:
        """Learn of a call, and of *jobs* and *settled* attempts as they were then; return what is wrong with it."""
        match call.verb:
            case "receive":
                self._take_receive(call)
            case "claim":
                for claim in call.answer:
                    if isinstance(claim, Claim):
                        ring = (call.process, claim.job.id, self._seqs[call.process, claim.job.id])
                        self._tokens[ring].add(claim.lease.token)
            case "send" if call.asked["what"] == DEAD_EVENTS:
                self.told |= {json.loads(message.body)["event_id"] for message in call.asked["more"]}
            case "delete":
                return next(self._too_early(call, jobs, settled), None)
        return None

    def _take_receive(self, call: Call) -> None:
        read = {delivery.receipt: message for delivery in call.answer if (message := parse(delivery.body)) is not None}
        self._received |= read
        # Of several messages for a job the first is claimed.
        self._seqs |= {(call.process, message.job_id): message.seq for message in reversed(read.values())}

    def _too_early(
        self, call: Call, jobs: Mapping[JobId, Job], settled: Collection[tuple[JobId, Token]]
    ) -> Iterator[str]:
        for message in [self._received[receipt] for receipt in call.asked["more"] if receipt in self._received]:
            job = jobs.get(message.job_id)
            if job is None or job.lease_expires_at is None or job.sends > message.seq:
                continue
            own = self._tokens[call.process, message.job_id, message.seq]
            is_settled = any((job.id, token) in settled for token in own)  # an attempt by another copy of it may run
            if job.lease_token in own and job.lease_expires_at > call.at and not is_settled:
                yield f"the message of {shown(message.job_id)} was deleted while its attempt is not settled"


def wrong_messages(store: Store, service: QueueService, told: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with what is left in the queues, long after the last job ended."""
    for queue, copies in service.queues.items():
        for message in (parse(copy.body) for copy in copies if queue != DEAD_EVENTS):
            job = None if message is None else store.rows.get(message.job_id)
            if job is not None and job.status.is_final:
                yield f"a message of job {shown(job.id)} is left, which is {job.status}"
    for row in store.outbox:
        if row.event.event_id not in told or row.published_at is None:
            yield f"nobody was told of the death of job {shown(row.event.job_id)} in its life {row.event.life}"
