from __future__ import annotations

import copy
import inspect
import pickle
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from taskharbor.core import errors
from taskharbor.core.errors import (
    AddressUnavailable,
    ApiKeyRequired,
    CallNotReadable,
    CodecMismatch,
    EnqueueRefused,
    IdempotencyConflict,
    IllegalTransition,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    JobNotInflight,
    JobTimedOut,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    OperationConflict,
    OperationNotFound,
    OutcomeNotStorable,
    PayloadNotDecodable,
    PayloadNotEncodable,
    PayloadTooLarge,
    Problem,
    ResultTimeout,
    ScheduleNotFound,
    SchemaOutOfDate,
    StoreRefused,
    StoreUnavailable,
    TaskHarborError,
    UnknownType,
    UsageError,
)
from taskharbor.core.ids import JobId
from taskharbor.core.results import Enqueued

if TYPE_CHECKING:
    from collections.abc import Callable

JOB: Final = JobId(UUID(int=7))
PROBLEM: Final = Problem(field="priority", value="'high'", rule="must be an int")
CONFLICT: Final = IdempotencyConflict("mail", "welcome-7", JOB)

# One of each class, and its message: the facts, and a remedy if the caller has one.
EXAMPLES: Final[dict[TaskHarborError, str]] = {
    TaskHarborError("something"): "something",
    UsageError(PROBLEM): "priority is 'high': must be an int",
    InvalidRequest([PROBLEM, PROBLEM.within("jobs[3]")]): (
        "priority is 'high': must be an int; jobs[3].priority is 'high': must be an int"
    ),
    UnknownType("email.sned", ("email.send", "greet")): (
        "type is 'email.sned': no task of the app has this type; did you mean 'email.send'?"
    ),
    CONFLICT: (
        "idempotency key 'welcome-7' of queue 'mail' belongs to job 00000000-0000-0000-0000-000000000007, "
        "which has another type or payload: use another key, or send the same job"
    ),
    OutcomeNotStorable(JOB, "value too long"): (
        "the outcome of job 00000000-0000-0000-0000-000000000007 cannot be stored: value too long"
    ),
    IllegalTransition(JOB, "SUCCEEDED", "requeue"): (
        "cannot requeue job 00000000-0000-0000-0000-000000000007: it is SUCCEEDED"
    ),
    CodecMismatch("aes-gcm+json", "json"): (
        "the payloads in this store were written with codec 'aes-gcm+json', not 'json': "
        "name the app that uses that codec, or pass codec=… in Python; "
        "to change the codec of a store, see 'taskharbor codec --help'"
    ),
    ApiKeyRequired("0.0.0.0"): (
        "refused to listen on '0.0.0.0': other hosts can reach it, and this store has no API key; "
        "create one with 'taskharbor keys create', or listen on 127.0.0.1"
    ),
    AddressUnavailable("127.0.0.1", 8000, "it is taken"): (
        "cannot listen on '127.0.0.1', port 8000: it is taken; choose another --host or --port"
    ),
    PayloadNotEncodable("$.items[0]", "not a finite number"): "$.items[0]: not a finite number",
    PayloadTooLarge(2_097_152, 1_048_576): (
        "$: 2,097,152 bytes encoded, the limit is 1,048,576: store it elsewhere and pass a reference"
    ),
    PayloadNotDecodable("not JSON"): "cannot decode the stored bytes: not JSON",
    CallNotReadable("greet", "name: is missing"): "stored data does not match task 'greet': name: is missing",
    JobFailed(JOB, "DEAD", "no luck"): "job 00000000-0000-0000-0000-000000000007 is DEAD: no luck",
    ResultTimeout(JOB, timedelta(seconds=5)): ("job 00000000-0000-0000-0000-000000000007 did not finish within 5 s"),
    ResultTimeout(JOB, timedelta(seconds=0.5), "PENDING", "no live worker serves queue 'mail': start one"): (
        "job 00000000-0000-0000-0000-000000000007 did not finish within 0.5 s; it is PENDING: "
        "no live worker serves queue 'mail': start one"
    ),
    OperationNotFound(JOB): "operation 00000000-0000-0000-0000-000000000007 not found",
    OperationConflict("nightly-7", JOB): (
        "idempotency key 'nightly-7' belongs to operation 00000000-0000-0000-0000-000000000007, which is another "
        "request: use another key, or send the same request"
    ),
    ScheduleNotFound("nigthly", "nightly"): "schedule 'nigthly' not found; did you mean 'nightly'?",
    EnqueueRefused([Enqueued(JOB, existed=False), CONFLICT]): (
        "1 of 2 jobs refused, 1 stored; job 1: idempotency key 'welcome-7' of queue 'mail' belongs to job "
        "00000000-0000-0000-0000-000000000007, which has another type or payload: use another key, or send the same job"
    ),
    JobNotFound(JOB): "job 00000000-0000-0000-0000-000000000007 not found",
    JobTimedOut(JOB, timedelta(seconds=30)): (
        "job 00000000-0000-0000-0000-000000000007 ran longer than its timeout of 30 s"
    ),
    JobNotInflight(JOB): "job 00000000-0000-0000-0000-000000000007 is not being processed",
    LeaseExpired(JOB): "lease on job 00000000-0000-0000-0000-000000000007 expired",
    LeaseMismatch(JOB): "job 00000000-0000-0000-0000-000000000007 is leased under another token",
    LeaseLost(JOB): "lease on job 00000000-0000-0000-0000-000000000007 lost",
    SchemaOutOfDate("3", "4", "run 'taskharbor migrate'"): (
        "the store's schema is 3, this code needs 4: run 'taskharbor migrate'"
    ),
    StoreRefused("wrong user or password"): "store unavailable: wrong user or password",
    StoreUnavailable("connection refused"): "store unavailable: connection refused",
}

# TaskHarbor pickles nothing, but multiprocessing, concurrent.futures and pytest-xdist pickle
# errors, and one that cannot be pickled would hide its cause.
COPIES: Final[dict[str, Callable[[TaskHarborError], TaskHarborError]]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}

by_name = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def kinds() -> set[type[TaskHarborError]]:
    return {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TaskHarborError)}


def facts(error: BaseException) -> list[tuple[str, str]]:
    """Return the attributes of an error, with nested errors in a comparable form."""
    return sorted((name, repr(value)) for name, value in vars(error).items())


def test_there_is_an_example_of_every_error() -> None:
    assert {type(error) for error in EXAMPLES} == kinds()


@by_name
def test_the_message_of_an_error_names_the_problem(error: TaskHarborError) -> None:
    assert str(error) == EXAMPLES[error]


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
@by_name
def test_an_error_can_be_copied_and_pickled(
    error: TaskHarborError, duplicate: Callable[[TaskHarborError], TaskHarborError]
) -> None:
    twin = duplicate(error)

    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert facts(twin) == facts(error)


def drawn() -> dict[str, str]:
    """Return the tree in the module's docstring: the parent of every class, by name."""
    parents: dict[str, str] = {}
    line_of: list[str] = []
    for indent, name in re.findall(r"^([│├└─ ]*)([A-Z]\w+)", inspect.getdoc(errors) or "", re.MULTILINE):
        depth = len(indent) // 4
        if depth:
            parents[name] = line_of[depth - 1]
        line_of[depth:] = [name]
    return parents


def test_the_documented_tree_matches_the_classes() -> None:
    parents = {kind.__name__: kind.__bases__[0].__name__ for kind in kinds() - {TaskHarborError}}

    assert parents == drawn()


def test_every_error_has_a_docstring() -> None:
    assert not [kind for kind in kinds() if not kind.__doc__]


def test_a_problem_can_be_prefixed_with_its_place() -> None:
    assert str(PROBLEM.within("jobs[3]")) == "jobs[3].priority is 'high': must be an int"
    assert str(PROBLEM) == "priority is 'high': must be an int"


def test_a_refused_batch_separates_stored_and_refused_jobs() -> None:
    stored = Enqueued(JOB, existed=False)

    error = EnqueueRefused([stored, CONFLICT, stored, CONFLICT])

    assert error.answers == (stored, CONFLICT, stored, CONFLICT)
    assert error.refused == {1: CONFLICT, 3: CONFLICT}
    assert str(error).startswith("2 of 4 jobs refused, 2 stored; job 1: ")


def test_a_payload_over_the_limit_reports_size_and_limit() -> None:
    error = PayloadTooLarge(11, 10)

    assert (error.size, error.limit, error.path) == (11, 10, "$")
