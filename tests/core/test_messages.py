from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskharbor.core.ids import JobId, new_job_id
from taskharbor.core.messages import (
    MAX_BUNDLE,
    MAX_MESSAGE_CHARS,
    MAX_UNKNOWN_RECEIVES,
    SEQ_RANGE,
    MessageAction,
    MessageDecision,
    MessageFinding,
    NamedJob,
    decide_message,
    encode_message,
    parse_message,
    resend_interval,
)
from taskharbor.core.results import RefusalReason, Refused
from taskharbor.delivery.sqs.batches import MAX_BATCH_BYTES
from taskharbor.delivery.transport import BATCH_LIMIT

few = settings(max_examples=100, deadline=None)

JOB: Final = JobId(UUID(int=7))
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)
MOMENT: Final = timedelta.resolution
VISIBILITY: Final = timedelta(seconds=30)
READABLE: Final[dict[str, Any]] = {"v": 1, "id": str(JOB), "seq": 3}


@few
@given(st.uuids(), st.sampled_from(SEQ_RANGE))
def test_a_message_round_trips(job_id: UUID, seq: int) -> None:
    named = NamedJob(JobId(job_id), seq)

    assert parse_message(encode_message([named])) == (named,)


@few
@given(st.uuids(), st.sampled_from(SEQ_RANGE))
def test_an_encoded_message_is_never_longer_than_the_limit(job_id: UUID, seq: int) -> None:
    assert len(encode_message([NamedJob(JobId(job_id), seq)])) <= MAX_MESSAGE_CHARS


named_jobs = st.builds(NamedJob, st.uuids().map(JobId), st.sampled_from(SEQ_RANGE))


@few
@given(st.lists(named_jobs, min_size=1, max_size=MAX_BUNDLE, unique_by=lambda named: named.job_id))
def test_a_message_with_several_jobs_round_trips_in_order(jobs: list[NamedJob]) -> None:
    text = encode_message(jobs)

    assert parse_message(text) == tuple(jobs)
    assert json.loads(text)["v"] == (1 if len(jobs) == 1 else 2)


def test_a_message_with_all_jobs_allowed_stays_below_the_limit() -> None:
    text = encode_message([NamedJob(new_job_id(), SEQ_RANGE[-1]) for _ in range(MAX_BUNDLE)])

    assert len(text) <= MAX_MESSAGE_CHARS
    assert BATCH_LIMIT * len(text) < MAX_BATCH_BYTES


def test_a_message_contains_only_version_id_and_seq() -> None:
    job_id = new_job_id()

    assert json.loads(encode_message([NamedJob(job_id, 3)])) == {"v": 1, "id": str(job_id), "seq": 3}


@few
@given(st.text(st.characters(exclude_categories=())))
def test_arbitrary_text_is_not_a_message(text: str) -> None:
    assert parse_message(text) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.uuids().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
near_misses = st.fixed_dictionaries(
    {},
    optional={
        "v": st.sampled_from([1, 2]) | json_values,
        "id": st.uuids().map(str) | json_values,
        "seq": st.integers(0) | json_values,
        "jobs": st.lists(st.tuples(st.uuids().map(str), st.integers(0)) | json_values, max_size=4) | json_values,
        "more": json_values,
    },
)


@few
@given(near_misses)
def test_a_parsed_message_always_has_a_uuid_and_an_int(sent: dict[str, Any]) -> None:
    for named in parse_message(json.dumps(sent)) or ():
        assert type(named.job_id) is UUID
        assert type(named.seq) is int
        assert named.seq in SEQ_RANGE


PAIR: Final = [str(JOB), 3]
OTHER: Final = [str(UUID(int=8)), 1]
BUNDLE: Final[dict[str, Any]] = {"v": 2, "jobs": [PAIR, OTHER]}
UNREADABLE: Final[dict[str, str]] = {
    "nothing": "",
    "words": "hello",
    "half of a message": json.dumps(READABLE)[:-1],
    "two messages": json.dumps(READABLE) * 2,
    "a list": json.dumps([READABLE]),
    "a number": "7",
    "not a number": "NaN",
    "no version": json.dumps({"id": str(JOB), "seq": 3}),
    "no id": json.dumps({"v": 1, "seq": 3}),
    "no seq": json.dumps({"v": 1, "id": str(JOB)}),
    "a later version": json.dumps(READABLE | {"v": 2}),
    "a version in text": json.dumps(READABLE | {"v": "1"}),
    "a version that is a truth": json.dumps(READABLE | {"v": True}),
    "a version and a seq that are truths": json.dumps(READABLE | {"v": True, "seq": True}),
    "an id that is none": json.dumps(READABLE | {"id": "7"}),
    "an id that is a number": json.dumps(READABLE | {"id": 7}),
    "a negative seq": json.dumps(READABLE | {"seq": -1}),
    "a seq in text": json.dumps(READABLE | {"seq": "3"}),
    "a seq with a fraction": json.dumps(READABLE | {"seq": 3.5}),
    "no seq but null": json.dumps(READABLE | {"seq": None}),
    "a seq that is a truth": json.dumps(READABLE | {"seq": True}),
    "a seq without end": '{"v":1,"id":"00000000-0000-0000-0000-000000000007","seq":1e999}',
    "a seq that is no number": '{"v":1,"id":"00000000-0000-0000-0000-000000000007","seq":NaN}',
    "a seq before the first": json.dumps(READABLE | {"seq": 0}),
    "a seq that no store can hold": json.dumps(READABLE | {"seq": 2**31}),
    "a seq of 64 bits": json.dumps(READABLE | {"seq": 2**63 - 1}),
    "a seq of hundreds of digits": json.dumps(READABLE | {"seq": 10**900}),
    "deep nesting": "[" * MAX_MESSAGE_CHARS,
    "deep nesting of objects": '{"v":' * (MAX_MESSAGE_CHARS // 5),
    "a lone surrogate": "\ud800",
    "too much of it": json.dumps(READABLE) + " " * MAX_MESSAGE_CHARS,
    "a gigabyte's beginning": "[" * 10_000_000,
    "several jobs in the first version": json.dumps(BUNDLE | {"v": 1}),
    "several jobs in a later version": json.dumps(BUNDLE | {"v": 3}),
    "no jobs": json.dumps(BUNDLE | {"jobs": []}),
    "one job in a list": json.dumps(BUNDLE | {"jobs": [PAIR]}),
    "jobs that are no list": json.dumps(BUNDLE | {"jobs": {"a": PAIR, "b": OTHER}}),
    "jobs without seqs": json.dumps(BUNDLE | {"jobs": [str(JOB), str(UUID(int=8))]}),
    "a job with too much": json.dumps(BUNDLE | {"jobs": [PAIR, [*OTHER, 1]]}),
    "a job with too little": json.dumps(BUNDLE | {"jobs": [PAIR, OTHER[:1]]}),
    "a job that is null": json.dumps(BUNDLE | {"jobs": [PAIR, None]}),
    "one of several ids that is none": json.dumps(BUNDLE | {"jobs": [PAIR, ["7", 1]]}),
    "one of several seqs before the first": json.dumps(BUNDLE | {"jobs": [PAIR, [OTHER[0], 0]]}),
    "one of several seqs that is a truth": json.dumps(BUNDLE | {"jobs": [PAIR, [OTHER[0], True]]}),
    "a job named twice": json.dumps(BUNDLE | {"jobs": [PAIR, [PAIR[0], 4]]}),
    "a job named twice in other letters": json.dumps(
        BUNDLE | {"jobs": [[f"{'0' * 31}a", 1], [f"{'0' * 31}A", 1]]},
    ),
    "too many jobs": json.dumps(BUNDLE | {"jobs": [[str(UUID(int=n)), 1] for n in range(MAX_BUNDLE + 1)]}),
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_an_invalid_message_is_not_parsed(text: str) -> None:
    assert parse_message(text) is None


def test_unknown_keys_are_ignored() -> None:
    assert parse_message(json.dumps(READABLE | {"trace": {"id": 1}})) == (NamedJob(JOB, 3),)
    assert parse_message(json.dumps(BUNDLE | {"trace": {"id": 1}})) == (
        NamedJob(JOB, 3),
        NamedJob(JobId(UUID(int=8)), 1),
    )


def test_a_message_at_the_size_limit_is_parsed() -> None:
    padded = json.dumps(READABLE).ljust(MAX_MESSAGE_CHARS)

    assert len(padded) == MAX_MESSAGE_CHARS
    assert parse_message(padded) == (NamedJob(JOB, 3),)
    assert parse_message(padded + " ") is None


def refused(reason: RefusalReason, *, until: timedelta | None = None, sends: int = 3) -> Refused:
    return Refused(JOB, reason, until=None if until is None else NOW + until, sends=sends)


LEAVE: Final = MessageDecision(MessageAction.LEAVE)
DELETE: Final = MessageDecision(MessageAction.DELETE)
DECLINE: Final = MessageDecision(MessageAction.DECLINE)


def hidden(time: timedelta) -> MessageDecision:
    return MessageDecision(MessageAction.LEAVE, time)


# The table of the design, row by row. The message's seq is 3, and it was received once.
VERDICTS: Final[dict[str, tuple[MessageFinding | Refused, MessageDecision]]] = {
    "body unreadable": (MessageFinding.UNREADABLE, DELETE),
    "claimed and settled": (MessageFinding.SETTLED, DELETE),
    "claimed, settlement unknown": (MessageFinding.UNSETTLED, LEAVE),
    "no slot in time": (MessageFinding.NO_SLOT, DECLINE),
    "reply of the claim lost": (MessageFinding.CLAIM_UNKNOWN, LEAVE),
    "store unavailable": (MessageFinding.STORE_AWAY, LEAVE),
    "final": (refused(RefusalReason.FINAL), DECLINE),
    "pending or failed": (refused(RefusalReason.NOT_ENQUEUED), DECLINE),
    "cancel requested": (refused(RefusalReason.CANCEL_REQUESTED), DECLINE),
    "paused": (refused(RefusalReason.PAUSED), DECLINE),
    "exhausted": (refused(RefusalReason.EXHAUSTED), DECLINE),
    "not due within V": (refused(RefusalReason.NOT_DUE, until=VISIBILITY + MOMENT), DECLINE),
    "due exactly at V": (refused(RefusalReason.NOT_DUE, until=VISIBILITY), hidden(VISIBILITY)),
    "due within V": (refused(RefusalReason.NOT_DUE, until=20 * SECOND), hidden(20 * SECOND)),
    "due in a moment": (refused(RefusalReason.NOT_DUE, until=MOMENT), hidden(SECOND)),
    "due meanwhile": (refused(RefusalReason.NOT_DUE, until=-SECOND), hidden(SECOND)),
    "leased elsewhere": (refused(RefusalReason.LEASED, until=20 * SECOND), hidden(20 * SECOND)),
    "leased for one second": (refused(RefusalReason.LEASED, until=SECOND), hidden(SECOND)),
    "leased for a moment": (refused(RefusalReason.LEASED, until=MOMENT), hidden(SECOND)),
    "lease expired meanwhile": (refused(RefusalReason.LEASED, until=-20 * SECOND), hidden(SECOND)),
    "leased for longer than V": (refused(RefusalReason.LEASED, until=10 * VISIBILITY), hidden(VISIBILITY)),
    "leased, unknown end": (refused(RefusalReason.LEASED), hidden(VISIBILITY)),
    "no handler here": (refused(RefusalReason.UNHANDLED), hidden(SECOND)),
    "job of another queue": (refused(RefusalReason.OTHER_QUEUE), DELETE),
    "job of another queue, older seq": (refused(RefusalReason.OTHER_QUEUE, sends=4), DELETE),
    "no handler here, for a while": (refused(RefusalReason.UNHANDLED, until=20 * SECOND), hidden(SECOND)),
    "unknown id": (refused(RefusalReason.NOT_FOUND, sends=0), LEAVE),
    "older seq, leased elsewhere": (refused(RefusalReason.LEASED, until=20 * SECOND, sends=4), DECLINE),
    "older seq, due within V": (refused(RefusalReason.NOT_DUE, until=20 * SECOND, sends=4), DECLINE),
    "older seq, no handler here": (refused(RefusalReason.UNHANDLED, sends=4), DECLINE),
    "older seq, final": (refused(RefusalReason.FINAL, sends=4), DECLINE),
    "newer seq than the store remembers": (
        refused(RefusalReason.LEASED, until=20 * SECOND, sends=2),
        hidden(20 * SECOND),
    ),
}


def test_a_message_without_a_handler_here_is_hidden_for_longer_each_time() -> None:
    found = refused(RefusalReason.UNHANDLED, until=20 * SECOND)

    pauses = [
        decide_message(found, seq=3, receives=receives, visibility=VISIBILITY, now=NOW).hidden_for
        for receives in (1, 2, 3, 5, 6, 1_000)
    ]

    assert pauses == [SECOND, 2 * SECOND, 4 * SECOND, 16 * SECOND, 20 * SECOND, 20 * SECOND]


@pytest.mark.parametrize(("found", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_each_finding_leads_to_its_action(found: MessageFinding | Refused, verdict: MessageDecision) -> None:
    assert decide_message(found, seq=3, receives=1, visibility=VISIBILITY, now=NOW) == verdict


def test_the_table_covers_every_finding_and_reason() -> None:
    found = {each.reason if isinstance(each, Refused) else each for each, _ in VERDICTS.values()}

    assert found == {*MessageFinding, *RefusalReason}


@pytest.mark.parametrize(
    ("receives", "verdict"),
    [(1, LEAVE), (MAX_UNKNOWN_RECEIVES, LEAVE), (MAX_UNKNOWN_RECEIVES + 1, DELETE), (10**6, DELETE)],
)
def test_a_message_for_an_unknown_job_is_deleted_after_several_receives(
    receives: int, verdict: MessageDecision
) -> None:
    found = refused(RefusalReason.NOT_FOUND, sends=0)

    assert decide_message(found, seq=3, receives=receives, visibility=VISIBILITY, now=NOW) == verdict


@few
@given(
    st.sampled_from(RefusalReason),
    st.none() | st.timedeltas(-timedelta(days=3650), timedelta(days=3650)),
    st.integers(0, 10),
    st.integers(0, 10),
    st.timedeltas(SECOND, timedelta(hours=12)),
)
def test_a_message_is_never_hidden_for_less_than_a_second_or_more_than_its_visibility(
    reason: RefusalReason, until: timedelta | None, sends: int, seq: int, visibility: timedelta
) -> None:
    found = refused(reason, until=until, sends=sends)

    verdict = decide_message(found, seq=seq, receives=1, visibility=visibility, now=NOW)

    assert verdict.hidden_for is None or SECOND <= verdict.hidden_for <= visibility
    assert verdict.hidden_for is None or verdict.action is MessageAction.LEAVE


@few
@given(
    st.sampled_from([finding for finding in MessageFinding if finding is not MessageFinding.UNREADABLE])
    | st.builds(refused, st.sampled_from(RefusalReason), until=st.none(), sends=st.integers(0, 5)),
    st.integers(0, 5),
    st.integers(1, MAX_UNKNOWN_RECEIVES),
)
def test_a_message_is_deleted_without_a_decline_only_when_settled_or_foreign(
    found: MessageFinding | Refused, seq: int, receives: int
) -> None:
    verdict = decide_message(found, seq=seq, receives=receives, visibility=VISIBILITY, now=NOW)

    is_foreign = isinstance(found, Refused) and found.reason is RefusalReason.OTHER_QUEUE
    assert (verdict.action is MessageAction.DELETE) == (found is MessageFinding.SETTLED or is_foreign)


FIRST: Final = timedelta(minutes=1)
CAP: Final = timedelta(minutes=10)


def test_the_resend_interval_doubles_up_to_the_cap() -> None:
    intervals = [resend_interval(resends, first=FIRST, cap=CAP) for resends in range(1, 7)]

    assert intervals == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, CAP, CAP]


def test_a_resend_interval_reaches_a_cap_that_is_a_doubling() -> None:
    intervals = [resend_interval(resends, first=FIRST, cap=8 * FIRST) for resends in (3, 4, 5)]

    assert intervals == [4 * FIRST, 8 * FIRST, 8 * FIRST]


@pytest.mark.parametrize("resends", [64, 65, 1_024, 10**6, 10**18])
def test_any_number_of_resends_waits_for_the_cap(resends: int) -> None:
    assert resend_interval(resends, first=FIRST, cap=CAP) == CAP


@pytest.mark.parametrize("resends", [-1, 0])
def test_the_interval_for_zero_resends_is_the_first_one(resends: int) -> None:
    assert resend_interval(resends, first=FIRST, cap=CAP) == FIRST


def test_a_first_interval_above_the_cap_is_the_cap() -> None:
    assert resend_interval(1, first=CAP, cap=FIRST) == FIRST


intervals = st.timedeltas(MOMENT, timedelta(days=3650)) | st.timedeltas(MOMENT, 100 * MOMENT)


@few
@given(st.integers(1, 100) | st.integers(1, 10**18), intervals, intervals)
@example(2, 2 * MOMENT, 3 * MOMENT)  # half of the cap is rounded up
@example(65, 5 * MOMENT, timedelta.max)
def test_a_resend_interval_is_positive_capped_and_never_decreases(
    resends: int, first: timedelta, cap: timedelta
) -> None:
    interval = resend_interval(resends, first=first, cap=cap)

    assert timedelta(0) < interval <= cap
    assert interval <= resend_interval(resends + 1, first=first, cap=cap)
