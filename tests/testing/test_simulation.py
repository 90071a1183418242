"""Simulated runs of real workers: see `taskharbor.testing.simulation`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.testing.simulation import REQUIRED_COVERAGE, REQUIRED_MESSAGE_COVERAGE, run_seed, run_seeds, simulate
from taskharbor.testing.simulation.history import DriverCall

if TYPE_CHECKING:
    from taskharbor.testing.simulation import Mode, SeedReport

MIN_SEEDS: Final = 120
MAX_SEEDS: Final = 2_000


@pytest.fixture(scope="module")
def reports() -> list[SeedReport]:
    return run_until_seen(REQUIRED_COVERAGE, "polling")


@pytest.fixture(scope="module")
def message_reports() -> list[SeedReport]:
    return run_until_seen(REQUIRED_MESSAGE_COVERAGE, "sqs")


def run_until_seen(coverage: frozenset[str], mode: Mode) -> list[SeedReport]:
    """Run seeds until all of *coverage* has occurred. `benchmarks.simulation` runs thousands."""
    reports: list[SeedReport] = []
    seen: set[str] = set()
    for report in run_seeds(range(MAX_SEEDS), mode):
        reports.append(report)
        seen |= report.seen
        if len(reports) >= MIN_SEEDS and seen >= coverage:
            break
    return reports


def test_no_simulated_run_violates_an_invariant(reports: list[SeedReport]) -> None:
    failed = [report for report in reports if report.violations]

    assert not failed, "\n".join(map(str, failed))


def test_no_simulated_run_with_messages_violates_an_invariant(message_reports: list[SeedReport]) -> None:
    failed = [report for report in message_reports if report.violations]

    assert not failed, "\n".join(map(str, failed))


def test_outcomes_of_two_leases_in_one_call_are_judged_by_the_valid_lease() -> None:
    """In this run a worker settles the attempts of an expired lease and of the next one of the same job together."""
    calls = [each for each in simulate(1_000_870, "sqs").happenings if isinstance(each, DriverCall)]

    jobs = [[each.lease.job_id for each in call.arguments["what"]] for call in calls if call.verb == "settle"]
    assert any(len(set(each)) < len(each) for each in jobs), "take another seed"
    assert run_seed(1_000_870, "sqs").violations == ()


def test_required_coverage_occurs_in_some_run_with_messages(message_reports: list[SeedReport]) -> None:
    seen = {each for report in message_reports for each in report.seen}

    assert seen >= REQUIRED_MESSAGE_COVERAGE
    assert seen <= REQUIRED_COVERAGE | REQUIRED_MESSAGE_COVERAGE


def test_required_coverage_occurs_in_some_run(reports: list[SeedReport]) -> None:
    seen = {each for report in reports for each in report.seen}

    assert seen == REQUIRED_COVERAGE


def test_a_seed_makes_the_same_history_again(reports: list[SeedReport]) -> None:
    assert run_seed(17).digest == run_seed(17).digest == reports[17].digest
    assert run_seed(18).digest != reports[17].digest


@pytest.mark.parametrize("mode", ["polling", "sqs"])
@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_a_seed_makes_the_same_history_in_every_process(hash_seed: str, mode: Mode) -> None:
    command = [sys.executable, "-m", "taskharbor.testing.simulation", "17", mode]
    environment = {"PYTHONHASHSEED": hash_seed}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert shown.splitlines()[-1] == f"seed 17: 0 violations, history {simulate(17, mode).digest()}"


def test_the_history_of_a_run_contains_every_call_and_attempt() -> None:
    lines = "\n".join(simulate(17).lines())

    assert all(verb in lines for verb in ("reserve", "settle", "extend", "begins", "ends", "is quiet", "went home"))
