from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskharbor.core.errors import UsageError
from taskharbor.drivers.connect import NotAUrl, connect, mask_url, schema_for, store_kind
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.migrate import migrate_up
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.installation import install_command

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "c4n4ry"


@pytest.mark.parametrize("url", ["memory://", "MEMORY://"])
def test_a_memory_url_opens_a_memory_store(url: str) -> None:
    driver = connect(url)

    assert store_kind(url) == "memory"
    assert isinstance(driver, MemoryDriver)


def test_each_memory_store_is_its_own() -> None:
    connect("memory://").control.pause(["mail"], by="ops")

    assert connect("memory://").inspector.queues() == []


def test_a_sqlite_url_opens_the_file_that_it_names(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    driver = connect(url)

    assert store_kind(url) == "sqlite"
    assert isinstance(driver, SqliteDriver)
    assert (tmp_path / "jobs.db").exists()
    driver.close()


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("SQLite:///jobs.db", "jobs.db"),
        ("sqlite:///sub/jobs.db", "sub/jobs.db"),
        ("sqlite:///my%20jobs%3F.db", "my jobs?.db"),
        ("sqlite:///{}/jobs.db", "jobs.db"),
    ],
)
def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(
    url: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub" if "{}" in url else tmp_path)

    schema_and_migrations = schema_for(url.format(tmp_path))

    assert schema_and_migrations is not None
    migrate_up(*schema_and_migrations)
    assert (tmp_path / file).exists()


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite:///folder/", "sqlite://jobs.db", "sqlite:///jobs.db?mode=ro"],
)
def test_a_sqlite_url_without_a_file_is_answered_with_how_to_name_one(url: str) -> None:
    with pytest.raises(NotAUrl) as caught:
        connect(url)

    hint = "is not the URL of a file; write sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
    assert str(caught.value) == f"{url!r} {hint}"


def test_a_sqlite_store_that_no_second_connection_could_see_is_refused() -> None:
    with pytest.raises(NotAUrl):
        connect("sqlite:///:memory:")


def test_a_sqlite_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError) as caught:
        connect(f"sqlite://app:{CANARY}@db/app")

    assert CANARY not in str(caught.value)


def test_a_store_in_memory_has_no_schema() -> None:
    assert schema_for("memory://") is None


def test_no_driver_is_imported_before_its_store_is_opened() -> None:
    script = (
        "import sys, taskharbor.drivers.connect;"
        "print({'sqlite3', 'psycopg', 'taskharbor.drivers.memory', 'taskharbor.drivers.sqlite'} & {*sys.modules})"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_a_postgres_url_is_opened_without_connecting(scheme: str) -> None:
    driver = connect(f"{scheme}://app@127.0.0.1:1/app?schema=jobs&sslmode=disable&pooler=transaction")

    assert isinstance(driver, PostgresDriver)
    assert store_kind(f"{scheme}://db/app") == "postgres"
    driver.close()


def test_an_unknown_pooler_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="pooler=transaction is for a pooler in transaction mode"):
        connect("postgresql://db/app?pooler=session")


def test_claims_are_asynchronous_only_if_the_url_says_so() -> None:
    with pytest.raises(UsageError, match="claims=asynchronous claims jobs without waiting for the disk"):
        connect("postgresql://db/app?claims=fast")


def test_a_driver_that_is_not_installed_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.drivers.connect.find_spec", lambda _: None)

    with pytest.raises(UsageError) as caught:
        connect(f"postgresql://app:{CANARY}@db/app")

    assert str(caught.value) == f"the postgres driver is not installed; run: {install_command('postgres')}"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("memmory", "memory"), ("sqlite3", "sqlite"), ("postgre", "postgres"), ("postgresql+psycopg", "postgresql")],
)
def test_an_unknown_scheme_is_answered_with_the_nearest_known_one(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        connect(f"{typed}://app:{CANARY}@db/app")

    assert str(caught.value) == f"no store has URLs that begin with {typed}://; did you mean {meant}://?"


def test_an_unknown_scheme_without_a_near_match_lists_the_stores() -> None:
    with pytest.raises(UsageError) as caught:
        connect("redis://localhost")

    assert (
        str(caught.value)
        == "no store has URLs that begin with redis://; use one such as postgresql://localhost/app or sqlite:///jobs.db"
    )


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("", ""),
        ("memory", "memory"),
        ("jobs.db", "jobs.db"),
        (f"app:{CANARY}@db/app", "app:***@db/app"),
        (f"host=db user=app password={CANARY}", "***"),
        (f"postgresql:app:{CANARY}@db", "postgresql:***@db"),
        (f"postgresql:/app:{CANARY}@db", "***"),
        (f"postgresql:/app:{CANARY}", "***"),
    ],
)
def test_an_invalid_url_is_shown_without_its_password(given_: str, shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        connect(given_)

    assert (
        str(caught.value)
        == f"{shown!r} is not the URL of a store; write one such as postgresql://localhost/app or sqlite:///jobs.db"
    )


def test_an_error_about_a_url_contains_no_password() -> None:
    error = NotAUrl(f"app:{CANARY}@db/app")

    assert CANARY not in repr(error)
    assert CANARY.encode() not in pickle.dumps(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "sqlite:///jobs.db",
        "sqlite:////var/lib/jobs.db",
        "sqlite:///C:/jobs.db",
        "postgresql://localhost/app",
        "postgresql://app@db.example.com:5432/app?sslmode=require&application_name=web",
        "postgresql://app@[2001:db8::1]:5432/app",
        "postgresql://one:5432,two:5433/app?target_session_attrs=read-write",
        "postgresql://%2Fvar%2Frun%2Fpostgresql/app",
        "postgresql:///app?host=/tmp",
    ],
)
def test_a_url_without_secrets_is_shown_as_it_is(url: str) -> None:
    assert mask_url(url) == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:{}@db:5432/app", "postgresql://app:***@db:5432/app"),
        ("postgresql://app:a%40{}@db/app", "postgresql://app:***@db/app"),
        ("postgresql://app:a:{}@db/app", "postgresql://app:***@db/app"),
        ("redis://:{}@cache", "redis://:***@cache"),
        ("postgresql://db/app?user=app&password={}", "postgresql://db/app?user=app&password=***"),
        ("postgresql://db/app?password=a&{}=1", "postgresql://db/app?password=***"),
        ("postgresql://db/app?sslpassword={}&sslmode=require", "postgresql://db/app?sslpassword=***"),
        ("postgresql://db/app?OAuth_Client_Secret={}", "postgresql://db/app?OAuth_Client_Secret=***"),
        ("postgresql://db/app?scram_client_key={}", "postgresql://db/app?scram_client_key=***"),
        ("https://queue/?access_token={}", "https://queue/?access_token=***"),
        ("postgresql://db/app?options=-cpassword%3D{}", "postgresql://db/app?options=-cpassword%3D***"),
    ],
)
def test_passwords_and_secret_parameters_are_masked(url: str, shown: str) -> None:
    assert mask_url(url.format(CANARY)) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:a@{}@db/app",
        "postgresql://app:a/{}@db/app",
        "postgresql://app:1/{}@db/app",
        "postgresql://app:a?{}@db/app",
        "postgresql://app:1?x={}@db/app",
        "postgresql://app:a#{}@db/app",
        "postgresql://app:a {}@db/app",
        "postgresql://app:a\n{}@db/app",
        "postgresql://app:{}",
        "postgresql://:{}",
        "postgresql://app%3A{}%40db/app",
        "postgresql://db/app?p%61ssword={}",
        "postgresql://db/app?password=a&{}",
        "postgresql://db:5432/app?password=a@{}",
    ],
)
def test_an_ambiguous_url_is_shown_as_its_scheme_only(url: str) -> None:
    assert mask_url(url.format(CANARY)) == "postgresql://***"


@given(st.text(), st.text())
@example("1/", "")
@example("@db/?x=", "&")
def test_no_password_is_shown(before: str, after: str) -> None:
    url = f"postgresql://app:{before}{CANARY}{after}@db/app"

    assert CANARY not in mask_url(url)


@given(st.text(), st.text())
@example("a&b=", "")
@example("a@", "")
def test_no_secret_parameter_is_shown(before: str, after: str) -> None:
    url = f"postgresql://db:5432/app?password={before}{CANARY}{after}&sslmode=require"

    assert CANARY not in mask_url(url)


@given(st.one_of(st.text(), st.text(":/@?&=#ab*%.pwd").map("postgresql://{}".format)))
def test_masking_twice_is_masking_once(url: str) -> None:
    assert mask_url(mask_url(url)) == mask_url(url)
