"""Tests of the pytest plugin, each in a pytest process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """
from taskharbor import Harbor

harbor = Harbor("postgresql://user@127.0.0.1:1/unreachable")

@harbor.task
def double(number: int) -> int:
    return 2 * number
"""
TEST = """
from shop import double

def test_it(harness):
    handle = double.enqueue(21)
    harness.assert_enqueued(double, 21)
    harness.drain()
    assert handle.result() == 42
"""


def pytest_in(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "shop.py").write_text(TASKS)
    (folder / "test_shop.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *options, "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_fixture_uses_the_harbor_named_in_the_settings(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, TEST, "-o", "taskharbor_harbor=shop:harbor", "-o", "pythonpath=.")

    assert done.returncode == 0, done.stdout


def test_a_fixture_of_the_suite_may_name_the_harbor(tmp_path: Path) -> None:
    own = "import pytest, shop\n@pytest.fixture\ndef harbor_under_test():\n    return shop.harbor\n"

    done = pytest_in(tmp_path, own + TEST, "-o", "pythonpath=.")

    assert done.returncode == 0, done.stdout


def test_without_a_harbor_the_error_says_how_to_name_one(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, TEST, "-o", "pythonpath=.")

    assert done.returncode == 1
    assert 'set taskharbor_harbor = "shop.tasks:harbor" for pytest' in done.stdout


def test_an_object_that_is_no_harbor_is_refused_with_its_type(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, TEST, "-o", "taskharbor_harbor=shop:double", "-o", "pythonpath=.")

    assert "it is a Task, not a Harbor" in done.stdout
