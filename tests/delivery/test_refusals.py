"""Refusals of the transport: one line with the cause and a remedy."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from taskharbor.core.errors import InvalidRequest
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.delivery.sqs.client import CallContext, translate_error
from taskharbor.delivery.transport import TransportRefused, TransportUnavailable
from taskharbor.installation import install_command
from taskharbor.testing.sqs import EndpointFaults
from tests.support.transport_contract import MAIL, messages
from tests.support.transport_subjects import KEYS, REGION

if TYPE_CHECKING:
    from pathlib import Path

    from taskharbor.testing.sqs import Endpoint

NAME = "taskharbor-mail"
DOING = CallContext(operation="SendMessageBatch", queue=NAME, place="here")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDenied", ["sqs:SendMessage", NAME, "taskharbor sqs policy"]),
        ("ExpiredToken", ["expired", "log in again"]),
        ("InvalidClientTokenId", ["credentials", "correct the key"]),
        ("SignatureDoesNotMatch", ["credentials", "region"]),
        ("RequestTimeTooSkewed", ["clock", "synchronize it"]),
        ("QueueDoesNotExist", [NAME, REGION, "taskharbor sqs setup"]),
        ("KmsDisabled", ["SendMessageBatch", NAME, "KmsDisabled"]),
    ],
)
def test_a_refusal_names_its_cause_and_a_remedy(
    endpoint: Endpoint, transport: SqsTransport, code: str, words: list[str]
) -> None:
    endpoint.faults = EndpointFaults(errors={code: 1})

    with pytest.raises(TransportRefused) as caught:
        transport.send("mail", messages(1))

    text = str(caught.value)
    assert [word for word in words if word not in text] == []
    assert "\n" not in text


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        ("SignatureDoesNotMatch", "Credential should be scoped to a valid region.", ["region", "AWS_REGION"]),
        ("SignatureDoesNotMatch", "Signature expired: 1 is now earlier than 2", ["clock", "synchronize it"]),
        ("AccessDenied", "User: arn:x is not authorized to perform: sqs:sendmessage", ["arn:x", "sqs:SendMessage"]),
        ("404", "Not Found", ["did not reply like SQS"]),
    ],
)
def test_an_ambiguous_error_code_is_decided_by_its_message(code: str, said: str, words: list[str]) -> None:
    error = ClientError({"Error": {"Code": code, "Message": said}}, "SendMessageBatch")

    text = str(translate_error(error, DOING))

    assert [word for word in words if word not in text] == []


def test_an_unknown_region_is_refused_and_not_unavailable() -> None:
    error = EndpointConnectionError(endpoint_url="https://sqs.nowhere-1.amazonaws.com")

    refused = translate_error(error, replace(DOING, region_exists=False))
    away = translate_error(error, DOING)

    assert isinstance(refused, TransportRefused)
    assert "correct the region" in str(refused)
    assert isinstance(away, TransportUnavailable)
    assert not away.is_unknown


def test_region_and_endpoint_come_from_the_configuration_of_boto3(
    endpoint: Endpoint, transport: SqsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", endpoint.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    other = SqsTransport()

    other.send("mail", messages(1))

    assert transport.depth("mail").ready == 1
    other.close()


def test_missing_credentials_are_refused_with_a_remedy(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    transport = SqsTransport(endpoint_url=endpoint.url, region=REGION)

    with pytest.raises(TransportRefused, match="AWS_ACCESS_KEY_ID"):
        transport.depth("mail")

    transport.close()
    assert not endpoint.requests


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "broken"])
def test_a_program_for_credentials_that_fails_is_a_refusal(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_missing: bool
) -> None:
    program, config = tmp_path / "credentials.sh", tmp_path / "config"
    keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c"}
    expiration = datetime.now(UTC) + timedelta(minutes=5)  # so soon that boto3 asks again before each call
    program.write_text(f"#!/bin/sh\necho '{json.dumps(keys | {'Expiration': expiration.isoformat()})}'\n")
    program.chmod(0o700)
    config.write_text(f"[default]\ncredential_process = {program}\n")
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with closing(SqsTransport(endpoint_url=endpoint.url, region=REGION)) as transport:
        transport.ensure_queues([MAIL])
        if is_missing:
            program.unlink()
        else:
            program.write_text("#!/bin/sh\necho nothing\n")

        with pytest.raises(TransportRefused, match="correct this AWS configuration"):
            transport.depth("mail")


def test_a_missing_region_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)

    with pytest.raises(TransportRefused, match="AWS_REGION"):
        SqsTransport().depth("mail")


@pytest.mark.parametrize("url", ["nonsense", "http://"])
def test_an_invalid_endpoint_url_is_refused(url: str) -> None:
    with pytest.raises(TransportRefused, match=url):
        SqsTransport(endpoint_url=url, region=REGION).depth("mail")


@pytest.mark.parametrize("url", ["http://app:hunter2@127.0.0.1:1", "http://app:hunter2@"])
def test_an_error_shows_no_password_of_the_endpoint(url: str) -> None:
    with pytest.raises((TransportRefused, TransportUnavailable), match=r"http://\*\*\*@") as caught:
        SqsTransport(endpoint_url=url, region=REGION).depth("mail")

    assert "hunter2" not in str(caught.value)


def test_a_server_other_than_sqs_is_refused() -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        transport = SqsTransport(endpoint_url=f"http://127.0.0.1:{server.server_port}", region=REGION)
        try:
            with pytest.raises(TransportRefused, match="did not reply like SQS"):
                transport.depth("mail")
        finally:
            transport.close()
            server.shutdown()
            thread.join(5)


def test_the_host_inside_the_url_of_a_queue_is_never_connected_to(endpoint: Endpoint, transport: SqsTransport) -> None:
    # The endpoint returns URLs with a host that does not exist, so a successful call did not connect to it.
    transport.send("mail", messages(1))

    assert endpoint.requests["SendMessageBatch"] == 1
    assert "sqs.invalid" in "".join(transport._urls.values())  # noqa: SLF001  the URL from the service


def test_a_closed_transport_opens_nothing_again(endpoint: Endpoint, transport: SqsTransport) -> None:
    transport.close()
    before = endpoint.requests.copy()

    with pytest.raises(TransportUnavailable, match="closed"):
        transport.send("mail", messages(1))

    assert endpoint.requests == before


def test_a_transport_refuses_an_invalid_prefix() -> None:
    with pytest.raises(InvalidRequest, match="prefix is 'a b'"):
        SqsTransport(prefix="a b")


def test_boto3_is_not_imported_before_the_first_call() -> None:
    code = """
import sys
from taskharbor.delivery.sqs import SqsTransport
import taskharbor.delivery.transport
SqsTransport().name("mail")
sys.exit(", ".join({"boto3", "botocore"} & {*sys.modules}) or None)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_boto3_the_error_names_the_extra_to_install() -> None:
    code = """
import sys
sys.modules["boto3"] = None
from taskharbor.delivery.sqs import SqsTransport
SqsTransport().depth("mail")
"""
    ran = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True)

    assert f"boto3 is not installed; run: {install_command('sqs')}" in ran.stderr


def test_a_forked_process_uses_no_connection_of_its_parent(endpoint: Endpoint, transport: SqsTransport) -> None:
    code = f"""
import os, sys
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.delivery.transport import OutgoingMessage
transport = SqsTransport(endpoint_url={endpoint.url!r}, region={REGION!r})
transport.send("mail", [OutgoingMessage("before")])
child = os.fork()
for n in range(20):
    assert transport.send("mail", [OutgoingMessage(f"{{child}} {{n}}")]) == [None]
assert transport.calls["SendMessageBatch"] == (21 if child else 20)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    assert endpoint.depth(NAME) == (41, 0, 0)
    transport.close()


class Page(BaseHTTPRequestHandler):
    """A web server that does not implement SQS."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>not found</html>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name in the base class
        pass
