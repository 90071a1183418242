"""The alert rules, the dashboard and the runbooks: they use metrics, labels and commands that exist."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from taskharbor import MemoryDriver, Status
from taskharbor.cli.main import cli
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.results import RefusalReason
from taskharbor.health import ServiceHealth
from taskharbor.health.metrics import LoopMetrics
from taskharbor.observability.failure_log import QUEUE_SERVICE, STORE
from taskharbor.observability.prometheus import PrometheusHook
from taskharbor.store_metrics import StoreGauges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final[Sequence[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: Final = json.loads((ROOT / "deploy" / "grafana" / "taskharbor.json").read_text("utf-8"))
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
TARGET_LABELS: Final = frozenset({"instance", "job"})
"""The labels that Prometheus adds to every sample of a target."""
COUNTING: Final = frozenset({"rate", "increase"})
OF_RANGES: Final = COUNTING | {"delta", "max_over_time"}
FUNCTIONS: Final = OF_RANGES | {"absent", "histogram_quantile", "time"}
AGGREGATIONS: Final = frozenset({"count", "max", "min", "sum"})
MATCHING: Final = frozenset({"by", "on"})
OPERATORS: Final = frozenset({"and", "or", "unless"})
VALUES: Final[Mapping[str, frozenset[str]]] = {
    "status": frozenset(Status),
    "outcome": frozenset({"succeeded", *(each.lower() for each in AttemptOutcome)}),
    "service": frozenset({STORE, QUEUE_SERVICE.replace(" ", "_")}),
    "reason": frozenset(each.replace(" ", "_") for each in RefusalReason),
    "result": frozenset({"published", "failed", "given_up"}),
    "state": frozenset({"total", "busy", "lost"}),
    "loop": frozenset({"source", "janitor", "dispatch"}),
}
"""The values of labels that are fixed words."""
TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<name>[a-zA-Z_][a-zA-Z0-9_]*)
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<text>"[^"\\]*")
      | (?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/<>(){},=])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Exported:
    kind: str
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric in a query, with its label matchers, its range, and the function that is called with it."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    range: str
    function: str


class BadQuery(Exception):
    pass


@pytest.fixture(scope="module")
def exported() -> Mapping[str, Exported]:
    """Return every metric that a process can export, by the names of its samples."""
    registry, driver = CollectorRegistry(), MemoryDriver()
    hook = PrometheusHook(registry)
    hook.watch(Slots())
    StoreGauges(lambda: driver.inspector, registry)
    LoopMetrics(ServiceHealth(), registry)
    found = {}
    for collector in {*registry._names_to_collectors.values()}:  # noqa: SLF001  there is no public way
        for family in collector.describe():  # type: ignore[attr-defined]
            kind = family.type
            labels = frozenset(getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ()))
            for suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",)):
                extra = {"le"} if suffix == "_bucket" else set()
                found[family.name + suffix] = Exported(kind, labels | extra | TARGET_LABELS)
    return found


class Slots:
    """A worker, as far as the metrics need one."""

    concurrency = running_jobs = lost_slots = 0


def tokens_of(query: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    query = query.strip()
    while at < len(query):
        if (found := TOKEN.match(query, at)) is None:
            raise BadQuery(f"cannot read {query[at:]!r}")
        tokens.append((str(found.lastgroup), found[found.lastgroup or ""]))
        at = found.end()
    return tokens


def selectors_in(query: str) -> tuple[list[Selector], set[str]]:
    """Return the metrics in a query, and the labels that it groups and matches by."""
    tokens = [*tokens_of(query), ("end", "")]
    found, grouped, open_calls = [], set[str](), list[str]()
    at = 0
    while tokens[at][0] != "end":
        kind, text = tokens[at]
        following = tokens[at + 1][1]
        at += 1
        if kind == "name" and text in MATCHING:
            end = tokens.index(("sign", ")"), at)
            grouped |= {name for each, name in tokens[at:end] if each == "name"}
            at = end + 1
        elif kind == "name" and (text in FUNCTIONS or text in AGGREGATIONS):
            if following not in {"(", "by"}:
                raise BadQuery(f"{text} is not called")
            open_calls += [] if following == "by" else [text]
            at += following != "by"
        elif kind == "name" and text not in OPERATORS:
            matchers, at = matchers_at(tokens, at)
            is_range = tokens[at][0] == "range"
            found.append(Selector(text, matchers, tokens[at][1] if is_range else "", (open_calls or [""])[-1]))
            at += is_range
        elif text == "(":
            open_calls.append("")
        elif text == ")":
            if not open_calls:
                raise BadQuery("a parenthesis too many")
            open_calls.pop()
    if open_calls:
        raise BadQuery("a parenthesis is missing")
    return found, grouped


def matchers_at(tokens: Sequence[tuple[str, str]], at: int) -> tuple[tuple[tuple[str, str, str], ...], int]:
    if tokens[at][1] != "{":
        return (), at
    end = tokens.index(("sign", "}"), at)
    parts = [text for _, text in tokens[at + 1 : end] if text != ","]
    if len(parts) % 3 or any(sign not in {"=", "!=", "=~", "!~"} for sign in parts[1::3]):
        raise BadQuery(f"matchers {parts}")
    return tuple(zip(parts[::3], parts[1::3], (text.strip('"') for text in parts[2::3]), strict=True)), end + 1


def problems_of(query: str, exported: Mapping[str, Exported]) -> Iterator[str]:
    try:
        selectors, grouped = selectors_in(query)
    except (BadQuery, ValueError) as error:
        yield f"{query}: {error}"
        return
    if not selectors:
        yield f"{query}: no metric"
    for each in selectors:
        metric = exported.get(each.name)
        if metric is None:
            yield f"{each.name} is not exported"
            continue
        for label, _, value in each.matchers:
            if label not in metric.labels:
                yield f"{each.name} has no label {label}"
            elif label in VALUES:
                yield from (f"{label} is never {word}" for word in value.split("|") if word not in VALUES[label])
        is_counter = metric.kind in {"counter", "histogram"}
        if is_counter != (each.function in COUNTING) and each.name != "taskharbor_build_info":
            yield f"{each.name} is a {metric.kind}, in {each.function or 'no function'}"
        if bool(each.range) != (each.function in OF_RANGES):
            yield f"{each.name}: range {each.range!r} in {each.function!r}"
    known = {label for each in selectors if each.name in exported for label in exported[each.name].labels}
    yield from (f"{label} is a label of none of its metrics: {query}" for label in sorted(grouped - known))


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_every_alert_uses_metrics_and_labels_that_are_exported(exported: Mapping[str, Exported]) -> None:
    assert [problem for rule in RULES for problem in problems_of(rule["expr"], exported)] == []


def test_every_panel_uses_metrics_and_labels_that_are_exported(exported: Mapping[str, Exported]) -> None:
    assert [problem for query in dashboard_queries() for problem in problems_of(query, exported)] == []
    assert len(dashboard_queries()) > 30


def test_every_metric_is_on_the_dashboard_or_in_an_alert(exported: Mapping[str, Exported]) -> None:
    queries = [*dashboard_queries(), *(rule["expr"] for rule in RULES)]
    used = {each.name for query in queries for each in selectors_in(query)[0]}
    unused = {name for name in exported if not name.endswith(("_sum", "_count"))} - used

    assert unused == set()


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("max(taskharbor_worker)", "taskharbor_worker is not exported"),
        ("max by (tenant) (taskharbor_jobs)", "tenant is a label of none of its metrics"),
        ('max(taskharbor_jobs{state="DEAD"})', "taskharbor_jobs has no label state"),
        ('max(taskharbor_jobs{status="dead"})', "status is never dead"),
        ("sum(taskharbor_leases_lost_total)", "taskharbor_leases_lost_total is a counter, in sum"),
        ("sum(rate(taskharbor_jobs[5m]))", "taskharbor_jobs is a gauge, in rate"),
        ("sum(rate(taskharbor_leases_lost_total))", "range '' in 'rate'"),
        ("max(taskharbor_jobs[5m])", "range '[5m]' in 'max'"),
        ("max(taskharbor_jobs", "a parenthesis is missing"),
        ("max(taskharbor_jobs))", "a parenthesis too many"),
        ("max(taskharbor_jobs) > 5 %", "cannot read"),
        ('max(taskharbor_jobs{queue="a" status})', "matchers"),
        ("max > 1", "max is not called"),
        ("1 > 0", "no metric"),
    ],
)
def test_a_wrong_query_is_found(query: str, problem: str, exported: Mapping[str, Exported]) -> None:
    assert problem in "; ".join(problems_of(query, exported))


def test_every_alert_has_a_name_a_severity_a_summary_and_a_runbook() -> None:
    names = Counter(rule["alert"] for rule in RULES)
    pages = Counter(rule["annotations"]["runbook"] for rule in RULES)

    assert {*names.values(), *pages.values()} == {1}
    for rule in RULES:
        assert {*rule} <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule
        assert re.fullmatch(r"TaskHarbor[A-Za-z]+", rule["alert"])
        words = re.findall(r"[A-Z][a-z]+", rule["alert"].removeprefix("TaskHarbor"))
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{'-'.join(words).lower()}.md"
        assert {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])} <= selectors_in(rule["expr"])[1]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    alerts = {rule["alert"]: Path(rule["annotations"]["runbook"]).name for rule in RULES}
    index = (RUNBOOKS / "README.md").read_text("utf-8")

    assert {page.name for page in RUNBOOKS.glob("*.md")} == {*alerts.values(), "README.md"}
    assert dict(re.findall(r"^\| \[(\w+)\]\(([\w-]+\.md)\) \|", index, re.MULTILINE)) == alerts
    for alert, name in alerts.items():
        headings = re.findall(r"^#+ (.+)$", (RUNBOOKS / name).read_text("utf-8"), re.MULTILINE)
        assert headings == [alert, "What it means", "What to look at", "What to do"], name


def test_the_index_has_the_severity_and_the_delay_of_every_alert() -> None:
    index = (RUNBOOKS / "README.md").read_text("utf-8")

    assert re.findall(r"^\| \[(\w+)\]\([\w.-]+\) \| (\w+) \| ([\w ]+) \|$", index, re.MULTILINE) == [
        (rule["alert"], rule["labels"]["severity"], rule.get("for", "at once")) for rule in RULES
    ]


def commands() -> list[str]:
    """Return the commands of TaskHarbor that the runbooks name."""
    texts = [page.read_text("utf-8") for page in sorted(RUNBOOKS.glob("*.md"))]
    lines = [line for text in texts for line in re.findall(r"^taskharbor .+$", text, re.MULTILINE)]
    return sorted({*lines, *(part for text in texts for part in re.findall(r"`(taskharbor [^`]+)`", text))})


@pytest.mark.parametrize("line", commands())
def test_every_command_of_a_runbook_exists_with_its_options(line: str) -> None:
    ctx, command, words = (
        click.Context(cli),
        cli.get_command(click.Context(cli), line.split()[1]),
        shlex.split(line)[2:],
    )
    while isinstance(command, click.Group):
        ctx = click.Context(command, parent=ctx)
        command = command.get_command(ctx, words.pop(0))
    assert command is not None, line
    options = {name for parameter in command.params for name in parameter.opts}

    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= options
    takes_words = any(isinstance(parameter, click.Argument) for parameter in command.params)
    assert takes_words or not words or words[0].startswith("-")


def test_links_between_runbooks_lead_to_pages() -> None:
    for page in RUNBOOKS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
