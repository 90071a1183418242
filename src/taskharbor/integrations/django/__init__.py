"""TaskHarbor for Django: a backend for Django's tasks, whose jobs are stored in your database by your transactions.

Add "taskharbor.integrations.django" to INSTALLED_APPS, and name the backend in TASKS::

    TASKS = {"default": {"BACKEND": "taskharbor.integrations.django.TaskHarborBackend"}}
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from taskharbor.integrations.django.backend import TaskHarborBackend
    from taskharbor.integrations.django.results import Canceled, WorkerLost
    from taskharbor.integrations.django.stores import harbor_of
    from taskharbor.integrations.django.task import HarborTask

__all__ = ["Canceled", "HarborTask", "TaskHarborBackend", "WorkerLost", "harbor_of"]

# Imported on first use: Django imports this package before its settings and apps are ready.
_HOMES: Final = {
    "Canceled": "results",
    "HarborTask": "task",
    "TaskHarborBackend": "backend",
    "WorkerLost": "results",
    "harbor_of": "stores",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # noqa: TRY003  Python's standard message
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
