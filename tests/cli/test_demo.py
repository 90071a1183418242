"""The demo's ledger detects lost and overlapping jobs."""

from __future__ import annotations

from taskharbor import Status
from taskharbor.cli.demo.handlers import Effect, What
from taskharbor.cli.demo.ledger import Ledger, ledger
from taskharbor.core.model import AttemptOutcome


def at(seconds: float, what: What, *, pid: int = 1, job: str = "a", token: str = "t") -> Effect:
    return Effect(what=what, pid=pid, at=seconds, job=job, token=token)


def test_a_job_that_ran_once_makes_a_clean_ledger() -> None:
    found = judged(at(1, "begin"), at(2, "done"))

    assert found.is_clean
    assert (found.accepted, found.succeeded, found.dead) == (1, 1, 0)


def test_a_job_that_is_not_in_the_store_is_lost() -> None:
    found = ledger(["a", "b"], {"a": Status.SUCCEEDED}, [], [at(1, "begin"), at(2, "done")])

    assert found.lost == 1
    assert not found.is_clean


def test_a_succeeded_job_without_a_finished_handler_is_lost() -> None:
    assert judged(at(1, "begin"), at(2, "failed")).lost == 1


def test_a_job_that_has_not_ended_is_unfinished() -> None:
    found = ledger(["a"], {"a": Status.PROCESSING}, [], [at(1, "begin")])

    assert found.unfinished == 1
    assert not found.is_clean


def test_an_attempt_that_begins_before_the_last_one_ended_overlaps() -> None:
    found = judged(at(1, "begin"), at(2, "begin", pid=2, token="u"), at(3, "done"), at(4, "done", pid=2, token="u"))

    assert found.overlapping == 1
    assert not found.is_clean


def test_an_attempt_whose_process_is_not_known_to_be_dead_overlaps_with_the_next() -> None:
    assert judged(at(1, "begin"), at(9, "begin", pid=2, token="u"), at(10, "done", pid=2, token="u")).overlapping == 1


def test_a_job_recovers_when_it_runs_again_after_its_process_died() -> None:
    effects = [at(1, "begin"), at(2, "died", job="", token=""), at(4.5, "begin", pid=2), at(5, "done", pid=2)]
    found = ledger(["a"], {"a": Status.SUCCEEDED}, [AttemptOutcome.LOST], again(effects))

    assert (found.overlapping, found.recoveries, found.lost_attempts) == (0, (2.5,), 1)


def again(effects: list[Effect]) -> list[Effect]:
    """Return *effects*, with another token for the second process."""
    return [
        Effect(what=each.what, pid=each.pid, at=each.at, job=each.job, token="u") if each.pid == 2 else each
        for each in effects
    ]


def judged(*effects: Effect) -> Ledger:
    return ledger(["a"], {"a": Status.SUCCEEDED}, [], effects)
