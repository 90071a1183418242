"""Text of jobs, workers and people that looks like markup, on every page that shows it."""

from __future__ import annotations

import re
from collections import Counter, deque
from datetime import timedelta
from html import unescape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from taskharbor import operations
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.log_lines import AttemptLines, LogLine
from taskharbor.core.messages import DeliveryNote, DeliveryRole
from taskharbor.core.model import AuditEntry, Progress
from taskharbor.core.operations import OperationKind
from taskharbor.core.outcome import Outcome
from taskharbor.core.request import JobRequest
from taskharbor.core.results import JobFilter
from taskharbor.operations import OperationRequest
from tests.support.dashboard_rig import seed

if TYPE_CHECKING:
    import httpx

    from taskharbor.core.ids import JobId
    from tests.support.dashboard_rig import UiSite

TEXT: Final = "\"'><i data-canary>&"
"""It ends an attribute in either kind of quotes, and begins an element."""
MAX_ALIKE: Final = 8
_LINK: Final = re.compile(r'href="(/ui/(?!static)[^"#]*)')
_VARYING: Final = re.compile(r"[0-9a-f-]{12,}|\?.*")


def test_no_text_of_the_store_is_markup_on_any_page(site: UiSite) -> None:
    seed(site)
    job = f"/ui/jobs/{_fill_jobs(site)}"
    _fill_administration(site)
    with site.http() as client:
        pages = _crawl(client, f"{job}/payload", f"/ui/find?q={quote(TEXT)}", f"/ui/jobs?tag={quote(TEXT)}", "/ui/")

    assert [path for path, page in pages.items() if "<i data-canary" in page] == []
    shown = {path.split("/")[2].partition("?")[0] for path, page in pages.items() if "data-canary" in page}
    assert shown >= {"audit", "dead", "find", "jobs", "keys", "operations", "queues", "workers"}
    assert [pages[job].count("data-canary") > 10, "data-canary" in pages[f"{job}/payload"]] == [True, True]


def _crawl(client: httpx.Client, *starts: str) -> dict[str, str]:
    """Return the pages that links lead to, by their addresses: of those that differ in ids and filters only, some."""
    waiting, pages, alike = deque(starts), dict[str, str](), Counter[str]()
    while waiting:
        path = waiting.popleft()
        kind = _VARYING.sub("", path)
        if path in pages or alike[kind] == MAX_ALIKE:
            continue
        alike[kind] += 1
        pages[path] = client.get(path, follow_redirects=True).text
        waiting += [unescape(link) for link in _LINK.findall(pages[path])]
    return pages


def _fill_jobs(site: UiSite) -> JobId:
    """Store jobs with the text in every field, and return the dead one."""
    fields: dict[str, Any] = {"payload": {TEXT: TEXT}, "metadata": {TEXT: TEXT}}
    dead = JobRequest(type="pay", queue="odd", max_attempts=1, idempotency_key=TEXT, **fields)
    dead_id = site.harbor.client.enqueue(dead).id
    claims = site.claim("odd", worker=TEXT)
    failure = Failure(type=TEXT, message=TEXT, traceback=TEXT, fingerprint="c0ffee")
    site.settle(claims, Outcome.fail(TEXT, failure=failure))
    now = site.driver.inspector.now()
    lines = (LogLine(now, TEXT, TEXT, TEXT),)
    log = AttemptLines(job_id=dead_id, token=claims[0].lease.token, attempt=1, worker_id=TEXT, dropped=0, lines=lines)
    assert site.driver.attempt_logs.save([log], keep=1) == [True]
    site.harbor.client.enqueue_many([JobRequest(type="pay", queue="odd", **fields) for _ in range(3)])
    [running, failed] = site.claim("odd", 2, worker=TEXT)
    site.driver.save_progress([(running.lease, Progress(1, 2, TEXT))])
    site.settle([failed], Outcome.cancel(TEXT))
    site.driver.requeue([failed.job.id], token=new_token(), by=TEXT, reason=TEXT)
    return dead_id


def _fill_administration(site: UiSite) -> None:
    site.worker(TEXT, host=TEXT, version=TEXT, library=TEXT, queues=("odd",), types=("pay",))
    site.key("admin", name=TEXT)
    site.driver.control.pause(["odd"], by=TEXT, reason=TEXT)
    note = DeliveryNote(queue="odd", role=DeliveryRole.SENDER, problem=TEXT)
    site.driver.maintenance.record_delivery([note])
    entry = AuditEntry(id=new_token(), actor=TEXT, action=TEXT, target=TEXT, detail={TEXT: TEXT})
    site.driver.control.record_audit([entry])
    request = OperationRequest(
        kind=OperationKind.CANCEL, by=TEXT, reason=TEXT, filter=JobFilter(queue="none", tag=(TEXT, TEXT))
    )
    operations.create(site.driver, request, operations.preview(site.driver, request), starts_in=timedelta(hours=1))
    site.roll_up()
