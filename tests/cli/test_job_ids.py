"""Job ids shortened to a unique beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from taskharbor import Status
from taskharbor.cli.main import ExitCode
from taskharbor.core.ids import JobId
from taskharbor.testing.conformance.subject import new_job

if TYPE_CHECKING:
    from tests.support.console import Console

ONE = JobId(UUID("01a1e463-fcb8-7134-9f0d-ff13d29f3bdf"))
TWO = JobId(UUID("01a1e463-fef1-75ee-9624-a2ca3a8d5c3f"))
LAST = JobId(UUID("ffffffff-ffff-7fff-bfff-ffffffffffff"))


def stored(console: Console, *ids: JobId) -> None:
    console.driver.insert([new_job(id=each, type="mail.send") for each in ids])


@pytest.mark.parametrize(
    "text", [str(TWO), TWO.hex, "01a1e463-fe", "01A1E463FEF1", "01a1e463-fef1-", " 01a1e463-fef1-75ee-9624-a2ca3a8d5c3"]
)
def test_an_id_may_be_shortened_to_a_unique_beginning(text: str, any_console: Console) -> None:
    stored(any_console, ONE, TWO, LAST)

    assert any_console("jobs", "show", text, "--json").data["id"] == str(TWO)


def test_the_highest_prefix_is_found(any_console: Console) -> None:
    stored(any_console, ONE, LAST)

    assert any_console("jobs", "show", "ffff", "--json").data["id"] == str(LAST)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["jobs", "show"], ExitCode.OK),
        (["jobs", "wait"], ExitCode.JOB_FAILED),
        (["jobs", "cancel"], ExitCode.CONFLICT),
        (["jobs", "requeue"], ExitCode.OK),
        (["jobs", "why"], ExitCode.OK),
        (["dead", "requeue"], ExitCode.OK),
        (["dead", "purge", "--yes"], ExitCode.OK),
        (["jobs", "list", "--after"], ExitCode.OK),
        (["dead", "list", "--after"], ExitCode.OK),
    ],
)
def test_every_command_takes_a_shortened_id(words: list[str], code: ExitCode, console: Console) -> None:
    job_id = console.dead()

    said = console(*words, str(job_id)[:13])

    assert said.code == code
    assert "job id" not in said.err


def test_an_ambiguous_beginning_changes_nothing_and_lists_the_newest_jobs(any_console: Console) -> None:
    ids = [JobId(UUID(int=ONE.int + step)) for step in range(4)]
    stored(any_console, *ids)

    said = any_console("jobs", "cancel", "01a1e463")

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    candidates = ", ".join(f"{job_id} (mail.send, PENDING)" for job_id in (ids[3], ids[2], ids[1]))
    assert said.err == f"error: several job ids begin with '01a1e463': {candidates} and others; give more characters\n"
    assert {any_console.job(job_id).status for job_id in ids} == {Status.PENDING}


def test_a_beginning_of_two_ids_lists_both(console: Console) -> None:
    stored(console, ONE, TWO)

    err = console("jobs", "show", "01a1e463-f").err

    assert err == (
        f"error: several job ids begin with '01a1e463-f': {TWO} (mail.send, PENDING), {ONE} (mail.send, PENDING); "
        "give more characters\n"
    )


def test_a_beginning_that_no_id_has_ends_with_4(any_console: Console) -> None:
    stored(any_console, ONE)

    said = any_console("jobs", "show", "01a1e464")

    assert (said.code, said.out) == (ExitCode.NOT_FOUND, "")
    assert said.err == "error: no job id begins with '01a1e464'; 'taskharbor jobs list' shows the newest\n"


@pytest.mark.parametrize("typed", [str(ONE).replace("-9f0d", "-9fd"), str(ONE).replace("fcb8", "fcb_")])
def test_a_mistyped_id_suggests_the_nearest(typed: str, console: Console) -> None:
    stored(console, ONE)

    assert f"did you mean {str(ONE)!r}?" in console("jobs", "show", typed).err


@pytest.mark.parametrize("text", ["01a", "", "01-a", "01a1e46g", f"{ONE}0"])
def test_a_text_that_cannot_begin_an_id_is_a_usage_error(text: str, console: Console) -> None:
    stored(console, ONE)

    said = console("jobs", "cancel", text)

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    assert "is not a job id: give the UUID, or at least its first 4 characters" in said.err
    assert console.job(ONE).status is Status.PENDING
