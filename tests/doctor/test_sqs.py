"""Each check of SQS reports a problem until it is solved."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.cli.sqs import queue_shapes
from taskharbor.core.model import Claim
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.core.states import Status
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.delivery.transport import UNREADABLE_QUEUE, OutgoingMessage
from taskharbor.doctor import Finding, Level
from taskharbor.doctor.sqs import MAX_AGE, check_queues
from taskharbor.testing.sqs import AccessKey, Endpoint
from tests.conformance import test_drivers
from tests.support.transport_subjects import REGION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.testing.conformance.subject import Subject

SPECS: Final = queue_shapes(["default"])


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with Endpoint.start(seed=1) as started:
        yield started


@pytest.fixture
def transport(endpoint: Endpoint) -> Iterator[SqsTransport]:
    with closing(SqsTransport(endpoint_url=endpoint.url, region="us-east-1")) as made:
        yield made


def problems(transport: SqsTransport) -> list[Finding]:
    return [each for each in check_queues(transport, SPECS) if each.level is not Level.OK]


def test_missing_queues_are_reported_until_they_exist(transport: SqsTransport) -> None:
    found = problems(transport)
    assert {each.level for each in found} == {Level.FAIL}
    assert len(found) == len(SPECS)
    assert {each.text.partition(" at ")[0] for each in found} == {
        f"queue {transport.name(spec.name)} does not exist" for spec in SPECS
    }
    assert "taskharbor sqs setup" in found[0].remedy

    transport.ensure_queues(SPECS)
    assert problems(transport) == []


@pytest.mark.parametrize(
    ("change", "attribute"),
    [
        ({"visibility": timedelta(seconds=1)}, "VisibilityTimeout"),
        ({"dead_letters": None}, "RedrivePolicy"),
        ({"retention": timedelta(minutes=1)}, "MessageRetentionPeriod"),
    ],
)
def test_wrong_attributes_are_named(transport: SqsTransport, change: dict[str, object], attribute: str) -> None:
    transport.ensure_queues([*SPECS[:-1], replace(SPECS[-1], **change)])  # type: ignore[arg-type]

    [found] = problems(transport)

    assert found.text.startswith(f"queue taskharbor-default: {attribute} is ")
    assert found.remedy == "taskharbor sqs setup corrects it"

    transport.ensure_queues(SPECS)
    assert problems(transport) == []


def test_unreadable_messages_are_reported(transport: SqsTransport) -> None:
    transport.ensure_queues(SPECS)
    transport.send(UNREADABLE_QUEUE, [OutgoingMessage("garbage")])

    [found] = problems(transport)

    assert found.text == "1 messages in taskharbor-unreadable: received often and never deleted"

    receive_and_delete(transport, UNREADABLE_QUEUE)
    assert problems(transport) == []


def receive_and_delete(transport: SqsTransport, queue: str) -> None:
    [message] = transport.receive(queue, most=1, wait=timedelta(0), visibility=timedelta(minutes=1))
    transport.delete(queue, [message.receipt_handle])


KEY: Final = "AKIDEXAMPLE"
KEYS: Final = {
    KEY: AccessKey(secret="right"),
    "AKIDREADER": AccessKey(secret="right", denied=frozenset({"GetQueueAttributes"})),
}


@pytest.fixture
def guarded() -> Iterator[Endpoint]:
    """An endpoint with all queues, which checks the signature of every request."""
    with Endpoint.start(seed=1, keys=KEYS) as started:
        with signing(started, KEY, "right") as transport:
            transport.ensure_queues(SPECS)
        yield started


@contextmanager
def signing(endpoint: Endpoint, key: str, secret: str, region: str = REGION) -> Iterator[SqsTransport]:
    """Return the transport of a process with these credentials."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", key)
        environment.setenv("AWS_SECRET_ACCESS_KEY", secret)
        with closing(SqsTransport(endpoint_url=endpoint.url, region=region)) as transport:
            yield transport


@pytest.mark.parametrize(
    ("key", "secret", "region", "text"),
    [
        (KEY, "wrong", REGION, "AWS rejected the credentials (The request signature we calculated does not match"),
        ("AKIDUNKNOWN", "right", REGION, "AWS rejected the credentials (The security token included in the request"),
        ("AKIDREADER", "right", REGION, "sqs:GetQueueAttributes on taskharbor-unreadable is denied"),
        (KEY, "right", "eu-west-1", "the region does not match"),
    ],
    ids=["secret", "key", "permission", "region"],
)
def test_wrong_credentials_are_reported_until_they_are_right(
    guarded: Endpoint, key: str, secret: str, region: str, text: str
) -> None:
    with signing(guarded, key, secret, region) as transport:
        found = list(check_queues(transport, SPECS))  # no other check may say that all is well

    assert {(each.check, each.level) for each in found} == {("sqs queues", Level.FAIL)}
    assert any(text in each.text for each in found)
    assert all(each.remedy for each in found)
    with signing(guarded, KEY, "right") as transport:
        assert problems(transport) == []


def test_a_wrong_clock_of_this_machine_is_reported(guarded: Endpoint) -> None:
    guarded.advance(timedelta(hours=1))

    with signing(guarded, KEY, "right") as transport:
        found = problems(transport)

    assert {(each.check, each.level) for each in found} == {("sqs queues", Level.FAIL)}
    assert "the clock of this machine is wrong" in found[0].text
    assert {each.remedy for each in found} == {"synchronize it"}


def test_missing_credentials_are_reported(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)

    with closing(SqsTransport(endpoint_url=endpoint.url, region="us-east-1")) as transport:
        found = problems(transport)

    assert {each.level for each in found} == {Level.FAIL}
    assert "credentials" in found[0].text.lower()


def test_an_endpoint_that_is_away_is_reported_until_it_is_back(transport: SqsTransport, endpoint: Endpoint) -> None:
    transport.ensure_queues(SPECS)
    endpoint.go_away()
    [found] = problems(transport)
    assert (found.check, found.level) == ("sqs queues", Level.FAIL)
    assert found.text.startswith("it could not be checked: ")

    endpoint.come_back()
    assert problems(transport) == []


@pytest.fixture
def subject() -> Iterator[Subject]:
    made = test_drivers.memory()
    yield made
    made.driver.close()


def delays(transport: SqsTransport, subject: Subject) -> list[Finding]:
    found = check_queues(transport, SPECS, inspector=subject.driver.inspector)
    return [each for each in found if each.check == "sqs delays" and each.level is not Level.OK]


def test_an_old_message_is_reported_until_its_job_is_claimed(transport: SqsTransport, subject: Subject) -> None:
    transport.ensure_queues(SPECS)
    job_id = subject.bring(Status.ENQUEUED)
    transport.send("default", [OutgoingMessage("a message")])
    assert delays(transport, subject) == []

    subject.advance(MAX_AGE)
    subject.driver.maintenance.roll_up(keep=MAX_AGE)
    [found] = delays(transport, subject)
    assert found.text == f"the oldest of 1 messages in taskharbor-default was sent 5 min ago, for job {job_id}"
    assert found.remedy == "start workers: taskharbor worker --sqs -q default"

    subject.take()
    assert delays(transport, subject) == []


def test_a_lost_message_is_reported_as_such(transport: SqsTransport, subject: Subject) -> None:
    transport.ensure_queues(SPECS)
    job_id = subject.bring(Status.ENQUEUED)
    subject.advance(MAX_AGE)

    [found] = delays(transport, subject)

    assert found.text.startswith(f"the message of job {job_id} was sent 5 min ago; taskharbor-default is empty")


def test_a_job_that_waits_for_its_retry_has_no_lost_message(transport: SqsTransport, subject: Subject) -> None:
    transport.ensure_queues(SPECS)
    [claimed] = subject.claim(subject.bring(Status.ENQUEUED))
    assert isinstance(claimed, Claim)
    subject.driver.settle([Settlement(claimed.lease, Outcome.retry(after=timedelta(hours=1)))])
    subject.advance(MAX_AGE)

    assert delays(transport, subject) == []
