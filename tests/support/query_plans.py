"""The plans that PostgreSQL ran for each driver call, and checks that they use their indexes."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import psycopg

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.log_lines import AttemptLines, LogLine
from taskharbor.core.model import AuditEntry, Lease, Progress
from taskharbor.core.operations import NewOperation, OperationId, OperationKind, OperationStep
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Declined, JobFilter, Published, Refusal, Sent, Settlement, Unsent
from taskharbor.core.states import Event, Status
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.conformance.subject import BOOM, LEASE, LOCK, OVERDUE_AFTER, RESEND, new_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim

T = TypeVar("T")
Node = dict[str, Any]

MANY: Final = 1_000  # rows; far more than any batch here, far fewer than a full scan reads
BATCH: Final = 50
RUNNING: Final = 3 * MANY
NOW: Final = datetime.now(UTC)

# The condition by which each index must be searched. The last two indexes contain little beyond the wanted rows.
ENTRIES: Final = {
    re.compile(r"th_jobs_(waiting|processing|dead|finished_\w+)_id"): r"\bid = ",
    re.compile(r"th_jobs_waiting_(ready|sent)"): r"\bqueue = ",
    re.compile(r"th_(attempts|attempt_logs|outbox|refusals)_pkey"): r"\bjob_id = ",
    re.compile(r"th_attempts_by_worker"): r"\bworker_id = ",
    re.compile(r"th_audit_target"): r"\btarget = ",
    re.compile(r"th_keys_pkey"): r"\bkey = ",
    re.compile(r"th_keys_job"): r"\bjob_id = ",
    re.compile(r"th_jobs_dead_fingerprint"): r"\bfingerprint = .*\bid < ",
    re.compile(r"th_jobs_dead_group"): r"\bqueue = .*\btype = .*\bfingerprint = ",
    re.compile(r"th_audit_(pkey|at)"): r"",
    re.compile(r"th_jobs_waiting_spent|th_outbox_pending"): r"",
}
_BY_NAME: Final = re.compile(r"\b(job_)?id = ")
GROWING: Final = re.compile(
    r"th_jobs_(waiting|dead|finished)\w*|th_attempt(s|_logs)|th_keys|th_outbox|th_audit|th_refusals"
)
# These verbs scan all running jobs, which are few by design.
FULL_SCANS: Final = frozenset({"take over", "expire", "read back", "roll up"})
# These verbs sort the few rows that a limit left of each index range.
SORTS_FEW: Final = frozenset({"next up"})
# These verbs read an index in its order and stop after a limited number of rows.
ORDERED_SCANS: Final = {
    "find": re.compile(r"th_jobs_(waiting|processing|dead|finished_\w+)_id"),
    "count": re.compile(r"th_jobs_(waiting|processing|dead|finished_\w+)_id"),
    "queues": re.compile(r"th_jobs_waiting_ready"),
    "roll": re.compile(r"th_jobs_waiting_ready"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One statement that a verb ran, and its plan."""

    verb: str
    query: str
    plan: Node
    milliseconds: float

    @property
    def buffers(self) -> int:
        """The number of pages read, cached or not."""
        return int(self.plan["Shared Hit Blocks"] + self.plan["Shared Read Blocks"])

    def faults(self) -> list[str]:
        found = [fault for node in nodes(self.plan) for fault in self._faults_of(node)]
        return [f"{self.verb}: {fault}, in: {' '.join(self.query.split())[:120]}" for fault in found]

    def _faults_of(self, node: Node) -> Iterator[str]:
        if node["Node Type"] in {"Sort", "Incremental Sort"} and self.verb not in SORTS_FEW:
            for scan in filter(self._must_use_index, nodes(node)):
                if not _BY_NAME.search(scan.get("Index Cond", "")):
                    yield f"sorts {scan['Relation Name']}"
        if not self._must_use_index(node):
            return
        if not _uses_index(node) and not self._is_ordered_scan(node):
            yield f"scans {node['Relation Name']} ({node['Node Type']} {node.get('Index Name', '')})"
        elif (read := _rows_read(node)) > MANY:
            yield f"reads {read:,.0f} rows of {node['Relation Name']} by {node['Index Name']}"

    def _is_ordered_scan(self, node: Node) -> bool:
        index = ORDERED_SCANS.get(self.verb.partition(" ")[0])
        return index is not None and index.fullmatch(node.get("Index Name", "")) is not None

    def _must_use_index(self, node: Node) -> bool:
        name = node.get("Relation Name", "")
        is_running = name == "th_jobs_processing" and self.verb not in FULL_SCANS
        return "Scan" in node["Node Type"] and (is_running or GROWING.fullmatch(name) is not None)


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for each in node.get("Plans", ()):
        yield from nodes(each)


def _uses_index(node: Node) -> bool:
    entries = [entry for index, entry in ENTRIES.items() if index.fullmatch(node.get("Index Name", ""))]
    return any(re.search(entry, node.get("Index Cond", "")) for entry in entries)


def _rows_read(node: Node) -> float:
    """Return how many rows a scan read before its limit ended it."""
    return float((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])


@dataclass(frozen=True, slots=True)
class Watched:
    """A driver that records the plans of its statements, which are prepared as usual."""

    driver: PostgresDriver
    ran: list[Ran] = field(default_factory=list)
    _notices: list[str] = field(default_factory=list)

    def run(self, verb: str, call: Callable[[], T]) -> T:
        self._notices.clear()
        answer = call()
        plans = [(float(each.split()[1]), json.loads(each[each.index("{") :])) for each in self._notices]
        ran = [Ran(verb=verb, query=each["Query Text"], plan=each["Plan"], milliseconds=ms) for ms, each in plans]
        self.ran.extend(each for each in ran if "pg_notify" not in each.query)  # notifications are sent at any time
        return answer

    def add_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._notices.append(diagnostic.message_primary or "")

    def faults(self) -> list[str]:
        return [fault for each in self.ran for fault in each.faults()]


@contextmanager
def watched(url: str, **options: Any) -> Iterator[Watched]:
    settings = " ".join(f"-c {name}={value}" for name, value in _EXPLAINED.items())
    # One connection, so that every plan is recorded.
    driver = PostgresDriver(f"{url}?options={quote(settings)}", size=1, **options)
    watching = Watched(driver)
    try:
        for connections in (driver._connections, driver._heartbeat_pool):  # noqa: SLF001  the notices are the connection's
            with connections.connection() as db:
                db.add_notice_handler(watching.add_notice)
        yield watching
    finally:
        driver.close()


_EXPLAINED: Final = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
}


def all_day(watching: Watched) -> None:
    """Run every frequent statement, for jobs that exist and for jobs that do not."""
    _enqueue(watching)
    claims = _take(watching)
    _settle(watching, claims)
    _deliver(watching)
    _keep(watching, claims)
    _operate(watching)
    _show(watching)
    _audit(watching)


def _enqueue(watching: Watched) -> None:
    driver, run = watching.driver, watching.run
    jobs = [new_job(queue="mail") for _ in range(BATCH)]
    run("insert", lambda: driver.insert(jobs))
    run("insert under a key", lambda: driver.insert([new_job(idempotency_key=str(new_token()))]))
    run("insert under a key that is taken", lambda: driver.insert([new_job(idempotency_key="1")]))
    run("insert again", lambda: driver.insert([jobs[0], new_job()], repeat=True))


def _take(watching: Watched) -> list[Claim]:
    driver, run = watching.driver, watching.run
    driver.insert([new_job() for _ in range(3 * BATCH)])

    def reserve(queue: str = "default", limit: int = BATCH) -> list[Claim]:
        return driver.reserve(
            queue, token=new_token(), worker="worker", lease=LEASE, limit=limit, overdue_after=OVERDUE_AFTER, types=None
        )

    claims = run("reserve from the head", reserve)
    run("reserve from a place", reserve)
    run("take over", lambda: reserve("idle"))
    run("extend", lambda: driver.extend([*(claim.lease for claim in claims), unknown_lease()], lease=LEASE))
    run("cancels", lambda: driver.cancel_requested([*(claim.lease for claim in claims), unknown_lease()]))
    notes = [(lease, Progress(1)) for lease in [*(claim.lease for claim in claims), unknown_lease()]]
    run("note progress", lambda: driver.save_progress(notes))
    return claims


def _settle(watching: Watched, claims: list[Claim]) -> None:
    run = watching.run
    leases = [*(claim.lease for claim in claims), unknown_lease()]

    def settle(*settlements: Settlement) -> None:
        watching.driver.settle(settlements)

    run("ack", lambda: settle(*(Settlement(lease, Outcome.ack(b"1")) for lease in leases[:10])))
    run("ack twice", lambda: settle(Settlement(leases[0], Outcome.ack(b"1")), Settlement(leases[-1], Outcome.ack())))
    retry = Outcome.retry(after=timedelta(0), failure=BOOM)
    run("retry", lambda: settle(*(Settlement(lease, retry) for lease in leases[10:20])))
    run("retry twice", lambda: settle(Settlement(leases[10], retry), Settlement(leases[-1], retry)))
    run("fail", lambda: settle(*(Settlement(lease, Outcome.fail("hopeless")) for lease in leases[20:30])))
    run("release", lambda: settle(*(Settlement(lease, Outcome.release()) for lease in leases[30:40])))
    lines = (LogLine(NOW, "INFO", "shop", "paid"),)
    logs = [
        AttemptLines(job_id=each.job_id, token=each.token, attempt=1, worker_id="w", dropped=0, lines=lines)
        for each in leases[:20]
    ]
    run("save lines", lambda: watching.driver.attempt_logs.save(logs, keep=1))


def _deliver(watching: Watched) -> None:
    driver, run = watching.driver, watching.run

    def claim(*job_ids: JobId) -> None:
        driver.claim(job_ids, queue="mail", token=new_token(), worker="worker", lease=LEASE)

    dispatches = run("dispatch", lambda: driver.dispatch("mail", limit=BATCH, lock=LOCK, unclaimed=10 * MANY))
    run("due in", lambda: driver.inspector.next_due_in("mail"))
    run("sent", lambda: driver.record_dispatch([Sent(each, RESEND) for each in dispatches[:30]]))
    run("unsent", lambda: driver.record_dispatch([Unsent(each) for each in dispatches[30:40]]))
    run("declined", lambda: driver.record_dispatch([Declined(each.job_id, each.seq) for each in dispatches[40:]]))
    ids = [each.job_id for each in dispatches[:10]]
    run("claim", lambda: claim(*ids, new_job_id()))
    run("claim what is leased", lambda: claim(*ids))


def _keep(watching: Watched, claims: list[Claim]) -> None:
    upkeep, run = watching.driver.maintenance, watching.run
    run("expire", lambda: upkeep.expire(limit=BATCH))
    run("bury", lambda: upkeep.bury(limit=BATCH))
    rows = run("outbox take", lambda: upkeep.claim_outbox(limit=BATCH, lock=LOCK))
    run("outbox done", lambda: upkeep.settle_outbox([Published(row.event.event_id) for row in rows]))
    close = partial(upkeep.close_outbox, "no publisher", unseen_for=-LOCK, older_than=LOCK, limit=BATCH)
    run("outbox close", close)
    run("outbox close of some", lambda: close(job_ids=[row.event.job_id for row in rows] or [new_job_id()]))
    run("publisher seen at", watching.driver.inspector.publisher_seen_at)
    tokens = [claim.lease.token for claim in claims] or [new_token()]
    run("read back", lambda: watching.driver.read_back(tokens))


def _operate(watching: Watched) -> None:
    driver, run = watching.driver, watching.run
    ids = [new_job_id() for _ in range(BATCH)]
    driver.insert([new_job(id=each, delay=LEASE) for each in ids[:-1]])
    run("get", lambda: driver.inspector.get(ids))
    run("summaries", lambda: driver.inspector.summaries(ids))
    run("attempts", lambda: driver.inspector.attempts(ids))
    run("refusals", lambda: driver.inspector.refusals(ids))
    refused = [Refusal(job_id=each, token=new_token(), event=Event.ACK) for each in ids]
    run("record refusals", lambda: driver.maintenance.record_refusals(refused))
    run("reschedule", lambda: driver.reschedule(ids, delay=LEASE))
    run("cancel", lambda: driver.cancel(ids))
    token = new_token()
    for verb in ("requeue", "requeue twice"):
        run(verb, lambda: driver.requeue(ids, token=token, by="ops", reason="fixed"))
    for kind in OperationKind:
        _perform(watching, kind, ids)
    run("unfinished operations", lambda: driver.operations.unfinished(limit=BATCH))
    newest = run("operations", lambda: driver.operations.recent(limit=BATCH))
    run("operations below", lambda: driver.operations.recent(limit=BATCH, before=newest[0].id))


def _perform(watching: Watched, kind: OperationKind, job_ids: list[JobId]) -> None:
    """Perform a step of an operation on jobs that exist, of which it can change some, and on one that does not."""
    operations, run = watching.driver.operations, watching.run
    new = NewOperation(id=OperationId(new_token()), kind=kind, by="ops", job_ids=tuple(job_ids))
    run("add operation", lambda: operations.add([new], starts_in=timedelta(0)))
    operation = run("get operation", lambda: operations.get([new.id]))[new.id]
    run("perform step", lambda: operations.perform(OperationStep(operation=operation, job_ids=operation.job_ids)))
    run("stop operation", lambda: operations.stop([new.id], by="ops"))


def _show(watching: Watched) -> None:
    """Run the queries of the admin page."""
    inspector, run = watching.driver.inspector, watching.run
    run("roll up", lambda: watching.driver.maintenance.roll_up(keep=timedelta(days=1)))
    unknown_type = JobFilter(type="unknown")
    page = run("find", lambda: inspector.find(unknown_type, limit=BATCH))
    run("find below", lambda: inspector.find(unknown_type, limit=BATCH, after=page.after or new_job_id()))
    for statuses in ({Status.DEAD}, {Status.FAILED, Status.PROCESSING}, {Status.CANCELED}):
        asked = JobFilter(statuses=frozenset(statuses), tag=("tenant", "7"))
        run("find by state and tag", partial(inspector.find, asked, limit=BATCH))
    run("find since", lambda: inspector.find(JobFilter(type="unknown", since=NOW), limit=BATCH))
    run("find by worker and schedule", lambda: inspector.find(JobFilter(worker="w", schedule="nightly"), limit=BATCH))
    run("count", lambda: inspector.count(unknown_type))
    run("count by fingerprint", lambda: inspector.count(JobFilter(fingerprint="f00d")))
    run("next up", lambda: inspector.next_up("default", limit=BATCH))
    run("lost with a worker", lambda: inspector.lost_attempts("w", limit=BATCH))
    run("find by fingerprint", lambda: inspector.find(JobFilter(queue="x", fingerprint="f00d"), limit=BATCH))
    run("by key", lambda: inspector.find_by_key("1"))
    run("dead groups", lambda: inspector.dead_letter_groups(limit=BATCH))
    run("queues", inspector.queues)
    run("finished", lambda: inspector.finished_counts(since=NOW - timedelta(hours=1)))
    run("workers", inspector.workers)
    run("past workers", inspector.past_workers)


def _audit(watching: Watched) -> None:
    driver, run = watching.driver, watching.run
    entries = [AuditEntry(id=new_token(), actor="ann", action="cancel", target=str(n)) for n in range(BATCH)]
    run("record", lambda: driver.control.record_audit(entries))
    read = run("audit", lambda: driver.inspector.audit(limit=BATCH))
    run("audit below", lambda: driver.inspector.audit(limit=BATCH, before=read[-1].id))
    run("audit of a job", lambda: driver.inspector.audit(limit=BATCH, target="1"))
    run("audit of a job below", lambda: driver.inspector.audit(limit=BATCH, target="1", before=read[-1].id))
    run("forget audit", lambda: driver.maintenance.prune_audit(older_than=timedelta(0), limit=BATCH))
    run("keys", lambda: driver.inspector.keys(["k1"]))


def unknown_lease() -> Lease:
    return Lease(new_job_id(), new_token(), NOW)


def leave_statistics_alone(url: str) -> None:
    """Disable autovacuum, so that only the test updates statistics. Plans differ for tables without statistics."""
    with psycopg.connect(url, autocommit=True) as db:
        leaves = db.execute("SELECT relname FROM pg_class WHERE relname ~ '^th_' AND relkind = 'r'").fetchall()
        db.execute("; ".join(f"ALTER TABLE {name} SET (autovacuum_enabled = off)" for (name,) in leaves).encode())


def vacuum(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("VACUUM ANALYZE")


def fill(url: str, size: int) -> None:
    """Insert *size* jobs into each growing partition, and a few thousand running and enqueued ones."""
    with psycopg.connect(url) as db:
        for status, jobs, queue, extra in _FILLED:
            asked = {"status": status, "count": jobs or size, "queue": queue}
            db.execute(_JOBS.format(columns=_listed(extra), values=_listed(extra.values())).encode(), asked)
        db.execute(_HISTORY, {"count": size})
        db.execute(_DONE, {"count": size})
        db.execute(_LOGGED, {"count": size})


_JOBS: Final = """
    INSERT INTO th_jobs (id, type, queue, priority, status, scheduled_for, created_at, attempt_count, max_attempts,
                         payload{columns})
    SELECT gen_random_uuid(), 'greet', %(queue)s, 0, %(status)s, now() - interval '1 hour' + n * interval '1 ms',
           now(), 1, 3, '{{}}'{values}
      FROM generate_series(1, %(count)s) AS n
"""
_LEASED: Final = {"lease_token": "gen_random_uuid()", "lease_expires_at": "now() + interval '1 hour'"}
_DEAD: Final = {"completed_at": "now()", "dead_at": "now()", "dead_reason": "'exhausted'", "fingerprint": "'f00d'"}
_FILLED: Final[tuple[tuple[str, int | None, str, dict[str, str]], ...]] = (
    ("PENDING", None, "default", {}),
    ("ENQUEUED", MANY // 2, "mail", {"dispatch_at": "now() + interval '1 hour'", "sends": "1", "sent_at": "now()"}),
    ("ENQUEUED", RUNNING, "post", {"dispatch_at": "now() + interval '1 hour'", "sends": "1", "sent_at": "now()"}),
    ("PROCESSING", RUNNING, "default", _LEASED),
    ("SUCCEEDED", None, "default", {"completed_at": "now()"}),
    ("DEAD", None, "default", _DEAD),
)
_HISTORY: Final = """
    WITH attempted AS (
        INSERT INTO th_attempts (job_id, token, life, attempt, worker_id, ended_at, event, status, outcome)
        SELECT gen_random_uuid(), gen_random_uuid(), 1, 1, 'w', now(), 'retry', 'FAILED',
               CASE n %% 2 WHEN 0 THEN 'LOST' ELSE 'FAILED' END
          FROM generate_series(1, %(count)s) AS n
    )
    INSERT INTO th_keys (queue, key, job_id, digest)
    SELECT 'default', n::text, gen_random_uuid(), ''
      FROM generate_series(1, %(count)s) AS n
        ON CONFLICT DO NOTHING
"""
_LOGGED: Final = """
    INSERT INTO th_attempt_logs (job_id, token, attempt, dropped, lines, saved_at)
    SELECT gen_random_uuid(), gen_random_uuid(), 1, 0, '[]', now()
      FROM generate_series(1, %(count)s)
"""
_DONE: Final = """
    INSERT INTO th_audit (id, at, actor, action, target, detail)
    SELECT gen_random_uuid(), now() - interval '1 hour' + n * interval '1 ms', 'ann', 'cancel', n::text, '{}'
      FROM generate_series(1, %(count)s) AS n
"""


def _listed(words: Iterable[str]) -> str:
    return "".join(f", {each}" for each in words)
