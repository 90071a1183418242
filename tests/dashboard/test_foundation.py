"""Rules of the package: size, colors, headers, figures that charts show, and what the pages cost."""

from __future__ import annotations

import asyncio
import gzip
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from taskharbor import Harbor, MemoryDriver
from taskharbor.api.problems import HttpProblem
from taskharbor.api.store import StoreGateway
from taskharbor.cli.dashboard import DashboardOptions
from taskharbor.core.outcome import Outcome
from taskharbor.core.statistics import MINUTE, Metric, SeriesQuery
from taskharbor.dashboard.figures import QueueFigures, forecast_pause, queue_figures, rate_of
from taskharbor.dashboard.queries import Reads
from taskharbor.dashboard.state import Assets
from taskharbor.installation import install_command
from taskharbor.testing.clock import ManualClock
from taskharbor.views import iso_time
from tests.support.colors import closest_pair, contrast
from tests.support.dashboard_rig import HistoryClock, UiSite, seed, seed_history, serve_site
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.base import Inspector

PROJECT: Final = Path(__file__).resolve().parents[2] / "pyproject.toml"
MAX_GZIPPED: Final = 15 * 1024
STATES: Final = ("clock", "envelope", "play", "retry", "check", "cross", "barred")


def palettes() -> dict[str, dict[str, str]]:
    """Return the colors of both themes from the style sheet."""
    css = Assets().files["app.css"][0].decode()
    light = re.search(r":root\{color-scheme:light;(.*?)\}", css)
    dark = re.search(r":root\[data-theme=dark\]\{color-scheme:dark;(.*?)\}", css)
    assert light is not None
    assert dark is not None
    return {
        name: dict(re.findall(r"--([a-z]+):(#[0-9a-f]{3,6})", found[1]))
        for name, found in (("light", light), ("dark", dark))
    }


def test_scripts_and_styles_are_small() -> None:
    sizes = [len(gzip.compress(content, 9)) for name, (content, _) in Assets().files.items() if name != "icon.svg"]

    assert sum(sizes) <= MAX_GZIPPED


def test_the_extra_adds_two_packages_to_those_of_the_api() -> None:
    extras: dict[str, list[str]] = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]

    assert "taskharbor[api]" in extras["dashboard"]
    added = with_dependencies(extras["dashboard"]) - with_dependencies(extras["api"])
    assert added == {"jinja2", "markupsafe"}
    assert any("dashboard" in Requirement(each).extras for each in extras["all"])


def with_dependencies(wanted: list[str]) -> set[str]:
    """Return the packages that *wanted* and what they depend on would install, without TaskHarbor itself."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in wanted]
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if name == "taskharbor" or name in found or (each.marker is not None and not each.marker.evaluate()):
            continue
        found.add(name)
        needed = [Requirement(text) for text in metadata.requires(name) or ()]
        extras = each.extras or {""}
        waiting += [it for it in needed if it.marker is None or any(it.marker.evaluate({"extra": e}) for e in extras)]
    return found


def test_scripts_run_as_they_are_written() -> None:
    scripts = {name: content.decode() for name, (content, _) in Assets().files.items() if name.endswith(".js")}

    imported = {name for text in scripts.values() for name in re.findall(r"\bfrom \"([^\"]+)\"", text)}
    assert imported <= {f"./{name}" for name in scripts}
    assert list(PROJECT.parent.glob("package*.json")) == []


def test_the_import_contract_rejects_an_api_that_needs_the_dashboard(tmp_path: Path) -> None:
    shutil.copytree(PROJECT.parent / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT, tmp_path)
    with (tmp_path / "src" / "taskharbor" / "api" / "app.py").open("a") as module:
        module.write("\nfrom taskharbor.dashboard import dashboard\n")
    linter = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, 'src'); {linter}"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert ran.returncode == 1, ran.stderr
    assert "taskharbor.api is not allowed to import taskharbor.dashboard" in ran.stdout


def test_every_answer_has_the_policy() -> None:
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    paths = ["/", "/jobs", "/login", "/nothing", f"/static/{Assets().mark}/app.js", "/queues/mail/pause"]
    with serve_site() as site, site.http() as client:
        found = {path: client.get(f"/ui{path}").headers.get("content-security-policy") for path in paths}

    assert found == dict.fromkeys(paths, policy)


def test_templates_have_no_inline_style_script_or_foreign_address() -> None:
    for each in (files("taskharbor.dashboard") / "templates").iterdir():
        text = each.read_text()
        assert not re.search(r"<style|\bstyle=|<script(?![^>]*src=)|\bon[a-z]+=|https?://(?!www\.w3\.org)", text), (
            each.name
        )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_states_differ_for_every_kind_of_color_vision(theme: str) -> None:
    colors = palettes()[theme]

    assert closest_pair([colors[name] for name in STATES]) >= 12


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(theme: str) -> None:
    colors = palettes()[theme]

    for name in (*STATES, "text", "muted", "accent"):
        for ground in ("bg", "raised"):
            assert contrast(colors[name], colors[ground]) >= 4.5, (name, ground)
    assert contrast(colors["control"], colors["bg"]) >= 3
    assert contrast(colors["on"], colors["accent"]) >= 4.5


def test_both_dark_themes_have_the_same_colors() -> None:
    css = Assets().files["app.css"][0].decode()
    blocks = re.findall(r"color-scheme:dark;(.*?)\}", css)

    assert len(blocks) == 2
    assert blocks[0] == blocks[1]


def test_without_jinja2_the_api_works_and_says_how_to_get_the_dashboard() -> None:
    script = """
import logging, sys
sys.modules["jinja2"] = None
logging.basicConfig(level="INFO")
from taskharbor import Harbor
from taskharbor.api import create_app
from taskharbor.cli.dashboard import DashboardOptions
assert list(DashboardOptions(is_on=True, read_only=False, label=None).parts()) == []
create_app(Harbor("memory://"))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)

    assert ran.returncode == 0, ran.stderr
    assert f"run: {install_command('dashboard')}" in ran.stderr


def test_a_command_without_jinja2_serves_no_dashboard_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(
        "taskharbor.cli.dashboard.find_spec", lambda name: None if name == "jinja2" else find_spec(name)
    )
    with caplog.at_level("INFO", "taskharbor.api"):
        parts = DashboardOptions(is_on=True, read_only=False, label=None).parts()

    assert list(parts) == []
    assert f"run: {install_command('dashboard')}" in caplog.text


class SteadyQueue(UiSite):
    """A queue with jobs that arrive and end at steady rates, on a clock that the test moves."""

    def __init__(self, harbor: Harbor, clock: ManualClock) -> None:
        self.harbor, self.clock = harbor, clock

    def pass_minute(self, *, arrive: int, end: int) -> None:
        self.enqueue("email.send", arrive, queue="mail")
        self.settle(self.claim("mail", end), Outcome.ack())
        self.clock.advance(60)
        self.worker("web-1", queues=("mail",))
        self.roll_up()

    def figures(self) -> QueueFigures:
        inspector, now = self.driver.inspector, self.clock.now()
        [queue] = inspector.queues()
        since = now - timedelta(minutes=15)

        def rate(metric: Metric) -> float | None:
            query = SeriesQuery(metric=metric, since=since, until=now + MINUTE, queue="mail")
            return rate_of(inspector.series(query), now)

        return queue_figures(queue, inspector.workers(), now, rates=(rate(Metric.ARRIVED), rate(Metric.ENDED)))


@pytest.fixture
def steady() -> Iterator[SteadyQueue]:
    clock = ManualClock()
    with Harbor(MemoryDriver(clock=clock)) as harbor:
        yield SteadyQueue(harbor, clock)


def test_the_forecast_of_a_pause_is_what_then_happens(steady: SteadyQueue) -> None:
    steady.enqueue("email.send", 600, queue="mail")
    for _ in range(12):
        steady.pass_minute(arrive=20, end=30)
    found = forecast_pause(steady.figures(), timedelta(minutes=30))
    assert found is not None
    assert found.drain is not None

    for _ in range(30):
        steady.pass_minute(arrive=20, end=0)
    backlog = steady.figures().waiting
    minutes = 0
    while steady.figures().waiting > 20:
        steady.pass_minute(arrive=20, end=30)
        minutes += 1

    assert found.backlog == pytest.approx(backlog, rel=0.2)
    assert found.drain / MINUTE == pytest.approx(minutes, rel=0.2)


def test_a_queue_that_keeps_up_drains_as_fast_as_its_slots_allow(steady: SteadyQueue) -> None:
    for _ in range(10):
        steady.pass_minute(arrive=20, end=20)

    found = forecast_pause(steady.figures(), timedelta(minutes=30), run_time=timedelta(seconds=2))

    assert found is not None
    assert found.backlog == pytest.approx(600, rel=0.2)
    assert found.rate == 16 * 30


def read_in_thread(work: Any) -> Any:
    """Run *work* on an event loop of its own: the browser's loop runs in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(30)


class CountedReads:
    """Reads that count how often the store is read."""

    def __init__(self) -> None:
        self.count = 0

    def read(self, inspector: Inspector) -> int:
        assert inspector is not None
        self.count += 1
        return self.count


@pytest.fixture
def gateway() -> Iterator[StoreGateway]:
    with Harbor("memory://") as harbor:
        yield StoreGateway(harbor)


def test_callers_with_the_same_key_share_one_read(gateway: StoreGateway) -> None:
    counted = CountedReads()

    async def use() -> list[int]:
        reads = Reads(gateway, seconds=60)
        return [*await asyncio.gather(*(reads.cached("a", counted.read) for _ in range(50)))]

    assert read_in_thread(use()) == [1] * 50


def test_a_cached_read_older_than_a_change_is_not_used(gateway: StoreGateway) -> None:
    counted, changed_at = CountedReads(), [0.0]

    async def use() -> list[int]:
        reads = Reads(gateway, seconds=60, changed_at=lambda: changed_at[0])
        first = [await reads.cached("a", counted.read) for _ in range(2)]
        changed_at[0] = time.monotonic()
        return [*first, *[await reads.cached("a", counted.read) for _ in range(2)]]

    assert read_in_thread(use()) == [1, 1, 2, 2]


def test_a_read_that_takes_too_long_says_what_would_help(
    gateway: StoreGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.dashboard.queries.DEADLINE_SECONDS", 0.01)
    released = threading.Event()

    def read(_inspector: Inspector) -> bool:
        return released.wait(30)

    async def use() -> None:
        with pytest.raises(HttpProblem, match="choose one queue"):
            await Reads(gateway).fresh(read)
        released.set()

    read_in_thread(use())


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
def test_every_page_answers_on_every_store(store: str, tmp_path: Path) -> None:
    urls = {"memory": lambda: "memory://", "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db", "postgres": emptied}
    queue = "/queues/mail"
    paths = ["/", "/?range=8d", "/queues", queue, f"{queue}?range=24h", f"{queue}/pause", "/find?q=mail"]
    with serve_site(urls[store]()) as site, site.http() as client:
        seed(site)

        assert {path: client.get(f"/ui{path}").status_code for path in paths} == dict.fromkeys(paths, 200)


def test_the_chart_of_ended_jobs_equals_the_counts_of_the_store() -> None:
    clock = HistoryClock(timedelta(minutes=59))
    with serve_site(harbor=Harbor(MemoryDriver(clock=clock))) as site, site.http() as client:
        seed_history(site, clock)
        clock.stop()
        page = client.get("/ui/").text
        since = site.driver.inspector.now() - timedelta(hours=1)
        counts: Counter[str] = Counter()
        for each in site.driver.inspector.finished_counts(since=since):
            counts[each.status.value] += each.count
        [newest, *_] = site.driver.inspector.versions(limit=1)

    assert f"{counts['SUCCEEDED']:,} succeeded, {counts['DEAD']:,} dead." in page
    assert f'version 4f2c <time datetime="{iso_time(newest.first_seen)}"' in page
