"""The planted bugs are all run, and their files mirror the tests."""

from __future__ import annotations

import tomllib
from itertools import chain

from tests.planted.__main__ import FOLDERS
from tests.planted.bugs import all_bugs
from tests.planted.sql import LIST
from tests.planted.sql_edits import all_edits


def test_every_planted_bug_belongs_to_one_group() -> None:
    folders = list(chain.from_iterable(FOLDERS.values()))

    found = {bug.tests: [folder for folder in folders if bug.tests.startswith(folder)] for bug in all_bugs()}

    assert {tests: groups for tests, groups in found.items() if len(groups) != 1} == {}


def test_every_edit_of_sql_is_listed_and_exists() -> None:
    listed = tomllib.loads(LIST.read_text("utf-8"))

    assert {*listed["caught"], *listed["harmless"]} == {edit.name for edit in all_edits()}
