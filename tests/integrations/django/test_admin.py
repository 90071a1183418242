"""The admin pages of the jobs."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import RequestFactory

from taskharbor.integrations.django.admin import JobAdmin
from taskharbor.integrations.django.models import HarborJob
from tests.support.django_project import work  # isort: split  # it configures Django
from tests.support.django_site.tasks import limited, ship


class Viewer(AnonymousUser):  # type: ignore[misc]  # Django has no annotations
    """A user who may see jobs, without a table of users."""

    is_active = is_staff = True

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        return obj is None and perm == "taskharbor.view_harborjob"

    def has_module_perms(self, _app: str) -> bool:
        return True


@pytest.fixture
def pages() -> JobAdmin:
    from django.contrib import admin  # noqa: PLC0415  it needs the settings

    return JobAdmin(HarborJob, admin.site)


def request(**parameters: str) -> Any:
    made = RequestFactory().get("/admin/taskharbor/job/", parameters)
    made.user = Viewer()
    return made


@pytest.mark.usefixtures("database")
def test_the_list_shows_the_jobs_that_match_the_filter(pages: JobAdmin) -> None:
    shipped, other = ship.enqueue(1), limited.enqueue()

    everything = pages.changelist_view(request()).render().content.decode()
    filtered = pages.changelist_view(request(queue="bulk", status="PENDING")).render().content.decode()

    assert shipped.id in everything
    assert other.id in everything
    assert shipped.id not in filtered
    assert other.id in filtered


@pytest.mark.usefixtures("database")
def test_a_job_is_shown_with_its_arguments_and_failed_attempts(pages: JobAdmin) -> None:
    result = limited.enqueue()
    work()

    shown = pages.change_view(request(), result.id).render().content.decode()

    assert "DEAD" in shown
    assert shown.count("LookupError: always") >= 2


@pytest.mark.usefixtures("sqlite")
def test_a_job_that_does_not_exist_is_not_found(pages: JobAdmin) -> None:
    for wrong in ("no-id", "01a1ec32-9881-75a8-a3da-7fedaaa1d60c"):
        with pytest.raises(Http404):
            pages.change_view(request(), wrong)


@pytest.mark.usefixtures("database")
def test_a_filter_with_nul_is_not_found(pages: JobAdmin) -> None:
    for name in ("status", "queue", "type", "after"):
        with pytest.raises(Http404):
            pages.changelist_view(request(**{name: "a\0"}))


@pytest.mark.usefixtures("sqlite")
def test_no_text_of_a_job_is_markup(pages: JobAdmin) -> None:
    result = ship.enqueue(1, **{"<i data-canary>": "<i data-canary>"})
    work()

    shown = pages.change_view(request(), result.id).render().content.decode()

    assert shown.count("&lt;i data-canary") > 4  # in the arguments and in the error
    assert "<i data-canary" not in shown


@pytest.mark.usefixtures("sqlite")
def test_nothing_can_be_changed_and_a_user_needs_the_permission(pages: JobAdmin) -> None:
    anonymous = request()
    anonymous.user = AnonymousUser()

    assert not pages.has_add_permission(request())
    assert not pages.has_change_permission(request())
    assert not pages.has_delete_permission(request())
    with pytest.raises(PermissionDenied):
        pages.changelist_view(anonymous)
