from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta
from traceback import format_exception_only
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from taskharbor import DeadLetter, Status
from taskharbor.cli.main import ExitCode
from taskharbor.core.failure import Failure
from taskharbor.core.log_lines import AttemptLines, LogLine
from taskharbor.core.outcome import Outcome, decide_outcome
from tests.support.worker_rig import running_worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from tests.support.console import CliResult, Console


def test_jobs_are_listed_newest_first_a_line_for_each(any_console: Console) -> None:
    first, second = any_console.enqueue(), any_console.dead("two\nlines")

    said = any_console("jobs", "list")

    assert said.out.splitlines()[0] == "id\ttype\tqueue\tstatus\tattempts\tdue\tended\terror"
    assert [row[0] for row in said.rows] == [str(second), str(first)]
    assert said.rows[0][1:5] == ["greet", "default", "DEAD", "1/20"]
    assert said.rows[0][7] == r"LookupError: two\nlines"
    assert said.rows[1][6:] == ["", ""]


def test_an_empty_job_list_prints_a_message_to_stderr(console: Console) -> None:
    said = console("jobs", "list")

    assert (said.code, said.out, said.err) == (ExitCode.OK, "", "no matching jobs\n")


def test_an_empty_list_of_an_unknown_queue_suggests_another(console: Console) -> None:
    console.enqueue(queue="mail")

    hint = ": queue 'mial' not found; did you mean 'mail'?\n"
    assert console("jobs", "list", "--queue", "mial").err == f"no matching jobs{hint}"
    assert console("dead", "list", "--queue", "mial").err == f"no matching dead letters{hint}"
    assert console("dead", "requeue", "--queue", "mial").err == f"no matching dead letters{hint}"
    assert console("dead", "list", "--queue", "mail").err == "no matching dead letters\n"


FILTERS = [
    (["--status", "dead"], {"dead"}),
    (["--status", "DEAD", "-s", "pending"], {"dead", "mail", "tagged"}),
    (["--queue", "mail"], {"mail"}),
    (["--type", "other"], {"tagged"}),
    (["--tag", "tenant=acme"], {"tagged"}),
    (["--since", "1h"], {"dead", "mail", "tagged"}),
    (["--until", "1h"], set()),
    (["--since", "2100-01-01T00:00Z"], set()),
    (["--queue", "mail", "--status", "DEAD"], set()),
]


@pytest.mark.parametrize(("words", "expected"), FILTERS, ids=[" ".join(words) for words, _ in FILTERS])
def test_filters_select_matching_jobs(words: list[str], expected: set[str], any_console: Console) -> None:
    names = {
        any_console.dead(): "dead",
        any_console.enqueue(queue="mail"): "mail",
        any_console.enqueue("other", metadata={"tenant": "acme"}): "tagged",
    }

    found = any_console("jobs", "list", "--json", *words).data["jobs"]

    by_id = {str(job_id): name for job_id, name in names.items()}
    assert {by_id[job["id"]] for job in found} == expected


def test_jobs_are_found_by_their_idempotency_key_in_every_queue(any_console: Console) -> None:
    ids = [any_console.enqueue(idempotency_key="k", queue=queue) for queue in ("default", "mail")]
    any_console.enqueue(idempotency_key="other")

    assert [row[0] for row in any_console("jobs", "list", "--key", "k").rows] == [str(job_id) for job_id in ids]


def test_pages_follow_each_other_and_end(any_console: Console) -> None:
    ids = [str(any_console.enqueue()) for _ in range(5)]

    first = any_console("jobs", "list", "--json", "--limit", "3").data
    second = any_console("jobs", "list", "--json", "--limit", "3", "--after", first["next"]).data

    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert (first["next"], second["next"]) == (ids[2], None)


def test_a_page_that_is_not_the_last_prints_the_next_cursor(console: Console) -> None:
    ids = [console.enqueue() for _ in range(2)]

    said = console("jobs", "list", "--limit", "1")

    assert said.err == f"more jobs: --after {ids[1]}\n"


def test_a_sparse_filter_finds_the_jobs_behind_a_thousand_others(console: Console) -> None:
    wanted = console.enqueue(queue="rare")
    console.enqueue_many(1_100)

    assert [row[0] for row in console("jobs", "list", "--queue", "rare").rows] == [str(wanted)]


def test_show_prints_all_fields_and_the_timeline(any_console: Console) -> None:
    job_id = any_console.dead("no such user", idempotency_key="k", metadata={"tenant": "acme"})

    lines = any_console("jobs", "show", str(job_id)).out.splitlines()

    facts = dict(line.split(maxsplit=1) for line in lines if line and "\t" not in line)
    assert facts["id"] == str(job_id)
    assert (facts["status"], facts["key"], facts["tags"]) == ("DEAD", "k", "tenant=acme")
    assert facts["attempts"] == "1 of 20"
    assert facts["error"] == "LookupError: no such user"
    assert "payload" not in facts
    titles, *rows = (line.split("\t") for line in lines if "\t" in line)
    created, shown, died = (dict(zip(titles, row, strict=True)) for row in rows)
    assert [each["event"] for each in (created, shown, died)] == ["created", "attempt", "died"]
    assert (shown["attempt"], shown["outcome"], shown["worker"]) == ("1", "FAILED", "w-1")
    assert (float(shown["duration"]) >= 0, shown["error"]) == (True, "LookupError: no such user")


def test_show_prints_the_newest_traceback_of_each_error(any_console: Console) -> None:
    failures = [Failure.of(caught(kind)) for kind in (KeyError, ValueError, KeyError)]
    job_id = any_console.enqueue()
    for failure in failures[:2]:
        any_console.settle(job_id, Outcome.retry(after=timedelta(0), failure=failure))
    any_console.settle(job_id, Outcome.fail("gave up", failure=failures[2]))

    out = any_console("jobs", "show", str(job_id)).out
    attempts = any_console("jobs", "show", str(job_id), "--json").data["attempts"]

    assert [line for line in out.splitlines() if line.startswith("traceback of")] == [
        "traceback of attempt 2:",
        "traceback of attempt 3:",
    ]
    assert out.count("Traceback (most recent call last):\n") == 2
    assert out.endswith("in caught\n    raise kind(LONG)\n" + "".join(traceback_end(KeyError)))
    assert [attempt["error"]["traceback"] for attempt in attempts] == [failure.traceback for failure in failures]
    assert all(attempt["run_seconds"] >= 0 for attempt in attempts)


LONG = f"first line\n{'x' * 200}"


def caught(kind: type[Exception]) -> Exception:
    with pytest.raises(kind) as info:
        raise kind(LONG)
    return info.value


def traceback_end(kind: type[Exception]) -> list[str]:
    return format_exception_only(kind(LONG))


@pytest.mark.parametrize("words", [["jobs", "list"], ["dead", "list"], ["dead", "groups"]], ids=" ".join)
def test_an_error_is_cut_on_a_terminal_and_whole_in_a_pipe(
    words: list[str], console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.dead(LONG)

    piped = console(*words).rows[0][-1]
    screen = terminal(monkeypatch, columns=400)
    console(*words)

    assert piped == "LookupError: " + LONG.replace("\n", r"\n")
    assert "LookupError: first line" in screen.getvalue()
    assert "xx" not in screen.getvalue()


def test_show_on_a_terminal_prints_the_whole_error(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = console.dead(LONG)
    screen = terminal(monkeypatch, columns=80)

    console("jobs", "show", str(job_id))

    assert f"error        LookupError: first line\n{' ' * 13}{'x' * 200}\n" in screen.getvalue()


def terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int) -> Screen:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_reason_that_the_error_contains_is_printed_once(console: Console) -> None:
    job_id = console.enqueue()
    console.settle(
        job_id, decide_outcome(console.job(job_id), DeadLetter("no such user"), console.driver.inspector.now())
    )

    shown = console("jobs", "show", str(job_id)).out.partition("\n\n")[0]

    assert shown.count("no such user") == 1
    assert console("jobs", "why", str(job_id)).out.count("no such user") == 1
    assert console("jobs", "wait", str(job_id)).err.count("no such user") == 1


def test_show_prints_payload_and_result_only_on_request(console: Console) -> None:
    job_id = str(console.done(payload={"to": "Ada"}))

    plain, asked = console("jobs", "show", job_id, "--json").data, console("jobs", "show", job_id, "--payload")

    assert "payload" not in plain
    assert console("jobs", "show", job_id, "--payload", "--json").data["payload"] == {"to": "Ada"}
    assert 'payload   {"to": "Ada"}\nresult    "fine"' in asked.out


def test_show_as_json_is_the_view_of_the_api_with_its_attempts(console: Console) -> None:
    view = console("jobs", "show", str(console.dead("no such user")), "--json").data

    assert view["error"]["type"] == "LookupError"
    assert [attempt["outcome"] for attempt in view["attempts"]] == ["FAILED"]


def test_untrusted_text_cannot_control_the_terminal(console: Console) -> None:
    job_id = console.dead("\x1b[2J\x07gone\r\nnext")

    said = console("jobs", "show", str(job_id))

    assert "\x1b" not in said.out + console("jobs", "list").out
    assert "\x07" not in said.out
    assert "gone" in said.out


def test_waiting_for_a_job_prints_how_it_ended(any_console: Console) -> None:
    job_id = any_console.enqueue()

    with running_worker(any_console.driver, {"greet": lambda _: None}):
        said = any_console("jobs", "wait", str(job_id))

    assert (said.code, said.out, said.err) == (ExitCode.OK, "SUCCEEDED\n", "")


def test_waiting_for_a_dead_job_ends_with_8_and_prints_it(console: Console) -> None:
    said = console("jobs", "wait", str(console.dead()), "--json")

    assert said.code == ExitCode.JOB_FAILED
    assert '"status": "DEAD"' in said.out
    assert '"code": "job-failed"' in said.err


def test_a_wait_that_times_out_ends_with_7(console: Console) -> None:
    assert console("jobs", "wait", str(console.enqueue()), "--timeout", "1ms").code == ExitCode.TIMED_OUT_WAITING


def test_a_waiting_job_is_canceled_and_a_running_one_is_asked_to_stop(any_console: Console) -> None:
    running = any_console.running()
    waiting = any_console.enqueue()

    said = any_console("jobs", "cancel", str(waiting), str(running))

    assert said.code == ExitCode.OK
    assert said.out == f"{waiting}\tCANCELED\n{running}\tPROCESSING\n"
    assert said.err == "1 job is running and was asked to stop; 'taskharbor jobs wait ID' waits for the end\n"
    assert any_console.job(running).cancel_requested_at is not None
    assert {(entry.action, entry.target) for entry in any_console.audit()} == {
        ("jobs.cancel", str(waiting)),
        ("jobs.cancel", str(running)),
    }


def test_dead_and_canceled_jobs_are_requeued(any_console: Console) -> None:
    dead, canceled = any_console.dead(), any_console.enqueue()
    any_console.driver.cancel([canceled])

    said = any_console("jobs", "requeue", str(dead), str(canceled), "--budget", "3", "--reason", "fixed")

    job = any_console.job(dead)
    assert (said.code, said.out) == (ExitCode.OK, f"{dead}\tPENDING\n{canceled}\tPENDING\n")
    assert (job.status, job.attempt_count, job.max_attempts) == (Status.PENDING, 1, 4)
    history = any_console.driver.inspector.attempts([dead])[-1]
    assert history.failure is not None
    assert (history.worker_id, history.failure.message) == (any_console.audit()[0].actor, "fixed")


def test_a_job_requeued_without_a_budget_gets_its_own_attempts_again(any_console: Console) -> None:
    job_id = any_console.dead(max_attempts=1)

    any_console("jobs", "requeue", str(job_id))

    assert any_console.job(job_id).max_attempts == 2


@pytest.mark.parametrize("option", ["--delay", "--at"])
def test_a_requeued_job_may_have_to_wait(option: str, console: Console) -> None:
    job_id = console.dead()

    console("jobs", "requeue", str(job_id), option, "1h")

    assert console.job(job_id).scheduled_for > console.driver.inspector.now() + timedelta(minutes=59)


def test_a_requeued_job_may_be_given_another_payload(
    any_console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "body.json").write_text('["ä", 1]', encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("null"))
    given = ('{"a": [1]}', f"@{tmp_path}/body.json", "-")
    ids = [any_console.dead(payload={"to": "Eve"}) for _ in given]

    pairs = zip(ids, given, strict=True)
    said = [any_console("jobs", "requeue", str(job_id), "--payload", text) for job_id, text in pairs]

    assert [each.out for each in said] == [f"{job_id}\tPENDING\n" for job_id in ids]
    assert [any_console.job(job_id).data for job_id in ids] == [{"a": [1]}, ["ä", 1], None]
    assert [entry.detail for entry in any_console.audit()] == [{"why": "", "payload": "replaced"}] * 3


def test_without_a_payload_a_requeued_job_keeps_its_own(console: Console) -> None:
    job_id = console.dead(payload={"to": "Ada"})

    console("jobs", "requeue", str(job_id))

    assert console.job(job_id).data == {"to": "Ada"}
    assert [entry.detail for entry in console.audit()] == [{"why": ""}]


def test_a_payload_that_cannot_be_stored_leaves_the_job_dead(console: Console) -> None:
    job_id = console.dead(payload=1)

    said = console("jobs", "requeue", str(job_id), "--payload", r'["\ud800"]')

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    assert "payload[0] is not storable: a lone surrogate" in said.err
    assert (console.job(job_id).status, console.job(job_id).data) == (Status.DEAD, 1)


def test_a_job_that_cannot_be_requeued_does_not_stop_the_others(console: Console) -> None:
    done, dead, waiting = console.done(), console.dead(), console.enqueue()

    said = console("jobs", "requeue", str(done), str(dead), str(waiting))

    assert said.code == ExitCode.CONFLICT
    assert said.out == f"{dead}\tPENDING\n"
    assert said.err.splitlines() == [
        f"cannot requeue job {done}: it is SUCCEEDED",
        f"cannot requeue job {waiting}: it is PENDING",
        "error: 2 of 3 jobs not changed; see errors above",
    ]


def test_with_json_changed_jobs_are_printed_in_their_new_state(console: Console) -> None:
    job_id = console.enqueue()

    data = console("jobs", "cancel", str(job_id), "--json").data

    assert [(job["id"], job["status"]) for job in data["jobs"]] == [(str(job_id), "CANCELED")]


def test_why_says_what_a_job_waits_for(any_console: Console) -> None:
    job_id = any_console.enqueue(delay=timedelta(hours=1))

    said = any_console("jobs", "why", str(job_id))
    data = any_console("jobs", "why", str(job_id), "--json").data

    assert said.out.startswith("PENDING: it is due at ")
    assert (data["job_id"], data["cause"]) == (str(job_id), "not-due")


ON_ONE = ["show", "wait", "cancel", "requeue", "why"]


@pytest.mark.parametrize("verb", ON_ONE)
def test_a_job_that_is_not_there_ends_with_4(verb: str, console: Console) -> None:
    missing = str(uuid4())

    said = console("jobs", verb, missing)

    assert (said.code, said.out) == (ExitCode.NOT_FOUND, "")
    assert said.err == f"error: job {missing} not found; check the id\n"


def test_an_invalid_id_suggests_listing_jobs(console: Console) -> None:
    said = console("jobs", "show", "zzz")

    assert said.code == ExitCode.USAGE
    assert said.err == (
        "error: 'zzz' is not a job id: give the UUID, or at least its first 4 characters; "
        "'taskharbor jobs list' shows the newest\n"
    )


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda console, job_id: console("jobs", "cancel", str(job_id)), "cannot cancel"),
        (lambda console, job_id: console("jobs", "requeue", str(job_id)), "cannot requeue"),
    ],
)
def test_a_forbidden_transition_ends_with_5_without_an_audit_entry(
    act: Callable[[Console, JobId], CliResult], message: str, console: Console
) -> None:
    said = act(console, console.done())

    assert (said.code, said.out) == (ExitCode.CONFLICT, "")
    assert message in said.err
    assert console.audit() == []


def test_a_reason_or_a_user_that_is_not_utf8_fails_no_change(
    any_console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "andr\udce9")  # Python reads bytes of another encoding as such characters

    said = any_console("jobs", "cancel", str(job_id := any_console.enqueue()), "--reason", "caf\udce9")

    assert (said.code, said.out, said.err) == (ExitCode.OK, f"{job_id}\tCANCELED\n", "")
    [entry] = any_console.audit()
    assert entry.actor.startswith("andr\\udce9@")
    assert entry.detail == {"why": "caf\\udce9"}


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_a_time_that_cannot_be_parsed_shows_both_forms(option: str, console: Console) -> None:
    err = console("jobs", "list", option, "yesterday").err

    assert "'yesterday': write a time such as 2026-11-15T02:00Z, or 2h for two hours ago" in err


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--status", "LOST"],
        ["list", "--limit", "0"],
        ["list", "--tag", "tenant"],
        ["list", "--since", "yesterday"],
        ["list", "--after", "7"],
        ["list", "--key", "k", "--queue", "mail"],
        ["cancel"],
        ["requeue", str(uuid4()), "--budget", "0"],
        ["requeue", str(uuid4()), "--delay", "1s", "--at", "2100-01-01T00:00Z"],
        ["requeue", str(uuid4()), "--payload", "{'a': 1}"],
        ["requeue", str(uuid4()), str(uuid4()), "--payload", "{}"],
    ],
    ids=" ".join,
)
def test_a_wrong_line_is_a_usage_error(words: list[str], console: Console) -> None:
    said = console("jobs", *words)

    assert (said.code, said.out) == (ExitCode.USAGE, "")


def test_show_prints_captured_log_lines_if_asked(any_console: Console) -> None:
    job_id = any_console.done()
    job = any_console.job(job_id)
    assert job.settled_token is not None
    at = datetime(2030, 1, 2, 3, 4, 5, 67_000, tzinfo=UTC)
    lines = (LogLine(at, "INFO", "shop", "paid"), LogLine(at, "ERROR", "shop\x1b", "two\nlines \x1b[2J"))
    log = AttemptLines(job_id=job_id, token=job.settled_token, attempt=1, worker_id="w-1", dropped=1_234, lines=lines)
    any_console.driver.attempt_logs.save([log], keep=10)

    without, shown = any_console("jobs", "show", str(job_id)), any_console("jobs", "show", str(job_id), "--logs")
    data = any_console("jobs", "show", str(job_id), "--logs", "--json").data

    assert "paid" not in without.out
    assert shown.out.endswith(
        "\nlog of attempt 1 by w-1:\n"
        "  (1,234 earlier lines not kept)\n"
        "  2030-01-02 03:04:05,067 INFO    shop: paid\n"
        "  2030-01-02 03:04:05,067 ERROR   shop�: two\n"
        "    lines �[2J\n"
    )
    [listed] = data["logs"]
    assert (listed["attempt"], listed["dropped"]) == (1, 1_234)
    assert listed["lines"][0]["at"] == "2030-01-02T03:04:05.067000Z"
    assert [each["text"] for each in listed["lines"]] == ["paid", "two\nlines \x1b[2J"]


def test_show_says_that_no_lines_were_captured(console: Console) -> None:
    job_id = console.done()

    said = console("jobs", "show", str(job_id), "--logs")

    assert said.err == "no captured log lines; see 'taskharbor worker --capture-logs'\n"
    assert console("jobs", "show", str(job_id), "--logs", "--json").data["logs"] == []
