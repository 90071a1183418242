"""Errors of every kind out of every call: what the caller gets, that nothing was done, and that the next call works."""

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

DEADLINE: Final = timedelta(milliseconds=400)
SLOW: Final = "slow"
READ_ONLY: Final = "25006"

AWAY: Final = {
    "08000": "08000",  # connection_exception, which has no words of ours
    READ_ONLY: "it is read-only here; connect to the primary",
    "40003": "40003",  # statement_completion_unknown
    "53100": "its disk is full; nothing of this statement was stored",
    "53400": "53400",  # configuration_limit_exceeded
    "55000": "55000",  # object_not_in_prerequisite_state
    "57014": "the statement took longer than the deadline; nothing of it was stored",
    "58030": "58030",  # io_error
    "XX000": "XX000",  # internal_error
    SLOW: "the statement took longer than the deadline; nothing of it was stored",
}
"""Of the server, or of its machine: the same call may succeed later."""
RAW: Final = ["22021", "23514", "42883", "54000"]
"""Of the data, or of our own SQL: the same call fails again, and the caller sees which it was."""
OF_AN_OUTCOME: Final = {"22021", "23514", "54000"}
"""Settle answers these for each outcome."""


@dataclass(frozen=True, slots=True)
class Faulty:
    """A database in which every statement of a role fails as it is told."""

    url: str
    db: psycopg.Connection
    direct: PostgresDriver

    @property
    def own_url(self) -> str:
        return self.url.replace("postgres@", "taskharbor_faulty@")

    def fail(self, kind: str | None) -> None:
        self.db.execute("UPDATE faults.fault SET kind = %s", [kind])


@pytest.fixture(scope="module")
def faulty() -> Iterator[Faulty]:
    with database() as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(_FAULTS)
        for (table,) in db.execute(_TABLES).fetchall():
            db.execute(_TRIGGER.format(table=table).encode())
        with closing(PostgresDriver(url)) as direct:
            yield Faulty(url, db, direct)
        db.execute("DROP OWNED BY taskharbor_faulty; DROP ROLE taskharbor_faulty")


# Writes fail by a trigger of the statement; reads by a policy, which holds for everybody but a superuser.
_FAULTS: Final = """
    CREATE ROLE taskharbor_faulty LOGIN;
    CREATE SCHEMA faults;
    CREATE TABLE faults.fault (kind text);
    INSERT INTO faults.fault VALUES (NULL);
    CREATE FUNCTION meet_fault() RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        asked text := (SELECT kind FROM faults.fault);
    BEGIN
        IF asked = 'slow' THEN
            PERFORM pg_sleep(30);
        ELSIF asked IS NOT NULL AND current_user = 'taskharbor_faulty' THEN
            RAISE 'fault % on request', asked USING ERRCODE = asked;
        END IF;
        RETURN true;
    END $$;
    CREATE FUNCTION meet_fault_first() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM meet_fault();
        RETURN NULL;
    END $$;
    GRANT USAGE ON SCHEMA faults TO taskharbor_faulty;
    GRANT ALL ON ALL TABLES IN SCHEMA public, faults TO taskharbor_faulty;
    GRANT pg_signal_backend TO taskharbor_faulty;
    ALTER TABLE th_jobs ENABLE ROW LEVEL SECURITY;
    CREATE POLICY fault ON th_jobs TO taskharbor_faulty USING (meet_fault());
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
    FOR EACH STATEMENT EXECUTE FUNCTION meet_fault_first()
"""


@pytest.fixture
def driver(faulty: Faulty) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(faulty.own_url, deadline=DEADLINE)) as driver:
        driver.inspector.now()
        yield driver
        faulty.fail(None)


def asked_for(verb: Callable[[PostgresDriver], VerbCase], faulty: Faulty) -> VerbCase:
    faulty.fail(None)
    empty(faulty.url)
    return verb(faulty.direct)


@pytest.mark.parametrize("verb", VERBS)
def test_trouble_of_the_server_is_a_store_that_is_out_of_reach_and_nothing_was_done(
    verb: str, faulty: Faulty, driver: PostgresDriver
) -> None:
    for kind, words in AWAY.items():
        asked = asked_for(VERBS[verb], faulty)
        before = rows(faulty)
        faulty.fail(kind)

        with pytest.raises(StoreUnavailable) as failed:
            asked.call(driver)
        faulty.fail(None)

        assert words in str(failed.value)
        assert "\n" not in str(failed.value)
        assert failed.value.retry_in is None, "the server is there: a repeat may succeed at once"
        assert rows(faulty) == before
        works(asked, driver)


@pytest.mark.parametrize("verb", VERBS)
def test_trouble_with_the_data_keeps_its_own_error_and_nothing_was_done(
    verb: str, faulty: Faulty, driver: PostgresDriver
) -> None:
    for kind in RAW:
        asked = asked_for(VERBS[verb], faulty)
        before = rows(faulty)
        faulty.fail(kind)

        if verb == "settle" and kind in OF_AN_OUTCOME:
            assert {type(answer) for answer in asked.call(driver)} == {OutcomeNotStorable}
        else:
            with pytest.raises(psycopg.Error) as failed:
                asked.call(driver)
            assert failed.value.sqlstate == kind
        faulty.fail(None)

        assert rows(faulty) == before
        works(asked, driver)


def rows(faulty: Faulty) -> list[Any]:
    """Return all that there is of jobs, their attempts and their keys."""
    return [
        faulty.db.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()
        for table in ("th_jobs", "th_attempts", "th_keys", "th_outbox")
    ]


def works(asked: VerbCase, driver: PostgresDriver) -> None:
    """Make the same call again, on the same driver: it has the same effect as if nothing had happened."""
    asked.check(asked.call(driver))


NO_TIME: Final = timedelta(0)
CALLS: Final[dict[str, Callable[[PostgresDriver], object]]] = {
    "bury": lambda driver: driver.maintenance.bury(limit=10),
    "purge": lambda driver: driver.maintenance.purge(older_than=NO_TIME, limit=10),
    "take duty": lambda driver: driver.maintenance.claim_duty("sweep", every=NO_TIME),
    "forget workers": lambda driver: driver.maintenance.prune_workers(unseen_for=NO_TIME),
    "forget audit": lambda driver: driver.maintenance.prune_audit(older_than=NO_TIME, limit=10),
    "take from the outbox": lambda driver: driver.maintenance.claim_outbox(limit=10, lock=NO_TIME),
    "roll up": lambda driver: driver.maintenance.roll_up(keep=NO_TIME),
    "pause": lambda driver: driver.control.pause(["default"], by="me"),
    "resume": lambda driver: driver.control.resume(["default"]),
    "find": lambda driver: driver.inspector.find(JobFilter(), limit=10),
}
"""Calls that move no job of the two tests above: for these it is enough that they tell one kind from the other."""
UNHURRIED: Final = {"purge"}
"""Calls of retention, which may take minutes."""


@pytest.mark.parametrize("name", CALLS)
def test_upkeep_control_and_reads_tell_trouble_of_the_server_from_their_own(
    name: str, faulty: Faulty, driver: PostgresDriver
) -> None:
    asked_for(inserting(1, ["a"]), faulty).call(faulty.direct)

    for kind in ("58030", READ_ONLY, *(() if name in UNHURRIED else (SLOW,))):
        faulty.fail(kind)
        with pytest.raises(StoreUnavailable):
            CALLS[name](driver)
    faulty.fail("22021")
    with pytest.raises(psycopg.errors.CharacterNotInRepertoire):
        CALLS[name](driver)
    faulty.fail(None)

    CALLS[name](driver)
