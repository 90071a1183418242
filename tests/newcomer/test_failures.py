"""What goes wrong in the first hour, and what a person sees."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.support.shell import Shell

STORE: Final = "--url sqlite:///shop.db"
MIXED: Final = """
from datetime import timedelta

from taskharbor import Fixed, Harbor, RetryPolicy

harbor = Harbor("sqlite:///jobs.db", policy=RetryPolicy(backoff=Fixed(timedelta(hours=1))))


@harbor.task
def fine(number: int) -> int:
    return number


@harbor.task
def flaky(number: int) -> None:
    raise ConnectionError(f"mail server {number} is away")


@harbor.task(max_attempts=1)
def hopeless() -> None:
    raise ValueError("no such customer")


if __name__ == "__main__":
    harbor.enqueue_many(fine.call(number) for number in range(100))
    harbor.enqueue_many(flaky.call(number) for number in range(5))
    hopeless.enqueue()
"""


def dead_thumbnail(shop: Shell) -> str:
    """Run a job that dies in its only attempt, and return its id."""
    enqueued = shop.run("taskharbor enqueue thumbnail picture=nut.gif --json")
    assert enqueued.code == 0, enqueued
    job_id: str = json.loads(enqueued.out)["id"]
    run_to_end(shop, job_id)
    return job_id


def run_to_end(shop: Shell, job_id: str) -> None:
    with shop.background("taskharbor worker") as worker:
        worker.wait_for("thumbnail")
        waited = shop.run(f"taskharbor jobs wait {job_id} {STORE}")
    assert waited.code == 8, waited


def test_a_dead_job_shows_its_traceback_and_is_requeued_for_its_own_attempts(shop: Shell) -> None:
    job_id = dead_thumbnail(shop)

    shown = shop.run(f"taskharbor jobs show {job_id} {STORE}")
    assert "PictureBroken: nut.gif is not a PNG file" in shown.out
    assert 'shop/images.py", line ' in shown.out

    requeued = shop.run(f"taskharbor jobs requeue {job_id} {STORE}")
    assert requeued.code == 0, requeued
    run_to_end(shop, job_id)
    again = json.loads(shop.run(f"taskharbor jobs show {job_id} --json {STORE}").out)
    assert (again["status"], again["attempt_count"]) == ("DEAD", 2), "the task allows one attempt for each requeue"


def test_a_pipe_gets_the_whole_error(shop: Shell) -> None:
    dead_thumbnail(shop)

    listed = shop.run(f"taskharbor dead list {STORE}")

    assert "nut.gif is not a PNG file" in listed.out
    assert "…" not in listed.out


def test_an_option_of_the_task_holds_for_the_command_line(shop: Shell) -> None:
    enqueued = shop.run("taskharbor enqueue confirm order_id=7 email=ada@example.org --json")

    job = json.loads(enqueued.out)
    assert (job["queue"], job["max_attempts"], job["timeout"]) == ("mail", 3, 30)


def test_a_payload_that_does_not_fit_is_refused_with_its_field(shop: Shell) -> None:
    wrong = shop.run("taskharbor enqueue thumbnail width=wide picture=nut.png")
    assert wrong.code == 2, wrong
    assert "width" in wrong.err

    misspelled = shop.run("taskharbor enqueue thumbnial picture=nut.png")
    assert misspelled.code == 2, misspelled
    assert "did you mean 'thumbnail'?" in misspelled.err


def test_the_log_has_a_line_for_each_success_a_warning_for_each_failure_and_one_error(shell: Shell) -> None:
    shell.write("mixed.py", MIXED)
    assert shell.run("python mixed.py").code == 0
    with shell.background("taskharbor worker mixed.py") as worker:
        worker.wait_for("ValueError: no such customer")
        worker.wait_for("is away", count=5)
        worker.wait_for(": succeeded in ", count=100)

    lines = worker.log().splitlines()
    failed = [line for line in lines if " WARNING " in line]
    assert len(failed) == 5
    for line in failed:
        assert re.search(r"attempt 1 of 20: failed after .* ms; retrying in 1 h: ConnectionError: mail server \d", line)
    [died] = [line for line in lines if " ERROR " in line]
    assert "(hopeless) attempt 1 of 1: failed after" in died
    assert 'mixed.py", line ' in worker.log(), "the traceback of the death"
    assert worker.log().count("Traceback") == 1
    assert len([line for line in lines if " INFO " in line]) == 103, "one for each success, start, stop, and the end"


def test_a_quiet_worker_logs_problems_only_and_json_has_them_as_fields(shell: Shell) -> None:
    shell.write("mixed.py", MIXED)
    assert shell.run("python mixed.py").code == 0
    with shell.background("taskharbor worker mixed.py --quiet --json") as worker:
        worker.wait_for("no such customer")
        worker.wait_for("is away", count=5)

    entries = [json.loads(line) for line in worker.log().splitlines()]
    assert len(entries) == 6
    [death] = [entry for entry in entries if entry["level"] == "ERROR"]
    assert (death["type"], death["attempt"]) == ("hopeless", 1)
    assert "no such customer" in death["error"]
    assert "Traceback" in json.dumps(death)


def test_two_tasks_of_one_name_are_refused_with_both_places(shop: Shell) -> None:
    shop.write("shop/images.py", (shop.folder / "shop" / "images.py").read_text() + SECOND)

    ran = shop.run("taskharbor worker")

    assert ran.code == 10, ran
    [line] = ran.err.splitlines()
    assert len(re.findall(r"images\.py(?:, line |:)\d+", line)) >= 2, line
    assert "signatures.py" not in line


def test_an_error_of_the_app_names_the_file_and_line_of_the_user(shop: Shell) -> None:
    shop.write("shop/images.py", (shop.folder / "shop" / "images.py").read_text() + UNSTORABLE)

    ran = shop.run("taskharbor worker")

    assert ran.code == 10, ran
    [line] = ran.err.splitlines()
    assert re.search(r"images\.py(, line |:)\d+", line), line
    assert "folder" in line
    assert "Path" in line


def test_an_app_without_tasks_says_to_include_the_modules(shop: Shell) -> None:
    shop.write("shop/jobs.py", "from taskharbor import Harbor\n\nharbor = Harbor('sqlite:///shop.db')\n")

    ran = shop.run("taskharbor worker")

    assert ran.code == 10, ran
    assert "include" in ran.err


def test_a_job_of_a_type_that_this_worker_does_not_know_is_left_for_others(shop: Shell, shell: Shell) -> None:
    shell.write("other.py", OTHER)
    enqueued = shell.run("taskharbor enqueue newer --app other.py --json")
    assert enqueued.code == 0, enqueued
    job_id = json.loads(enqueued.out)["id"]
    with shop.background("taskharbor worker --queues default,mail,images") as worker:
        worker.wait_for("thumbnail")

        why = shop.run(f"taskharbor jobs why {job_id} {STORE}")

    assert why.code == 0, why
    assert "'newer'" in why.out
    assert json.loads(shop.run(f"taskharbor jobs show {job_id} --json {STORE}").out)["status"] == "PENDING"


def test_a_schedule_that_the_code_no_longer_has_is_shown_and_deleted(shop: Shell) -> None:
    module = shop.folder / "shop" / "mail.py"
    before = module.read_text()
    module.write_text(before + SCHEDULED)
    with shop.background("taskharbor worker") as worker:
        worker.wait_for("digest")
        shown = shop.run(f"taskharbor schedules list {STORE}")
        assert "digest" in shown.out
    module.write_text(before)

    deleted = shop.run(f"taskharbor schedules delete digest {STORE}")

    assert deleted.code == 0, deleted
    assert "digest" not in shop.run(f"taskharbor schedules list {STORE}").out


SECOND: Final = """

@harbor.task(queue="images")
def thumbnail(picture: str) -> str:
    return picture
"""
UNSTORABLE: Final = """

from pathlib import Path


@harbor.task
def tidy(folder: Path) -> None:
    folder.rmdir()
"""
OTHER: Final = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///shop.db")


@harbor.task
def newer() -> None: ...
"""
SCHEDULED: Final = """

@harbor.schedule("0 3 * * *")
@harbor.task
def digest() -> None: ...
"""
