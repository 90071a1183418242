"""Generated requests, good and bad, against every operation that the OpenAPI document names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
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

STREAMS: Final = {"/v1/events", "/v1/jobs/{job_id}/events"}  # they end when the client goes, not by themselves
YARD: Final = "yard"  # not a name that is likely to be generated, and paused
LONGEST: Final = 0.2  # seconds to wait for a job


@dataclass(slots=True)
class Tally:
    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Plan:
    examples: int
    number: int
    opens: dict[str, str]


def fuzz(requests: int, *, number: int) -> Tally:
    """Send about so many requests; an answer that the document does not allow is an AssertionError."""
    tally = Tally()
    with opened(needs_keys=True) as site:
        opens = bearer(site.key("admin"))
        site.client.headers.update(opens)
        schema = schemathesis.openapi.from_dict(_without_security(site.get("/openapi.json").json()))
        schema.app = site.app
        operations: list[Any] = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
        operations = [each for each in operations if each.path not in STREAMS]
        for operation in operations:
            _fuzz_one(site, operation, Plan(requests // len(operations) + 1, number, opens), tally)
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
        ours = {name: value for name, value in names.items() if name in (case.path_parameters or ())}
        # A bad one may be bad by nothing but its name. One that stays is not written again: it is quoted by
        # now, and the quoted name may break the pattern that the name keeps.
        if ours and case.meta.generation.mode == GenerationMode.POSITIVE:
            case.path_parameters |= ours
        if case.query and "wait" in case.query and _is_long(case.query["wait"]):
            case.query["wait"] = LONGEST
        response = case.call(headers=plan.opens)
        tally.requests += 1
        tally.statuses[response.status_code] += 1
        if rule is None:
            case.validate_response(response, headers=plan.opens)
        else:
            case.validate_response(response, headers=plan.opens, excluded_checks=[positive_data_acceptance])
            _check_refusal(case, response, rule)

    send()


def _without_security(document: dict[str, Any]) -> dict[str, Any]:
    """Leave out who may do what: that is walked route by route elsewhere, and a request without a key tells nothing."""
    del document["security"], document["components"]["securitySchemes"]
    for operations in document["paths"].values():
        for operation in operations.values():
            del operation["security"]
    return document


def _is_bad(case: Any) -> bool:
    """Tell whether a request that should be bad is: where nothing can be spoilt, schemathesis gives a good one."""
    return bool(case.meta.phase.data.description != "Positive test case")


def _is_long(wait: Any) -> bool:
    return isinstance(wait, int | float) and LONGEST < wait <= 60


def _known(site: ApiRig) -> dict[str, Any]:
    """Make jobs in every state, a queue and a schedule, so that not everything is 404."""
    waiting = site.create(queue=YARD, idempotency_key=str(new_token()), metadata={"tenant": "acme"})
    site.driver.cancel([site.take(YARD).job.id])
    done = site.create(queue=YARD)
    site.settle(site.take(YARD), Outcome.ack(b'"done"'))
    ids = [waiting, done, site.dead(queue=YARD), site.create(queue=YARD, delay=3600)]
    site.request("PUT", "/v1/schedules/nightly", json={"cron": "0 2 * * *", "type": "greet"})
    site.roll_up()
    return {"job_id": st.sampled_from(ids), "name": st.sampled_from(["default", "nightly"])}


# Rules that no schema can tell: a request that keeps the schema may still break one of these, and then says so.
BEYOND_THE_SCHEMA: Final = {
    ("POST", "/v1/jobs"): "idempotency key .* belongs to|differs from the Idempotency-Key header",
    ("POST", "/v1/jobs/batch"): "errors; no job was stored|not allowed in an atomic batch",
    ("GET", "/v1/jobs"): "cannot be combined with other filters",
    ("POST", "/v1/jobs/{job_id}/cancel"): "has changed since",
    ("POST", "/v1/jobs/{job_id}/requeue"): "has changed since",
    ("POST", "/v1/jobs/{job_id}/reschedule"): "has changed since",
    ("POST", "/v1/dead-letters/requeue"): "give either ids or a filter",
    ("PUT", "/v1/schedules/{name}"): "^(cron|timezone) is ",
    ("POST", "/v1/schedules/{name}/run"): "idempotency key .* belongs to",
}


def _check_refusal(case: Any, response: Any, rule: str) -> None:
    """Hold a good request that was refused against the one rule that its schema cannot tell."""
    if case.meta.generation.mode == GenerationMode.POSITIVE and response.status_code in {400, 412, 413, 422}:
        assert re.search(rule, response.json()["detail"], re.DOTALL), response.text
