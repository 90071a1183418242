"""The comparison with other job systems: its schedule, its verdicts, and the page and plots made from its figures."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import psycopg
import pytest

from benchmarks.peers import page, tables
from benchmarks.peers.catalog import SYSTEMS
from benchmarks.peers.claims import CLAIMS, CPU_UNITS, GRAPHILE, LAST_TENTH, RATE, TUNED, verdicts
from benchmarks.peers.databases import ROWS, add_finished, add_waiting
from benchmarks.peers.measures import Failed, Starts
from benchmarks.peers.plan import FULL, MEASURES, cells
from benchmarks.peers.plots import plots
from benchmarks.peers.rounds import Rounds
from taskharbor import Client, JobRequest, PostgresDriver
from tests.support.postgres import emptied
from tools.render_picture import FOLDER

if TYPE_CHECKING:
    from benchmarks.peers.claims import Measured
    from benchmarks.peers.plan import Cell

DRAINS = [
    cell
    for cell in cells(SYSTEMS, ["drain1"], ["installed", "tuned"])
    if cell.label in {TUNED, GRAPHILE, "raw (tuned)"}
]


def word(measured: Measured, text: str) -> str:
    [found] = [each.word for each in verdicts(measured) if each.claim.text == text]
    return found


def drained(ours: list[float | None], graphile: list[float | None]) -> Measured:
    return {"drain1": {RATE: {TUNED: ours, GRAPHILE: graphile}}}


def report_of(measured: Measured) -> dict[str, Any]:
    machine = {"date": "2026-01-02", "cores": 2, "postgresql": "18.1", "python": "3.11.1"}
    sizes = {"drain": 1, "snapshot": 2, "history": 3, "backlog": 4}
    return {
        "measured": measured,
        "not measured": {"Drain, x": "it | failed\nin two lines"},
        "systems": {"x": {"versions": [], "store": "PostgreSQL", "settings": {"tuned": "fast"}}},
        "sizes": sizes,
        "minutes": 1.0,
        "machine": machine,
    }


def test_the_page_and_the_plots_are_made_from_the_figures() -> None:
    made = page.files()

    assert {path: path.read_text("utf-8") for path in made} == made, "run python -m benchmarks.peers.page"
    assert {*FOLDER.glob("peers-*.svg")} == {path for path in made if path.suffix == ".svg"}


def test_the_page_shows_every_group_of_values() -> None:
    shown = page.PAGE.read_text("utf-8")

    for name in [*tables.GROUPS, "claims", "machine", "systems", "missed", "missing", "gives_up"]:
        assert f"<!-- peers: {name} -->\n" in shown


def test_a_page_that_is_made_twice_does_not_change() -> None:
    report = report_of(drained([2.0, 3.0], [1.0, 2.0]))
    once = page.page(page.PAGE.read_text("utf-8"), report)

    assert page.page(once, report) == once
    assert "concurrency 1,000 / tuned Graphile | 1.750 | 1.50-2.00 | 2 | ≥ 1.0 | 1.5 | met |\n" in once
    assert "| Drain, x | it / failed in two lines |" in once
    assert page.NO_RUN not in once


def test_a_ratio_uses_only_rounds_in_which_both_were_measured() -> None:
    [found, *_] = verdicts(drained([2.0, None, 9.0, 4.0], [2.0, 1.0, None]))

    assert found.values == [1.0]


@pytest.mark.parametrize(("ours", "expected"), [(1.0, "met"), (0.99, "missed")])
def test_a_median_below_what_must_be_is_printed_as_missed(
    ours: float, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = drained([0.1, ours, 9.0], [1.0, 1.0, 1.0])

    tables.print_report(report_of(measured))

    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("drain, 1 process, conc")]
    assert line.endswith(expected)


def test_a_missed_drain_shows_where_the_time_goes() -> None:
    measured = drained([50_000.0], [100_000.0])
    for unit, ours, theirs in zip(CPU_UNITS, (18.0, 12.0), (9.0, 15.0), strict=True):
        measured["drain1"][unit] = {TUNED: [ours], GRAPHILE: [theirs]}

    text = "drain, 1 process, concurrency 1,000 / tuned Graphile"
    assert tables.missed_rows(measured) == [
        [text, TUNED, "20.0", "18.0", "12.0"],
        [text, GRAPHILE, "10.0", "9.00", "15.0"],
    ]
    assert tables.missed_rows(drained([2.0], [1.0])) == []


def test_an_upper_limit_is_met_from_below() -> None:
    calls: Measured = {"sqs": {"calls/job": {TUNED: [0.04]}}}
    more: Measured = {"sqs": {"calls/job": {TUNED: [0.06]}}}

    assert word(calls, "SQS calls per job under backlog, bundles of 10") == "met"
    assert word(more, "SQS calls per job under backlog, bundles of 10") == "missed"


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert {each.word for each in verdicts({})} == {"not measured"}
    assert len(CLAIMS) == 14


def test_bulk_enqueue_is_compared_with_the_fastest_peer_of_the_run() -> None:
    rates: dict[str, list[float | None]] = {
        TUNED: [6.0],
        GRAPHILE: [2.0],
        "pgqueuer (tuned)": [3.0],
        "raw (tuned)": [9.0],
    }
    [found] = [each for each in verdicts({"bulk": {RATE: rates}}) if "bulk" in each.claim.text]

    assert (found.beside, found.values) == ("pgqueuer (tuned)", [2.0])


def test_every_claim_is_about_cells_that_a_run_measures() -> None:
    measured = {cell.key for cell in cells(SYSTEMS, [*MEASURES], ["installed", "tuned"])}
    places = [place for claim in CLAIMS for place in (claim.value, claim.other) if place]

    assert {(place.measure, place.label) for place in places if "best" not in place.label} <= measured


def test_the_last_tenth_is_compared_with_the_first() -> None:
    trace = [(0.0, 0), (1.0, 10), (9.0, 90), (11.0, 100)]

    assert Starts(trace).last_tenth_of_first == pytest.approx(0.5)
    assert Starts(trace).rate == pytest.approx(100 / 11)


class Machine:
    """A machine on which each measurement takes a second."""

    def __init__(self, *, failing: str = "") -> None:
        self.now, self.failing = 0.0, failing
        self.done: list[str] = []

    def measure(self, cell: Cell) -> dict[str, float]:
        self.now += 1.0
        self.done.append(cell.label)
        if cell.label == self.failing:
            raise Failed("no")
        return {RATE: self.now}

    def run(self, *, count: int, seconds: float = 1_000.0) -> Rounds:
        rounds = Rounds(self.measure, clock=lambda: self.now)
        self.saved: list[int] = []
        rounds.run(
            DRAINS,
            count=count,
            minutes=seconds / 60,
            save=lambda: self.saved.append(len(rounds.measured["drain1"][RATE])),
        )
        return rounds


def test_what_a_claim_uses_is_measured_in_every_round_and_all_else_in_three() -> None:
    machine = Machine()
    rounds = machine.run(count=8)

    assert {label: machine.done.count(label) for label in machine.done} == {TUNED: 8, GRAPHILE: 8, "raw (tuned)": 3}
    assert rounds.measured["drain1"][RATE]["raw (tuned)"][:2] == [None, 5.0]


def test_claims_get_the_time_that_they_need_before_all_else() -> None:
    machine = Machine()
    machine.run(count=8, seconds=16.0)

    assert {label: machine.done.count(label) for label in machine.done} == {TUNED: 8, GRAPHILE: 8}


def test_a_run_that_is_cut_short_has_saved_what_it_measured() -> None:
    machine = Machine()
    rounds = machine.run(count=8, seconds=3.0)

    assert rounds.measured["drain1"][RATE] == {TUNED: [1.0, 3.0], GRAPHILE: [2.0]}
    assert machine.saved == [1, 2, 2]


def test_a_system_that_fails_does_not_stop_the_others() -> None:
    machine = Machine(failing=GRAPHILE)
    rounds = machine.run(count=4)

    assert machine.done.count(GRAPHILE) == 2
    assert rounds.measured["drain1"][RATE][TUNED] == pytest.approx([1.0, 3.0, 6.0, 8.0])
    assert [*rounds.missing.values()] == ["no"]


def test_a_plot_is_well_formed_and_has_a_bar_for_each_system() -> None:
    ratio: Measured = {"snapshot": {LAST_TENTH: {TUNED: [0.5, 1.0], "a < b (tuned)": [0.2]}}}
    drawn = plots(report_of({**drained([2.0], [1.0]), **ratio}))

    assert {path.name for path in drawn} == {
        f"peers-{name}-{theme}.svg" for name in ("drain", "stores") for theme in ("dark", "light")
    }
    for text in drawn.values():
        bars = list(ET.fromstring(text).iter("{http://www.w3.org/2000/svg}rect"))
        assert len(bars) == 3  # the background and two systems


def test_jobs_that_are_made_by_sql_are_as_those_that_were_enqueued() -> None:
    url = emptied()
    with closing(PostgresDriver(url)) as driver:
        Client(driver).enqueue(JobRequest(type="noop"))
    add_waiting(url, ROWS["taskharbor"], 5)
    add_finished(url, ROWS["taskharbor"], 3)

    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT status, scheduled_for <= now(), count(*), count(DISTINCT id) FROM th_jobs GROUP BY 1, 2"
        ).fetchall()
    assert {*found} == {("PENDING", True, 6, 6), ("SUCCEEDED", True, 3, 3)}


def test_the_sizes_of_a_full_run_are_those_of_the_claims() -> None:
    assert (FULL.backlog, FULL.history) == (10_000_000, 1_000_000)
