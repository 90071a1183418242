"""The conformance kit, run against PostgreSQL without the newest migration.

Code is deployed before its migration, so everything that does not need the migration must work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.testing.conformance import *
from tests.conformance.test_drivers import postgres
from tests.support.postgres import PREVIOUS, emptied_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.testing.conformance import Subject

NEEDS_NEWEST: Final = [
    "test_a_call_saves_each_log_by_itself",
    "test_a_refusal_is_recorded_once_per_attempt_at_the_stores_time",
    "test_a_requeue_is_not_an_attempt_with_lines",
    "test_a_stopped_worker_is_a_past_one_with_the_time_of_its_stop",
    "test_a_worker_record_holds_its_last_heartbeat_at_the_stores_time",
    "test_a_worker_that_comes_back_is_no_past_one",
    "test_an_unseen_worker_is_a_past_one_that_did_not_stop",
    "test_attempts_that_ended_otherwise_are_not_lost",
    "test_lines_are_read_in_the_order_of_the_jobs_that_are_asked_for",
    "test_lines_are_refused_before_the_outcome_is_recorded",
    "test_lines_are_removed_with_their_job_when_it_is_pruned",
    "test_lines_of_a_dead_letter_are_removed_when_it_is_purged",
    "test_lines_of_a_lost_attempt_and_of_another_token_are_refused",
    "test_lines_of_an_earlier_attempt_are_saved_after_a_later_one_has_ended",
    "test_lines_saved_again_stay_as_they_were",
    "test_past_workers_are_listed_by_id_and_removed_after_their_retention",
    "test_refusals_are_pruned_with_their_job_only",
    "test_the_attempts_lost_with_a_worker_are_listed_newest_first",
    "test_a_key_is_revoked_with_the_sessions_made_from_it",
    "test_adding_a_session_removes_only_expired_sessions",
    "test_a_job_that_no_longer_has_a_status_of_the_filter_is_refused",
    "test_a_pause_has_a_reason_and_ends_by_itself",
    "test_a_run_is_stored_with_the_jobs_of_its_fire_time",
    "test_a_second_fire_of_a_schedule_stores_no_run",
    "test_runs_are_listed_for_each_schedule_newest_first",
    "test_the_newest_runs_of_a_schedule_are_kept",
    "test_the_audit_of_one_actor_or_action_is_listed_by_itself",
    "test_the_audit_of_one_target_is_listed_by_itself",
    "test_the_lines_of_each_attempt_are_kept_as_they_are",
    "test_the_lines_of_the_newest_attempts_of_a_job_are_kept",
    "test_an_operation_is_stored_as_it_was_requested",
    "test_an_operation_is_stored_once_under_its_id",
    "test_unknown_operations_are_missing_in_the_answer",
    "test_operations_are_listed_newest_first_without_their_jobs",
    "test_unfinished_operations_are_returned_with_the_time_until_their_next_step",
    "test_an_operation_requeues_dead_and_canceled_jobs",
    "test_a_requeue_without_options_makes_jobs_due_now_with_as_many_attempts",
    "test_an_operation_cancels_waiting_jobs_and_asks_running_ones_to_stop",
    "test_an_operation_reschedules_waiting_jobs",
    "test_an_operation_purges_dead_letters_except_those_with_an_unpublished_event",
    "test_jobs_that_do_not_exist_or_are_in_another_state_are_refused",
    "test_jobs_that_ended_after_the_operation_was_created_are_left_out",
    "test_jobs_created_after_the_operation_are_left_out",
    "test_a_purge_leaves_out_jobs_that_died_less_than_its_age_ago",
    "test_a_step_is_performed_once",
    "test_a_step_returns_the_jobs_that_it_has_canceled",
    "test_a_suspended_caller_does_not_cancel_a_job_again",
    "test_a_step_is_not_performed_before_its_time",
    "test_the_next_step_waits_for_its_pause",
    "test_a_search_continues_where_the_last_step_ended",
    "test_counts_of_steps_add_up",
    "test_a_stopped_operation_changes_no_more_jobs",
    "test_only_an_operation_that_has_not_ended_is_stopped",
    "test_ended_operations_are_pruned_by_their_age",
    "test_a_worker_is_woken_by_the_jobs_of_an_operation",
    "test_a_series_begins_with_a_whole_step_and_ends_before_until",
    "test_a_series_that_sums_up_too_many_rows_is_refused",
    "test_a_series_with_too_many_points_is_refused",
    "test_a_lease_ends_whatever_became_of_the_record_of_its_worker",
    "test_a_requeued_job_arrives_again",
    "test_arrivals_less_ends_are_the_living_jobs",
    "test_counts_by_minute_are_kept_for_hours_and_others_for_longer",
    "test_deaths_are_counted_by_hour_and_group",
    "test_depths_equal_a_full_scan_at_each_roll_up",
    "test_ended_jobs_are_counted_by_minute_queue_and_status",
    "test_lost_attempts_are_counted_by_type",
    "test_of_old_depths_each_fifteenth_minute_is_kept",
    "test_series_equal_the_sums_of_what_was_recorded",
    "test_statistics_older_than_the_retention_are_removed",
    "test_versions_have_the_times_of_their_first_and_last_heartbeat",
    "test_the_refusals_of_one_job_are_listed_oldest_first",
]
"""Cases that need the newest migration."""
for _name in NEEDS_NEWEST:
    del globals()[_name]  # a KeyError means that there is no such case


@pytest.fixture
def subject() -> Iterator[Subject]:
    subject = postgres(emptied_at(PREVIOUS))
    yield subject
    subject.driver.close()
