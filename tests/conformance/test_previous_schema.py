"""The conformance kit, run against PostgreSQL without the newest migration.

Code is deployed before its migration, so everything that does not need the migration must work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.testing.conformance import *
from taskharbor.testing.conformance import Subject, settings
from tests.conformance.test_drivers import postgres
from tests.support.postgres import PREVIOUS, emptied_at

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDS_NEWEST: Final = [
    *sorted(name for name in vars(settings) if name.startswith("test_")),
    # Use of API keys:
    "test_a_use_leaves_a_revoked_key_revoked",
    "test_the_last_use_of_a_key_is_kept",
    # Lost slots of a worker:
    "test_a_worker_record_holds_its_last_heartbeat_at_the_stores_time",
    # When a publisher was last seen:
    "test_a_closed_event_cannot_be_claimed_or_settled",
    "test_a_job_that_died_once_is_pruned_after_its_event_is_closed",
    "test_a_publisher_is_recorded_once_per_minute_and_after_a_jump_back",
    "test_a_publisher_is_seen_when_it_claims_events_and_not_before",
    "test_an_event_is_closed_with_a_reason_if_no_publisher_was_seen",
    "test_events_are_closed_after_the_publisher_was_unseen_for_too_long",
    "test_events_are_closed_oldest_death_first_up_to_the_limit",
    "test_events_of_two_lives_of_a_job_are_closed_one_by_one",
    "test_only_events_of_deaths_that_are_old_enough_are_closed",
    "test_with_job_ids_only_events_of_those_jobs_are_closed",
]
"""Cases that need the newest migration, by name or by module."""
for _name in NEEDS_NEWEST:
    del globals()[_name]  # a KeyError means that there is no such case


@pytest.fixture
def subject() -> Iterator[Subject]:
    subject = postgres(emptied_at(PREVIOUS))
    yield subject
    subject.driver.close()
