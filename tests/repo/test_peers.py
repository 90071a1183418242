"""The comparison with other job systems: what it installs is pinned, and what it counts is right."""

from __future__ import annotations

import multiprocessing
import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.peers.catalog import LOSSES, SCRIPTS, SYSTEMS, System
from benchmarks.peers.environments import LOCKS, versions
from benchmarks.peers.stores import SqliteStores
from benchmarks.peers.tables import added
from benchmarks.peers.ticks import Ticks, read

if TYPE_CHECKING:
    from pathlib import Path

PIN = re.compile(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*|[@a-z0-9/-]+@\d+\.\d+\.\d+(-[a-z0-9.]+)?")


def each_system(system: System) -> str:
    return system.name


@pytest.mark.parametrize("system", SYSTEMS, ids=each_system)
def test_a_system_is_pinned_and_has_a_script_and_a_way_to_count(system: System) -> None:
    script = "node.mjs" if system.npm else f"{system.environment}_app.py"
    assert (SCRIPTS / script).exists()
    assert bool(system.finished) != bool(system.unfinished)
    assert system.settings.keys() <= LOSSES[system.store].keys()
    assert system.beside in {each.name for each in SYSTEMS if each.ours and each.store in {system.store, "PostgreSQL"}}
    if packages := (*system.packages, *system.npm):
        assert len(versions(system.environment, packages)) == len(packages)


@pytest.mark.parametrize("lock", sorted(LOCKS.iterdir()), ids=lambda lock: lock.stem)
def test_a_lock_holds_exact_versions_and_nothing_else(lock: Path) -> None:
    assert lock.stem in {"node", *(system.environment for system in SYSTEMS)}
    assert [line for line in lock.read_text("utf-8").splitlines() if not PIN.fullmatch(line)] == []


def _tick(folder: Path, latencies: list[float | None]) -> None:
    ticks = Ticks(folder)
    for each in latencies:
        ticks.add(each)


def test_starts_of_all_processes_are_counted(tmp_path: Path) -> None:
    processes = [
        multiprocessing.get_context("spawn").Process(target=_tick, args=(tmp_path, latencies))
        for latencies in ([None, 1.0], [2.0, None, None])
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    count, first, latencies = read(tmp_path)
    assert (count, len(latencies)) == (5, 2)
    assert first is not None


def test_starts_of_a_process_with_the_id_of_an_earlier_one_are_added(tmp_path: Path) -> None:
    _tick(tmp_path, [None, 1.0])
    _tick(tmp_path, [2.0])
    count, _, latencies = read(tmp_path)
    assert (count, len(latencies)) == (3, 2)


def test_no_starts_are_counted_before_the_first(tmp_path: Path) -> None:
    assert read(tmp_path) == (0, None, [])


def _execute(url: str, statement: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(statement)


def test_a_store_is_filled_once_and_its_copies_do_not_change_it(tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    fills: list[str] = []

    def fill(url: str) -> None:
        fills.append(url)
        _execute(url, "CREATE TABLE job AS SELECT 1 AS id")

    for _ in range(2):
        stores.once("filled", fill)
        url = stores.copy("used", template="filled")
        with stores.counting("used") as ask:
            assert ask("SELECT count(*) FROM job") == 1
        _execute(url, "DELETE FROM job")
        stores.drop("used")
    assert len(fills) == 1


def test_a_store_that_could_not_be_filled_is_filled_again(tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    with pytest.raises(sqlite3.OperationalError):
        stores.once("filled", lambda url: _execute(url, "SELECT 1 FROM missing"))
    stores.once("filled", lambda url: _execute(url, "CREATE TABLE job AS SELECT 1 AS id"))
    with stores.counting("filled") as ask:
        assert ask("SELECT count(*) FROM job") == 1


def test_measures_that_are_added_replace_earlier_ones_and_name_their_day() -> None:
    earlier: dict[str, Any] = {
        "measured": {"bulk": {"jobs/s": {"raw (tuned)": [1.0]}}, "single": {"jobs/s": {"raw (tuned)": [1.0, 2.0]}}},
        "not measured": {"Enqueue one by one, rq (tuned)": "ended", "Enqueue in bulk, rq (tuned)": "ended"},
        "systems": {"raw": {}, "rq": {}},
        "machine": {"date": "2026-11-18"},
    }
    ran: dict[str, Any] = {
        "measured": {"single": {"jobs/s": {"raw (tuned)": [3.0]}}},
        "not measured": {},
        "systems": {"raw": {"versions": []}},
        "machine": {"date": "2026-11-19"},
    }

    report = added(earlier, ran)

    assert report["measured"] == earlier["measured"] | ran["measured"]
    assert report["not measured"] == {"Enqueue in bulk, rq (tuned)": "ended"}
    assert report["systems"] == {"raw": {"versions": []}, "rq": {}}
    assert (report["machine"], report["days"]) == ({"date": "2026-11-18"}, {"single": "2026-11-19"})
