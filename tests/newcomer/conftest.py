from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.testing.sqs import Endpoint
from tests.support.postgres import database
from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SHOP: Final = ROOT / "examples" / "shop"
AWS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A terminal in an empty folder."""
    return Shell(tmp_path)


@pytest.fixture
def shop(tmp_path: Path) -> Shell:
    """A terminal in a copy of the example shop, which uses a SQLite file."""
    shutil.copytree(SHOP, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    return Shell(tmp_path)


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The URL of a PostgreSQL database without tables."""
    with database(migrated=False) as url:
        yield url


@pytest.fixture
def sqs() -> Iterator[dict[str, str]]:
    """Environment variables that name a local SQS endpoint."""
    with Endpoint.start(seed=1) as endpoint:
        yield {**AWS, "AWS_ENDPOINT_URL_SQS": endpoint.url, "AWS_EC2_METADATA_DISABLED": "true"}
