"""Server errors of every kind in every call: the caller's error, no partial changes, and a working next call."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.core.errors import OutcomeNotStorable, StoreUnavailable
from taskharbor.core.results import JobFilter
from taskharbor.drivers.postgres import PostgresDriver
from tests.support.driver_calls import VERBS, inserting
from tests.support.postgres import database, empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.driver_calls import VerbCase

SHORT: Final = timedelta(milliseconds=400)
"""The deadline of calls that must reach it. Others must not, also on a busy machine."""
LONG: Final = timedelta(seconds=20)
SLOW: Final = "slow"
READ_ONLY: Final = "25006"

SERVER_ERRORS: Final = {
    "08000": "08000",  # connection_exception, which has no hint
    READ_ONLY: "the server is read-only; connect to the primary",
    "40003": "40003",  # statement_completion_unknown
    "53100": "the disk of the server is full; the statement stored nothing",
    "53400": "53400",  # configuration_limit_exceeded
    "55000": "55000",  # object_not_in_prerequisite_state
    "57014": "the statement took longer than the deadline; it stored nothing",
    "58030": "58030",  # io_error
    "XX000": "XX000",  # internal_error
    SLOW: "the statement took longer than the deadline; it stored nothing",
}
"""Errors of the server or its machine, and their hints: the same call may succeed later."""
OTHER_ERRORS: Final = ["22021", "23514", "42883", "54000"]
"""Errors of the data or the SQL: the same call fails again, and the caller gets the original error."""
OUTCOME_ERRORS: Final = {"22021", "23514", "54000"}
"""Settle reports these errors for each outcome."""
CONFLICTS: Final = ["40001", "40P01"]
"""A serialization failure and a deadlock. The server has rolled the transaction back, and a repeat may succeed."""


@dataclass(frozen=True, slots=True)
class Faulty:
    """A database in which every statement of one role fails as requested."""

    url: str
    db: psycopg.Connection
    direct: PostgresDriver

    @property
    def own_url(self) -> str:
        return self.url.replace("postgres@", "taskharbor_faulty@")

    def fail(self, kind: str | None, *, times: int | None = None) -> None:
        """Let statements fail: all of them, or the next *times* ones."""
        self.db.execute("UPDATE faults.fault SET kind = %s, times = %s", [kind, times])
        self.db.execute("ALTER SEQUENCE faults.raised RESTART")


@pytest.fixture(scope="module")
def faulty() -> Iterator[Faulty]:
    with database() as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(_FAULTS)
        for (table,) in db.execute(_TABLES).fetchall():
            db.execute(_TRIGGER.format(table=table).encode())
        with closing(PostgresDriver(url)) as direct:
            yield Faulty(url, db, direct)
        db.execute("DROP OWNED BY taskharbor_faulty; DROP ROLE taskharbor_faulty")


# Writes fail by a statement trigger, and reads by a row-level policy, which applies to all but superusers.
_FAULTS: Final = """
    CREATE ROLE taskharbor_faulty LOGIN;
    CREATE SCHEMA faults;
    CREATE TABLE faults.fault (kind text, times bigint);
    INSERT INTO faults.fault VALUES (NULL);
    CREATE SEQUENCE faults.raised;  -- a rollback does not undo its count
    CREATE FUNCTION raise_fault() RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        fault text;
        most bigint;
    BEGIN
        SELECT kind, times INTO fault, most FROM faults.fault;
        IF fault = 'slow' THEN
            PERFORM pg_sleep(30);
        ELSIF fault IS NOT NULL AND current_user = 'taskharbor_faulty'
              AND (most IS NULL OR nextval('faults.raised') <= most) THEN
            RAISE 'fault % on request', fault USING ERRCODE = fault;
        END IF;
        RETURN true;
    END $$;
    CREATE FUNCTION raise_fault_first() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM raise_fault();
        RETURN NULL;
    END $$;
    GRANT USAGE ON SCHEMA faults TO taskharbor_faulty;
    GRANT ALL ON ALL TABLES IN SCHEMA public, faults TO taskharbor_faulty;
    GRANT USAGE ON SEQUENCE faults.raised TO taskharbor_faulty;
    GRANT pg_signal_backend TO taskharbor_faulty;
    ALTER TABLE th_jobs ENABLE ROW LEVEL SECURITY;
    CREATE POLICY fault ON th_jobs TO taskharbor_faulty USING (raise_fault());
"""
_TABLES: Final = """
    SELECT relname
      FROM pg_class
     WHERE relnamespace = 'public'::regnamespace
       AND relkind IN ('r', 'p')
       AND starts_with(relname, 'th_')
       AND relname <> 'th_migrations'
"""
_TRIGGER: Final = """
    CREATE TRIGGER a_fault BEFORE INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION raise_fault_first()
"""


@pytest.fixture
def driver(faulty: Faulty) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(faulty.own_url, deadline=LONG)) as driver:
        driver.inspector.now()
        yield driver
        faulty.fail(None)


@pytest.fixture
def hurried(faulty: Faulty) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(faulty.own_url, deadline=SHORT)) as driver:
        driver.inspector.now()
        yield driver
        faulty.fail(None)


def prepare_case(verb: Callable[[PostgresDriver], VerbCase], faulty: Faulty) -> VerbCase:
    faulty.fail(None)
    empty(faulty.url)
    return verb(faulty.direct)


@pytest.mark.parametrize("verb", VERBS)
def test_a_server_error_raises_store_unavailable_and_changes_nothing(
    verb: str, faulty: Faulty, driver: PostgresDriver, hurried: PostgresDriver
) -> None:
    for kind, hint in SERVER_ERRORS.items():
        called = hurried if kind == SLOW else driver
        case = prepare_case(VERBS[verb], faulty)
        before = rows(faulty)
        faulty.fail(kind)

        with pytest.raises(StoreUnavailable) as failed:
            case.call(called)
        faulty.fail(None)

        assert hint in str(failed.value)
        assert "\n" not in str(failed.value)
        assert failed.value.retry_in is None, "the server is available: a repeat may succeed at once"
        assert rows(faulty) == before
        check_next_call(case, called)


@pytest.mark.parametrize("verb", VERBS)
def test_a_data_error_is_raised_unchanged_and_changes_nothing(
    verb: str, faulty: Faulty, driver: PostgresDriver
) -> None:
    for kind in OTHER_ERRORS:
        case = prepare_case(VERBS[verb], faulty)
        before = rows(faulty)
        faulty.fail(kind)

        if verb == "settle" and kind in OUTCOME_ERRORS:
            assert {type(answer) for answer in case.call(driver)} == {OutcomeNotStorable}
        else:
            with pytest.raises(psycopg.Error) as failed:
                case.call(driver)
            assert failed.value.sqlstate == kind
        faulty.fail(None)

        assert rows(faulty) == before
        check_next_call(case, driver)


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_that_conflicts_with_another_transaction_is_repeated(
    verb: str, faulty: Faulty, driver: PostgresDriver
) -> None:
    for kind in CONFLICTS:
        case = prepare_case(VERBS[verb], faulty)
        faulty.fail(kind, times=2)

        case.check(case.call(driver))

        assert faulty.db.execute("SELECT last_value > 2 FROM faults.raised").fetchone() == (True,)


@pytest.mark.parametrize("kind", CONFLICTS)
def test_a_call_with_conflicts_until_the_deadline_changes_nothing(
    kind: str, faulty: Faulty, hurried: PostgresDriver
) -> None:
    case = prepare_case(VERBS["settle"], faulty)
    before = rows(faulty)
    faulty.fail(kind)

    with pytest.raises(StoreUnavailable, match="too many conflicts"):
        case.call(hurried)
    faulty.fail(None)

    assert rows(faulty) == before
    check_next_call(case, hurried)


def rows(faulty: Faulty) -> list[Any]:
    """Return all rows of jobs, attempts, keys and events."""
    return [
        faulty.db.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()
        for table in ("th_jobs", "th_attempts", "th_keys", "th_outbox")
    ]


def check_next_call(case: VerbCase, driver: PostgresDriver) -> None:
    """Repeat the call on the same driver; it must work as if it had not failed before."""
    case.check(case.call(driver))


NO_TIME: Final = timedelta(0)
CALLS: Final[dict[str, Callable[[PostgresDriver], object]]] = {
    "bury": lambda driver: driver.maintenance.bury(limit=10),
    "purge": lambda driver: driver.maintenance.purge(older_than=NO_TIME, limit=10),
    "claim duty": lambda driver: driver.maintenance.claim_duty("sweep", every=NO_TIME),
    "remove worker": lambda driver: driver.maintenance.remove_worker("w"),
    "prune workers": lambda driver: driver.maintenance.prune_workers(unseen_for=NO_TIME, keep=NO_TIME),
    "prune audit": lambda driver: driver.maintenance.prune_audit(older_than=NO_TIME, limit=10),
    "claim outbox": lambda driver: driver.maintenance.claim_outbox(limit=10, lock=NO_TIME),
    "roll up": lambda driver: driver.maintenance.roll_up(keep=NO_TIME),
    "pause": lambda driver: driver.control.pause(["default"], by="me"),
    "resume": lambda driver: driver.control.resume(["default"]),
    "find": lambda driver: driver.inspector.find(JobFilter(), limit=10),
}
"""Calls that the tests above do not cover: check only that errors are distinguished and conflicts repeated."""
UNHURRIED: Final = {"purge", "roll up"}
"""Calls that may take minutes."""


@pytest.mark.parametrize("name", CALLS)
def test_maintenance_control_and_reads_distinguish_server_errors_from_data_errors(
    name: str, faulty: Faulty, driver: PostgresDriver, hurried: PostgresDriver
) -> None:
    prepare_case(inserting(1, ["a"]), faulty).call(faulty.direct)

    for kind in ("58030", READ_ONLY, *(() if name in UNHURRIED else (SLOW,))):
        faulty.fail(kind)
        with pytest.raises(StoreUnavailable):
            CALLS[name](hurried if kind == SLOW else driver)
    faulty.fail("22021")
    with pytest.raises(psycopg.errors.CharacterNotInRepertoire):
        CALLS[name](driver)
    faulty.fail(None)

    CALLS[name](driver)


@pytest.mark.parametrize("name", CALLS)
def test_maintenance_control_and_reads_are_repeated_after_conflicts(
    name: str, faulty: Faulty, driver: PostgresDriver
) -> None:
    prepare_case(inserting(1, ["a"]), faulty).call(faulty.direct)

    for kind in CONFLICTS:
        faulty.fail(kind, times=2)
        CALLS[name](driver)

        assert faulty.db.execute("SELECT last_value > 2 FROM faults.raised").fetchone() == (True,)
