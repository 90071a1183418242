"""Send generated valid and invalid requests to every operation in the OpenAPI document."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from tests.support.api_rig import bearer, opened

if TYPE_CHECKING:
    from tests.support.api_rig import ApiRig

STREAMS: Final = {"/v1/events", "/v1/jobs/{job_id}/events"}  # they end only when the client disconnects
QUEUE: Final = "yard"  # unlikely to be generated, and so unlikely to be paused
MAX_WAIT_SECONDS: Final = 0.2  # to wait for a job


@dataclass(slots=True)
class Tally:
    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Plan:
    examples: int
    number: int
    headers: dict[str, str]


def fuzz(requests: int, *, number: int) -> Tally:
    """Send about this many requests. Raise AssertionError for a response that the document does not allow."""
    tally = Tally()
    with opened(needs_keys=True) as site:
        headers = bearer(site.key("admin"))
        site.client.headers.update(headers)
        schema = schemathesis.openapi.from_dict(_without_security(site.get("/openapi.json").json()))
        schema.app = site.app
        operations: list[Any] = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
        operations = [each for each in operations if each.path not in STREAMS]
        for operation in operations:
            _fuzz_one(site, operation, Plan(requests // len(operations) + 1, number, headers), tally)
    return tally


def _fuzz_one(site: ApiRig, operation: Any, plan: Plan, tally: Tally) -> None:
    known, rule = _known(site), BEYOND_THE_SCHEMA.get((operation.method.upper(), operation.path))
    good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    bad = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE).filter(_is_bad)

    @seed(plan.number)
    @settings(
        max_examples=plan.examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=good | good | bad, names=st.fixed_dictionaries({}, optional=known))
    def send(case: Any, names: dict[str, str]) -> None:
        replaced = {name: value for name, value in names.items() if name in (case.path_parameters or ())}
        # An invalid request may be invalid only by its name, so keep that name. Do not write it again: it is
        # quoted by now, and the quoted name may not match the name's pattern.
        if replaced and case.meta.generation.mode == GenerationMode.POSITIVE:
            case.path_parameters |= replaced
        if case.query and "wait" in case.query and _is_long(case.query["wait"]):
            case.query["wait"] = MAX_WAIT_SECONDS
        response = case.call(headers=plan.headers)
        tally.requests += 1
        tally.statuses[response.status_code] += 1
        if response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return  # the size is checked before the content, so an invalid body gets this answer, too
        if rule is None:
            case.validate_response(response, headers=plan.headers)
        else:
            case.validate_response(response, headers=plan.headers, excluded_checks=[positive_data_acceptance])
            _check_refusal(case, response, rule)

    send()


def _without_security(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the security requirements: another test checks them per route, and here every request has a key."""
    del document["security"], document["components"]["securitySchemes"]
    for operations in document["paths"].values():
        for operation in operations.values():
            del operation["security"]
    return document


def _is_bad(case: Any) -> bool:
    """Return whether a request is really invalid. Schemathesis returns a valid one if nothing can be invalid."""
    return bool(case.meta.phase.data.description != "Positive test case")


def _is_long(wait: Any) -> bool:
    return isinstance(wait, int | float) and MAX_WAIT_SECONDS < wait <= 60


def _known(site: ApiRig) -> dict[str, Any]:
    """Create jobs in several states, a queue and a schedule, so that not every response is 404."""
    waiting = site.create(queue=QUEUE, idempotency_key=str(new_token()), metadata={"tenant": "acme"})
    site.driver.cancel([site.take(QUEUE).job.id])
    done = site.create(queue=QUEUE)
    site.settle(site.take(QUEUE), Outcome.ack(b'"done"'))
    ids = [waiting, done, site.dead(queue=QUEUE), site.create(queue=QUEUE, delay=3600)]
    site.request("PUT", "/v1/schedules/nightly", json={"cron": "0 2 * * *", "type": "greet"})
    site.roll_up()
    operation = site.post("/v1/operations", {"kind": "requeue", "filter": {"queue": QUEUE}}).json()["id"]
    return {
        "job_id": st.sampled_from(ids),
        "operation_id": st.just(operation),
        "name": st.sampled_from(["default", "nightly"]),
        "key_id": st.just(site.key("jobs:read").split("_")[1]),
    }


# Rules that a schema cannot express. A request that matches the schema may still break one, and is refused with this.
BEYOND_THE_SCHEMA: Final = {
    ("POST", "/v1/jobs"): "idempotency key .* belongs to|differs from the Idempotency-Key header",
    ("POST", "/v1/jobs/batch"): "no job was stored; the first of|not allowed in an atomic batch",
    ("GET", "/v1/jobs"): "cannot be combined with other filters",
    ("POST", "/v1/jobs/{job_id}/cancel"): "has changed since",
    ("POST", "/v1/jobs/{job_id}/requeue"): "has changed since",
    ("POST", "/v1/jobs/{job_id}/reschedule"): "has changed since",
    ("POST", "/v1/dead-letters/requeue"): "give either ids or a filter",
    ("POST", "/v1/operations"): "^(filter|filter.statuses|budget|delay|priority) is |idempotency key .* belongs to",
    ("GET", "/v1/stats/timeseries"): "^(by|queue|since|step|type|until) is |2,000 points|more than .* rows",
    ("PUT", "/v1/schedules/{name}"): "^(cron|timezone) is ",
    ("POST", "/v1/schedules/{name}/run"): "idempotency key .* belongs to",
}


def _check_refusal(case: Any, response: Any, rule: str) -> None:
    """Check that a refused valid request broke the one rule that its schema cannot express."""
    if case.meta.generation.mode == GenerationMode.POSITIVE and response.status_code in {400, 412, 413, 422}:
        assert re.search(rule, response.json()["detail"], re.DOTALL), response.text
