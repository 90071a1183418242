"""Omit every condition, lock and conflict clause of the SQL stores in turn. A test must catch each omission.

python -m tests.planted.sql            check that the test named in sql.toml catches each edit
python -m tests.planted.sql search [postgres|sqlite]
                                       find a kit case for each edit missing from sql.toml, and print the lines

``sql.toml`` has a line for each edit: the kit case or the test that fails because of it, or,
under ``[harmless]``, the reason why no result depends on it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
import tomllib
from contextlib import closing, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.planted.bugs import KIT
from tests.planted.planter import QUIET, Planter, Report, kit_cases
from tests.planted.servers import SHARED, shared_server
from tests.planted.sql_edits import DRIVERS, STORES, SqlEdit, all_edits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIST: Final = Path(__file__).with_name("sql.toml")
DEADLINE_SECONDS: Final = 120.0
SEARCH_DEADLINE_SECONDS: Final = 600.0


def plant(edit: SqlEdit, tests: Sequence[str]) -> Report:
    """Run *tests*, or the whole kit if empty, on the store with *edit* applied."""
    assert edit.module not in sys.modules
    sys.meta_path.insert(0, Planter(edit))
    if edit.is_migration:
        edit_migration(edit)
        os.environ[SHARED] = os.environ[SHARED].partition("/")[0]  # noqa: TID251  without the template
    report = Report()
    if tests and "::" in tests[0]:
        with redirect_stdout(StringIO()):
            pytest.main([*QUIET, *tests], plugins=[report])
    else:
        run_kit(report, edit.store, tests)
    return report


def edit_migration(edit: SqlEdit) -> None:
    """Change the migration while it is loaded, because modules that import the migrations keep them."""
    migrate: Any = importlib.import_module("taskharbor.drivers.migrate")
    load, file = migrate.load_migrations, DRIVERS / edit.file
    sql = edit.planted_in(file.read_text("utf-8"))

    def load_planted(package: str) -> tuple[Any, ...]:
        is_ours = package == f"taskharbor.drivers.{edit.store}.migrations"
        return tuple(replace(each, sql=sql) if is_ours and each.name == file.stem else each for each in load(package))

    migrate.load_migrations = load_planted


def run_kit(report: Report, store: str, names: Sequence[str]) -> None:
    """Run cases of the kit until one fails."""
    drivers = importlib.import_module("tests.conformance.test_drivers")
    for name, case, arguments in kit_cases(*KIT):
        if names and not {name, name.partition("[")[0]} & {*names}:
            continue
        with tempfile.TemporaryDirectory() as folder:
            opened = open_subject(drivers, store, Path(folder))
            with closing(opened.driver):
                report.run(name, case, {"subject": opened, **arguments})
        if report.failed:
            return


def open_subject(drivers: Any, store: str, folder: Path) -> Any:
    return drivers.sqlite(folder) if store == "sqlite" else drivers.postgres()


def main(arguments: Sequence[str]) -> int:
    searches, stores = arguments[:1] == ["search"], arguments[1:] or STORES
    listed = tomllib.loads(LIST.read_text("utf-8")) if LIST.exists() else {}
    caught, harmless = listed.get("caught", {}), listed.get("harmless", {})
    edits = {edit.name: edit for edit in all_edits()}
    unlisted = [name for name in edits if name not in caught and name not in harmless]
    stale = sorted({*caught, *harmless} - {*edits})
    if searches:
        for edit, report in plant_all(
            {edits[name]: [] for name in unlisted if edits[name].store in stores}, SEARCH_DEADLINE_SECONDS
        ):
            print(f'"{edit.name}" = "{report.failed[0] if report.failed else "NOT CAUGHT"}"', flush=True)
        return 0
    reports = dict(plant_all({edits[name]: [test] for name, test in caught.items() if name in edits}, DEADLINE_SECONDS))
    survivors = [edit.name for edit, report in reports.items() if not report.failed]
    for name in survivors:
        print(f"NOT CAUGHT: {name} by {caught[name]}")
    for name in unlisted:
        print(f"NOT LISTED: {name} (python -m tests.planted.sql search)")
    for name in stale:
        print(f"NO LONGER EXISTS: {name}")
    print(f"{len(reports) - len(survivors)} of {len(edits)} edits of SQL caught, {len(harmless)} harmless")
    return 1 if survivors or unlisted or stale else 0


def plant_all(edits: Mapping[SqlEdit, Sequence[str]], deadline: float) -> Iterator[tuple[SqlEdit, Report]]:
    """Run each edit in its own process, forked before its store is imported. All share one server."""
    fork = multiprocessing.get_context("fork")
    importlib.import_module("taskharbor.testing.conformance")  # once for all
    with shared_server(), fork.Pool(2 * (os.cpu_count() or 1), maxtasksperchild=1) as pool:
        pending = {edit: pool.apply_async(plant, (edit, tests)) for edit, tests in edits.items()}
        yield from ((edit, _report(result, deadline)) for edit, result in pending.items())


def _report(result: Any, deadline: float) -> Report:
    try:
        report: Report = result.get(deadline)
    except multiprocessing.TimeoutError:
        return Report()  # a run that timed out has caught nothing
    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
