"""The scheduler: stored schedules, fired jobs and logged errors."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import (
    CodecMismatch,
    InvalidRequest,
    PayloadNotEncodable,
    ScheduleNotFound,
    StoreUnavailable,
)
from taskharbor.crypto import AesGcmCodec
from taskharbor.janitor import Janitor
from taskharbor.runtime import ThreadRuntime
from taskharbor.schedules import Scheduler, spec_of
from taskharbor.schedules.scheduler import MAX_TICK, SCHEDULE_BATCH
from tests.support.schedule_rig import HOUR, MINUTE, SECOND, START, ScheduleRig, fire_times, hourly, made
from tests.support.worker_rig import meddled

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_job_is_enqueued_at_the_fire_time_and_not_before(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])

    rig.pass_by(HOUR / 2 - timedelta.resolution)
    too_early = made(rig.driver)
    rig.pass_by(timedelta.resolution)

    assert too_early == []
    assert rig.hours() == [1]


def test_a_job_has_the_fields_of_its_schedule(rig: ScheduleRig) -> None:
    rig.scheduler.put(
        [hourly(payload={"n": 1}, queue="mail", timeout=MINUTE, max_attempts=3, priority=7, type="mail.digest")]
    )

    rig.pass_by(HOUR / 2 + SECOND)

    [job] = made(rig.driver)
    assert (job.type, job.queue, job.data, job.timeout, job.max_attempts, job.priority) == (
        "mail.digest", "mail", {"n": 1}, MINUTE, 3, 7,
    )  # fmt: skip
    assert job.scheduled_for == START + HOUR / 2
    assert job.created_at == START + HOUR / 2 + SECOND
    assert job.metadata == {"schedule": "hourly", "fire_time": "2030-01-01T01:00:00+00:00"}


def test_max_attempts_comes_from_the_scheduler_unless_the_schedule_sets_it(rig: ScheduleRig) -> None:
    Scheduler(rig.driver, max_attempts=4).put([hourly()])

    rig.pass_by(HOUR)

    assert [job.max_attempts for job in made(rig.driver)] == [4]


def test_a_schedule_fires_again_after_each_fire_time(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])

    for _ in range(3):
        rig.pass_by(HOUR)
        rig.scheduler.tick()

    assert rig.hours() == [1, 2, 3]
    assert rig.schedule().next_at == START + 3 * HOUR + HOUR / 2
    assert rig.schedule().last_job_id == made(rig.driver)[-1].id


def test_a_stored_schedule_equals_its_definition(rig: ScheduleRig) -> None:
    spec = hourly(
        timezone="Europe/Paris", missed="all", overlap="queue", jitter=1.5 * SECOND, window=HOUR, timeout=0.25 * SECOND,
        max_attempts=2, priority=-3, queue="mail",
    )  # fmt: skip

    rig.scheduler.put([spec])

    assert spec_of(rig.schedule()) == spec


def test_a_process_that_starts_more_often_than_its_schedule_fires_still_fires_it(rig: ScheduleRig) -> None:
    for n in range(12):
        started = Scheduler(rig.driver)
        started.put([hourly(cron=f"0 {' ' * n}*/2 * * *")])
        started.tick()
        rig.clock.advance(HOUR / 3)  # it stops long before the next one starts

    assert rig.hours() == [2, 4]


def test_a_changed_cron_applies_from_now_on(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])
    rig.scheduler.put([hourly(cron="45 * * * *")])

    rig.pass_by(HOUR)

    assert [time.minute for time in fire_times(rig.driver, "hourly")] == [45]


def test_a_schedule_fires_in_processes_that_did_not_declare_it(rig: ScheduleRig) -> None:
    Scheduler(rig.driver).put([hourly("one")])
    Scheduler(rig.driver).put([hourly("two")])

    rig.pass_by(HOUR)

    assert (rig.hours("one"), rig.hours("two")) == ([1], [1])


def test_two_schedules_of_one_name_are_refused(rig: ScheduleRig) -> None:
    with pytest.raises(InvalidRequest, match="name is 'hourly': two schedules cannot share it"):
        rig.scheduler.put([hourly(), hourly(cron="5 * * * *")])

    assert not rig.driver.inspector.schedules()


def test_a_payload_that_cannot_be_stored_is_refused_when_it_is_put(rig: ScheduleRig) -> None:
    with pytest.raises(PayloadNotEncodable):
        rig.scheduler.put([hourly(payload={1, 2})])


def test_a_paused_schedule_does_not_fire_until_it_is_resumed(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly(missed="skip")])
    rig.driver.control.pause_schedules(["hourly"])
    rig.pass_by(2 * HOUR)
    while_paused = rig.hours()
    rig.driver.control.resume_schedules(["hourly"])

    rig.pass_by(HOUR / 2)

    assert (while_paused, rig.hours()) == ([], [3])


def test_jitter_is_bounded_and_equal_in_every_process(rig: ScheduleRig) -> None:
    other = ScheduleRig()
    for each in (rig, other):
        each.scheduler.put([hourly(jitter=10 * MINUTE), hourly("other", jitter=10 * MINUTE)])
        for _ in range(20):
            each.pass_by(HOUR)

    delays = [job.scheduled_for.minute * MINUTE + job.scheduled_for.second * SECOND for job in made(rig.driver)]
    assert [job.scheduled_for for job in made(rig.driver)] == [job.scheduled_for for job in made(other.driver)]
    assert all(delay < 10 * MINUTE for delay in delays)
    assert max(delays) - min(delays) > 5 * MINUTE
    assert len(set(delays)) > 35


def test_run_now_enqueues_a_job_and_keeps_the_next_fire_time(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly(payload=[7], priority=2)])
    before = rig.schedule()

    enqueued = rig.scheduler.run_now("hourly")

    [job] = made(rig.driver)
    assert (job.id, job.data, job.priority, job.metadata) == (enqueued.id, [7], 2, {"schedule": "hourly"})
    assert rig.schedule() == before


def test_run_now_with_the_same_key_enqueues_one_job(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])

    first, second = (rig.scheduler.run_now("hourly", idempotency_key="button") for _ in range(2))

    assert (first.id, first.existed, second.existed) == (second.id, False, True)


def test_run_now_of_an_unknown_schedule_suggests_the_nearest_name(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])

    with pytest.raises(ScheduleNotFound, match="schedule 'hourli' not found; did you mean 'hourly'"):
        rig.scheduler.run_now("hourli")


def test_a_payload_is_encrypted_for_its_schedule_and_again_per_job(rig: ScheduleRig) -> None:
    codec = AesGcmCodec({"k": bytes(32)})
    scheduler = Scheduler(rig.driver, codec=codec)
    scheduler.put([hourly(payload={"card": "4111"})])
    rig.clock.advance(HOUR)

    scheduler.tick()
    scheduler.run_now("hourly")

    jobs = made(rig.driver)
    assert [replace(job, codec=codec).data for job in jobs] == [{"card": "4111"}] * 2
    assert b"4111" not in rig.schedule().payload + jobs[0].payload + jobs[1].payload


def test_a_schedule_that_cannot_be_fired_here_is_logged_once_and_skipped(
    rig: ScheduleRig, caplog: pytest.LogCaptureFixture
) -> None:
    with_key = Scheduler(rig.driver, codec=AesGcmCodec({"old": bytes(32), "new": bytes(range(32))}))
    with_key.put([hourly("secret")])
    rig.scheduler = Scheduler(rig.driver, codec=AesGcmCodec({"old": bytes(32)}))
    rig.scheduler.put([hourly("plain", cron="5 * * * *")])

    with caplog.at_level(logging.ERROR):
        rig.pass_by(HOUR)
        rig.pass_by(MINUTE)
    without_key = rig.hours("secret"), rig.hours("plain")
    with_key.tick()

    assert without_key == ([], [1])
    assert rig.hours("secret") == [1]
    assert len([line for line in caplog.messages if "schedule secret not fired by this process" in line]) == 1


class ForgetfulCodec(JsonCodec):
    """A user's codec whose key service does not know a key."""

    def decode(self, data: bytes, *, context: bytes) -> Any:
        if b"forgotten" in data:
            raise KeyError("key 7")
        return super().decode(data, context=context)


def test_a_codec_that_raises_keeps_no_other_schedule_from_firing(
    rig: ScheduleRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.scheduler = Scheduler(rig.driver, codec=ForgetfulCodec())
    rig.scheduler.put([hourly("bad", payload="forgotten"), hourly("good", cron="5 * * * *")])

    rig.pass_by(HOUR)

    assert (rig.hours("bad"), rig.hours("good")) == ([], [1])
    assert "schedule bad not fired by this process: 'key 7'" in caplog.text


def test_a_schedule_whose_row_is_locked_does_not_keep_others_from_firing(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.scheduler.put([hourly("locked"), hourly("good", cron="5 * * * *")])
    advance = rig.driver.maintenance.advance_schedule

    def refuse(name: str, **fields: Any) -> bool:
        if name == "locked":
            raise StoreUnavailable("another transaction held a lock for too long")
        return advance(name, **fields)

    monkeypatch.setattr(rig.driver.maintenance, "advance_schedule", refuse)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            rig.pass_by(HOUR)

    assert (rig.hours("locked"), rig.hours("good")) == ([], [2])


def test_an_unreadable_schedule_does_not_block_others(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly("a"), hourly("b"), hourly("good", cron="5 * * * *")])
    rig.driver.control.put_schedules(
        [
            replace(rig.schedule("a"), options={"jitter": "much"}),
            replace(rig.schedule("b"), timezone="Mars/Phobos", next_at=START),
        ]
    )

    rig.pass_by(HOUR)

    assert rig.hours("good") == [1]


def test_waiting_schedules_do_not_block_others(rig: ScheduleRig) -> None:
    waiting = [hourly(f"waits-{n}", overlap="queue") for n in range(2 * SCHEDULE_BATCH)]
    rig.scheduler.put([*waiting, hourly("other", cron="5 * * * *")])

    rig.pass_by(HOUR)
    rig.pass_by(HOUR)

    assert rig.hours("other") == [1, 2]
    assert len(made(rig.driver)) == 2 * SCHEDULE_BATCH + 2


def test_a_tick_returns_the_capped_time_to_the_next_minute(rig: ScheduleRig) -> None:
    pauses = []
    for seconds in (20, 59.75, 60):
        rig.clock.advance(START + timedelta(seconds=seconds) - rig.clock.now())
        pauses.append(rig.scheduler.tick())

    assert pauses == [MAX_TICK, 0.25 * SECOND, MAX_TICK]


def test_a_janitor_fires_schedules_and_pauses_as_the_scheduler_returns(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])
    janitor = Janitor(ThreadRuntime(sync_threads=1), rig.driver, lease=MINUTE, scheduler=rig.scheduler)
    rig.clock.advance(HOUR / 2 - 0.5 * SECOND)

    pause = janitor.tick()
    rig.clock.advance(0.5 * SECOND)
    Janitor(ThreadRuntime(sync_threads=1), rig.driver, lease=MINUTE, scheduler=rig.scheduler).tick()

    assert timedelta(0) <= pause <= 0.5 * SECOND
    assert rig.hours() == [1]


def test_a_janitor_that_fires_schedules_survives_an_unavailable_store(rig: ScheduleRig) -> None:
    def refuse(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "due_schedules":
            raise StoreUnavailable("unplugged by a test")
        return call()

    away = Scheduler(meddled(rig.driver, refuse))
    pause = Janitor(ThreadRuntime(sync_threads=1), rig.driver, lease=MINUTE, scheduler=away).tick()

    assert timedelta(0) < pause <= MAX_TICK


def test_a_scheduler_with_another_codec_than_the_stores_writes_nothing(
    rig: ScheduleRig, caplog: pytest.LogCaptureFixture
) -> None:
    encrypting = Scheduler(rig.driver, codec=AesGcmCodec({"k": bytes(32)}))
    encrypting.put([hourly()])
    rig.driver.control.put_schedules([replace(rig.schedule(), payload=b"null")])  # written by another codec

    with pytest.raises(CodecMismatch):
        rig.scheduler.put([hourly("another")])
    rig.pass_by(HOUR)

    assert (made(rig.driver), [*rig.driver.inspector.schedules()]) == ([], ["hourly"])
    assert "schedule hourly not fired by this process: the payloads in this store" in caplog.text


def test_each_fire_time_is_a_run_with_its_job(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])
    for _ in range(2):
        rig.pass_by(HOUR)
        rig.scheduler.tick()

    runs = rig.driver.inspector.schedule_runs(["hourly"], limit=10)

    jobs = made(rig.driver)
    assert [(run.fire_time, run.job_id) for run in runs] == [
        (job.scheduled_for, job.id) for job in sorted(jobs, key=lambda job: job.scheduled_for, reverse=True)
    ]


@pytest.mark.parametrize(
    ("options", "skipped"),
    [({"missed": "skip"}, "missed"), ({"missed": "once"}, "missed"), ({"overlap": "skip"}, "overlap")],
)
def test_a_fire_time_without_a_job_is_a_run_with_the_reason(
    rig: ScheduleRig, options: dict[str, Any], skipped: str
) -> None:
    rig.scheduler.put([hourly(**options)])
    if "overlap" in options:
        rig.pass_by(HOUR)
    rig.clock.advance((1 if "overlap" in options else 3) * HOUR)
    rig.scheduler.tick()

    runs = rig.driver.inspector.schedule_runs(["hourly"], limit=10)

    assert [run.skipped for run in runs if run.job_id is None] == [skipped]


def test_a_run_that_was_asked_for_has_no_fire_time(rig: ScheduleRig) -> None:
    rig.scheduler.put([hourly()])
    enqueued = rig.scheduler.run_now("hourly", idempotency_key="once")
    rig.scheduler.run_now("hourly", idempotency_key="once")

    [run] = rig.driver.inspector.schedule_runs(["hourly"], limit=10)

    assert (run.job_id, run.fire_time, run.skipped) == (enqueued.id, None, None)
