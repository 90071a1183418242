"""The planted bugs are all run, and their files mirror the tests."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Final

from tests.planted.__main__ import FOLDERS
from tests.planted.bugs import all_bugs
from tests.planted.sql import LIST
from tests.planted.sql_edits import all_edits

DASHBOARD: Final = Path(__file__).resolve().parents[2] / "docs" / "dashboard.md"
PLANTS_ITSELF: Final = "test_the_import_contract_rejects_an_api_that_needs_the_dashboard"
"""It breaks the contract in a copy, because the linter is another process."""


def test_each_of_the_forty_checks_of_the_dashboard_has_a_planted_bug() -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", DASHBOARD.read_text("utf-8"), re.MULTILINE)
    caught = {by.rpartition("::")[2].partition("[")[0] for bug in all_bugs() for by in bug.by} | {PLANTS_ITSELF}

    checks = {int(number): set(re.findall(r"`(test_\w+)`", text)) for number, text in rows}

    assert sorted(checks) == [*range(1, 41)]
    assert [number for number, tests in checks.items() if not tests & caught] == []


def test_every_planted_bug_belongs_to_one_group() -> None:
    folders = list(chain.from_iterable(FOLDERS.values()))

    found = {bug.tests: [folder for folder in folders if bug.tests.startswith(folder)] for bug in all_bugs()}

    assert {tests: groups for tests, groups in found.items() if len(groups) != 1} == {}


def test_every_edit_of_sql_is_listed_and_exists() -> None:
    listed = tomllib.loads(LIST.read_text("utf-8"))

    assert {*listed["caught"], *listed["harmless"]} == {edit.name for edit in all_edits()}
