"""The admin pages of the jobs. They are read-only: operators use the command line or the HTTP API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.template.response import TemplateResponse

from taskharbor.core.errors import PayloadNotDecodable
from taskharbor.core.ids import JobId
from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.core.text import is_storable
from taskharbor.integrations.django.models import HarborJob
from taskharbor.integrations.django.stores import aliases
from taskharbor.integrations.django.tasks_api import task_backends
from taskharbor.views import describe_end

if TYPE_CHECKING:
    from taskharbor.core.model import Job
    from taskharbor.harbor import Harbor

PAGE_SIZE: Final = 50


@admin.register(HarborJob)
class JobAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django has no annotations
    """Lists the jobs of a backend, newest first, and shows one with its attempts."""

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002  Django's signature
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002  as above
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002  as above
        return False

    def changelist_view(self, request: Any, extra_context: dict[str, Any] | None = None) -> Any:
        """Show a page of jobs, filtered by the parameters *status*, *queue* and *type*."""
        self._check_permission(request)
        alias, harbor = self._harbor(request)
        given = {name: request.GET.get(name, "").strip() for name in ("status", "queue", "type", "after")}
        if not all(map(is_storable, given.values())):
            raise Http404("no job has the NUL character of this filter")  # noqa: TRY003  as below
        status = next((each for each in Status if each.value == given["status"]), None)
        wanted = JobFilter(
            queue=given["queue"] or None,
            type=given["type"] or None,
            statuses=None if status is None else frozenset({status}),
        )
        page = harbor.driver.inspector.find(wanted, limit=PAGE_SIZE, after=_job_id(given["after"]))
        query = request.GET.copy()
        query["after"] = page.after or ""
        context = {
            "title": "Jobs",
            "jobs": page.jobs,
            "next": query.urlencode() if page.after else "",
            "given": given,
            "statuses": [each.value for each in Status],
            "queues": [each.name for each in harbor.driver.inspector.queues()],
        }
        return self._page(request, "jobs", {**context, "backend": alias, **(extra_context or {})})

    def change_view(
        self, request: Any, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show a job, its arguments, its result and its attempts."""
        del form_url
        self._check_permission(request)
        alias, harbor = self._harbor(request)
        job_id = _job_id(object_id)
        job = None if job_id is None else harbor.driver.inspector.get([job_id]).get(job_id)
        if job is None:
            raise Http404(f"there is no job {object_id}")  # noqa: TRY003  Django shows it
        attempts = harbor.driver.inspector.attempts([job.id])
        context = {"title": f"Job {job.id}", "job": job, "end": describe_end(job), "attempts": attempts}
        context["payload"] = _payload(job, harbor)
        return self._page(request, "job", {**context, "backend": alias, **(extra_context or {})})

    def _check_permission(self, request: Any) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _harbor(self, request: Any) -> tuple[str, Harbor]:
        known = aliases()
        alias = request.GET.get("backend", known[0] if known else "")
        if alias not in known:
            raise Http404("TASKS has no such backend of TaskHarbor")  # noqa: TRY003  as above
        return alias, task_backends[alias].harbor

    def _page(self, request: Any, name: str, context: dict[str, Any]) -> Any:
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "backends": aliases()}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/taskharbor/{name}.html", {**shared, **context})


def _payload(job: Job, harbor: Harbor) -> str:
    job.use_codec(harbor.codec)
    try:
        return json.dumps(job.data, indent=2, default=str)
    except PayloadNotDecodable as error:
        return str(error)


def _job_id(text: str) -> JobId | None:
    try:
        return JobId(UUID(text))
    except ValueError:
        return None
