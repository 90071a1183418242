"""The life of jobs on the memory store: success, retries, a dead letter and its requeue, a worker that vanishes.

The clock is moved by hand, so that minutes of backoff take no time here. The last
lines are the ledger, computed from the store.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor import Client, DeadLetter, JobRequest, MemoryDriver, Status
from taskharbor.core.answers import JobFilter, Settled, Settlement
from taskharbor.core.decide import decide
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import FINAL
from taskharbor.testing.clock import ManualClock

if TYPE_CHECKING:
    from taskharbor import Job
    from taskharbor.core.model import Claim

LEASE: Final = timedelta(seconds=30)
MAILBOXES: Final = {"ada", "slow", "crash", "grace"}


class Killed(Exception):
    """Stands for a worker that was killed: it says nothing more, and its lease ends."""


def send(job: Job) -> bytes:
    """The handler. What happens depends on whom the mail is for."""
    name = job.data["to"]
    if name not in MAILBOXES:
        raise DeadLetter(f"there is no mailbox {name!r}")
    if name == "slow" and job.attempt_count <= 2:
        raise TimeoutError("the mail server did not answer")
    if name == "crash" and job.attempt_count == 1:
        raise Killed
    return b'"sent"'


class Demo:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.start = self.clock.now()
        self.driver = MemoryDriver(clock=self.clock)
        self.client = Client(self.driver, clock=self.clock)

    def say(self, text: str) -> None:
        print(f"[{(self.clock.now() - self.start).seconds:>4} s] {text}")

    def run(self) -> None:
        names = ("ada", "slow", "nobody", "crash", "grace")
        accepted = [enqueued.id for enqueued in self.client.enqueue_many(map(mail_to, names))]
        repeated = self.client.enqueue(mail_to("ada"))
        self.say(f"accepted {len(accepted)} jobs; the repeated request made no second one: {repeated.existed}")
        self.work()
        self.requeue_dead_letters()
        self.work()
        self.ledger(len(accepted))

    def work(self) -> None:
        """Let workers and the janitor run until nothing is left to do."""
        while self.has_work():
            claims = self.driver.reserve(
                "default", token=new_token(), worker="worker-1", lease=LEASE, limit=10, patience=LEASE
            )
            for claim in claims:
                self.attempt(claim)
            self.clock.advance(timedelta(seconds=5))
            for expired in self.driver.upkeep.expire(limit=10):
                self.say(f"a worker went silent: its job waits again as {expired.status}")

    def has_work(self) -> bool:
        counts = [view.counts for view in self.driver.inspector.queues()]
        return any(count[status] for count in counts for status in set(Status) - FINAL)

    def attempt(self, claim: Claim) -> None:
        job = claim.job
        try:
            outcome = Outcome.ack(send(job))
        except Killed:
            self.say(f"mail to {job.data['to']}: attempt {job.attempt_count}: the worker is killed in the middle")
            return
        except Exception as error:  # noqa: BLE001  whatever a handler raises is an outcome
            outcome = decide(job, error, self.clock.now())
        [settled] = self.driver.settle([Settlement(claim.lease, outcome)])
        if not isinstance(settled, Settled):
            raise settled
        self.say(f"mail to {job.data['to']}: attempt {job.attempt_count}: {outcome.event} → {settled.status}")

    def requeue_dead_letters(self) -> None:
        dead = self.driver.inspector.find(JobFilter(statuses=frozenset({Status.DEAD})), limit=10).jobs
        for job in dead:
            self.say(f"dead letter: {job.dead_reason}; somebody makes that mailbox and requeues the job")
            MAILBOXES.add(job.data["to"])
        ids = [job.id for job in dead]
        self.driver.requeue(ids, token=new_token(), budget=3, by="ops", why="mailbox created")

    def ledger(self, accepted: int) -> None:
        jobs = self.driver.inspector.find(JobFilter(), limit=100).jobs
        history = Counter(attempt.outcome for attempt in self.driver.inspector.attempts([job.id for job in jobs]))
        statuses = Counter(job.status for job in jobs)
        succeeded, dead, lost = statuses[Status.SUCCEEDED], statuses[Status.DEAD], accepted - len(jobs)
        print(f"\naccepted {accepted} · succeeded {succeeded} · dead {dead} · lost {lost}")
        print("on the way: " + ", ".join(f"{count} {outcome.lower()}" for outcome, count in sorted(history.items())))


def mail_to(name: str) -> JobRequest:
    return JobRequest(type="mail.send", payload={"to": name}, idempotency_key=f"welcome-{name}")


if __name__ == "__main__":
    Demo().run()
