"""Compare TaskHarbor with other job systems.

python -m benchmarks.peers [--quick] [--budget MINUTES] [--rounds N] [--systems NAMES] [--measures NAMES] …

Systems take turns in each round, so that a change of the machine's speed affects all of them. What a claim uses is
measured in every round; all else in a few rounds, and only in time that the claims do not need.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks.peers import page, tables
from benchmarks.peers.catalog import POSTGRESQL, REDIS, REDIS_OPTIONS, SQLITE, SYSTEMS
from benchmarks.peers.claims import claimed
from benchmarks.peers.databases import Databases
from benchmarks.peers.environments import ROOT, NotInstalled
from benchmarks.peers.measures import Failed, Trial
from benchmarks.peers.plan import FULL, MEASURES, QUICK, cells
from benchmarks.peers.rounds import Rounds
from benchmarks.peers.stores import RedisStores, SqliteStores
from benchmarks.peers.tables import FIGURES, print_report
from taskharbor.testing.postgres import PostgresServer
from tools.prove import machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.catalog import System
    from benchmarks.peers.measures import Stores
    from benchmarks.peers.plan import Cell, Sizes, Values

SERVER: Final = {"shared_buffers": "512MB", "max_wal_size": "4GB", "max_connections": "200"}
ROUNDS: Final = 8
QUICK_MINUTES: Final = 5.0
UNLIMITED_MINUTES: Final = 24 * 60.0


class Trials:
    """Measures cells, each in a store of its own kind below *folder*."""

    def __init__(self, folder: Path, server: PostgresServer, sizes: Sizes) -> None:
        self._folder, self._sizes = folder, sizes
        self._databases, self._files = Databases(server, folder / "pg"), SqliteStores(folder / "sqlite")
        self._redis = {name: RedisStores(folder / f"redis-{name}", *words) for name, words in REDIS_OPTIONS.items()}

    def measure(self, cell: Cell) -> Values:
        try:
            trial = Trial(cell.system, cell.setting, self._stores(cell), self._folder)
            return MEASURES[cell.measure].run(trial, self._sizes)
        except (NotInstalled, OSError, psycopg.Error, sqlite3.Error) as error:
            raise Failed(str(error)) from error

    def _stores(self, cell: Cell) -> Stores:
        stores: dict[str, Stores] = {
            POSTGRESQL: self._databases,
            SQLITE: self._files,
            REDIS: self._redis[cell.setting],
        }
        return stores[cell.system.store]


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    systems = _chosen(options.systems, is_quick=options.quick)
    chosen = list(cells(systems, options.measures.split(","), options.settings.split(",")))
    sizes = QUICK if options.quick else FULL
    sizes = replace(sizes, backlog=options.backlog or sizes.backlog)
    described = {each.name: about(each) for each in systems}
    earlier = json.loads(Path(options.output).read_text("utf-8")) if options.add else None
    if earlier and earlier["sizes"] != asdict(sizes):
        sys.exit(f"{options.output} has figures of other sizes: nothing can be added to it")
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        PostgresServer.start(Path(folder) / "pg", durable=True, settings=SERVER) as server,
    ):
        rounds = Rounds(Trials(Path(folder), server, sizes).measure)

        def report() -> dict[str, Any]:
            ran = {
                "measured": rounds.measured,
                "not measured": {
                    what: reason.replace(str(ROOT), ".").replace(folder, "…") for what, reason in rounds.missing.items()
                },
                "systems": described,
                "sizes": asdict(sizes),
                "minutes": round((time.monotonic() - started) / 60, 1),
                "machine": {**machine(), "postgresql": f"{server.version // 10_000}.{server.version % 10_000}"},
            }
            return tables.added(earlier, ran) if earlier else ran

        def save() -> None:
            if options.output:
                Path(options.output).write_text(json.dumps(report(), indent=1, sort_keys=True) + "\n", "utf-8")

        try:
            rounds.run(chosen, count=options.rounds, minutes=options.budget, save=save)
        except KeyboardInterrupt:
            print("stopped; what was measured until now:")
        finally:
            save()
            print_report(report())
    if options.output and Path(options.output).resolve() == FIGURES:
        page.write()
    return 1 if rounds.missing else 0


def _chosen(names: str, *, is_quick: bool) -> list[System]:
    """Return the systems that are named; without names all, or those of a quick run."""
    if names:
        return [each for each in SYSTEMS if each.name in names.split(",")]
    in_claims = {label.split(" ")[0] for _, label in claimed()}
    return [each for each in SYSTEMS if not is_quick or each.main or each.name in in_claims]


def about(system: System) -> dict[str, Any]:
    """Install a system, and return what a reader of the figures must know about it."""
    try:
        system.install()
        versions = system.versions()
    except NotInstalled:
        versions = []
    return {"versions": versions, "store": system.store, "settings": system.settings}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"little work in {QUICK_MINUTES:.0f} minutes; no figures")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of what a claim uses [%(default)s]")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="start no measurement after this time [none]")
    parser.add_argument("--systems", default="", help=f"of {', '.join(each.name for each in SYSTEMS)} [all]")
    parser.add_argument("--measures", default=",".join(MEASURES), help="[%(default)s]")
    parser.add_argument("--settings", default="installed,tuned", help="[%(default)s]")
    parser.add_argument("--backlog", type=int, metavar="JOBS", help=f"of the measure backlog [{FULL.backlog:,}]")
    parser.add_argument("--add", action="store_true", help="keep the other measures that the output has")
    parser.add_argument("--output", metavar="FILE", help=f"JSON [{FIGURES.relative_to(ROOT)}, or none if quick]")
    options = parser.parse_args(arguments)
    options.budget = options.budget or (QUICK_MINUTES if options.quick else UNLIMITED_MINUTES)
    options.output = options.output or ("" if options.quick else str(FIGURES))
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
