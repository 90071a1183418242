"""The endpoint that Prometheus scrapes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from taskharbor import Harbor
from taskharbor.api import create_app
from taskharbor.api.routing import METRICS
from taskharbor.api.state import KnownScrapers
from taskharbor.api.store import Caller
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.observability.prometheus import PrometheusHook
from tests.support.api_rig import bearer, opened, problem
from tests.support.exposition import parse
from tests.support.worker_rig import Outage, meddled


def test_the_api_exports_its_own_metrics_and_the_gauges_of_its_store() -> None:
    hook = PrometheusHook(CollectorRegistry())
    harbor = Harbor(MemoryDriver(), hooks=[hook])
    with opened(harbor.driver, registry=hook.registry) as site:
        site.backend.client = harbor.client
        site.create(queue="mail")
        site.roll_up()
        answer = site.get("/metrics")

    metrics = parse(answer.text)
    labels = frozenset({("queue", "mail"), ("type", "greet")})
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert metrics["taskharbor_jobs_enqueued_total"].samples["taskharbor_jobs_enqueued_total", labels] == 1
    pending = frozenset({("queue", "mail"), ("status", "PENDING")})
    assert metrics["taskharbor_jobs"].samples["taskharbor_jobs", pending] == 1
    assert metrics["taskharbor_store_up"].samples["taskharbor_store_up", frozenset()] == 1
    assert metrics["taskharbor_service_available"].samples == {}  # no service of this process would ever correct it


def test_metrics_need_a_key_with_their_scope() -> None:
    with opened(needs_keys=True, registry=CollectorRegistry()) as site:
        reader, scraper = site.key("jobs:read"), site.key("metrics:read")
        refused = [site.get("/metrics"), site.get("/metrics", headers=bearer(reader))]
        scraped = site.get("/metrics", headers=bearer(scraper))
        jobs = site.get("/v1/jobs", headers=bearer(scraper))

    assert [answer.status_code for answer in (*refused, scraped, jobs)] == [401, 403, 200, 403]
    assert problem(refused[1])["code"] == "missing-scope"


def test_an_api_without_a_registry_says_how_to_turn_metrics_on() -> None:
    with opened() as site:
        answer = site.get("/metrics")

    assert answer.status_code == 404
    assert problem(answer)["code"] == "metrics-off"
    assert "[prometheus]" in problem(answer)["detail"]


def test_metrics_are_exported_while_the_store_is_unavailable() -> None:
    outage = Outage()
    with opened(meddled(MemoryDriver(), outage), registry=CollectorRegistry()) as site:
        outage.begin()
        answer = site.get("/metrics")
        outage.end()

    assert answer.status_code == 200
    assert parse(answer.text)["taskharbor_store_up"].samples == {("taskharbor_store_up", frozenset()): 0}


def test_a_known_key_reads_metrics_while_the_store_cannot_check_it() -> None:
    outage = Outage()
    with opened(meddled(MemoryDriver(), outage), needs_keys=True, registry=CollectorRegistry()) as site:
        site.app.state.taskharbor.store._key_cache._seconds = 0.0  # noqa: SLF001  an outage lasts longer than its results
        known, reader, new, revoked = (site.key(scope) for scope in (METRICS, "jobs:read", METRICS, METRICS))
        for key in (known, reader, revoked):
            site.get("/metrics", headers=bearer(key))
        [record] = [each for each in site.driver.inspector.keys().values() if each.id in revoked]
        site.driver.control.revoke_keys([record.id])
        assert site.get("/metrics", headers=bearer(revoked)).status_code == 401
        outage.begin()
        answers = [site.get("/metrics", headers=bearer(key)) for key in (known, reader, new, revoked)]
        jobs = site.get("/v1/jobs", headers=bearer(known))
        outage.end()

    assert [each.status_code for each in (*answers, jobs)] == [200, 403, 503, 503, 503]
    assert parse(answers[0].text)["taskharbor_store_up"].samples == {("taskharbor_store_up", frozenset()): 0}


def test_a_known_scraper_is_forgotten_after_a_day_and_beyond_a_hundred() -> None:
    now = 0.0
    scrapers, caller = KnownScrapers(lambda: now), Caller("key:1", frozenset({METRICS}))
    scrapers.remember("old", caller)
    now = 86_399.0
    assert scrapers.get("old") is caller
    now = 86_400.0
    assert scrapers.get("old") is None

    for number in range(101):
        scrapers.remember(str(number), caller)
    assert [scrapers.get(each) is caller for each in ("0", "1", "100")] == [False, True, True]


def test_an_app_without_metrics_needs_no_prometheus_client() -> None:
    assert create_app(Harbor("memory://")).state.taskharbor.metrics is None
