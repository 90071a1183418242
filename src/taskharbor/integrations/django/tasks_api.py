"""The names of Django's task framework: ``django.tasks`` of Django 6, or its backport ``django_tasks`` for 5.2."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

PACKAGE: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"
_base: Final[Any] = import_module(f"{PACKAGE}.base")
_backends: Final[Any] = import_module(f"{PACKAGE}.backends.base")
_exceptions: Final[Any] = import_module(f"{PACKAGE}.exceptions")
_signals: Final[Any] = import_module(f"{PACKAGE}.signals")
_framework: Final[Any] = import_module(PACKAGE)
_json: Final[Any] = import_module("django.utils.json" if PACKAGE == "django.tasks" else "django_tasks.utils")

BaseTaskBackend: Any = _backends.BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
# The backport has longer names for two exceptions.
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
normalize_json: Any = _json.normalize_json
task_backends: Any = _framework.task_backends
task_enqueued: Any = _signals.task_enqueued
task_finished: Any = _signals.task_finished
task_started: Any = _signals.task_started
