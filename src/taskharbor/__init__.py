"""TaskHarbor: background jobs that are never lost and never run twice at once.

The database decides; the queue only delivers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from taskharbor._version import __version__

if TYPE_CHECKING:
    from taskharbor.client import Client
    from taskharbor.core.codec import JsonCodec
    from taskharbor.core.errors import JobFailed, ResultTimeout, TaskHarborError
    from taskharbor.core.model import Job
    from taskharbor.core.outcome import Cancel, DeadLetter, Retry, Snooze
    from taskharbor.core.request import JobRequest
    from taskharbor.core.results import Enqueued
    from taskharbor.core.retry import Exponential, Fixed, Never, RetryPolicy
    from taskharbor.core.states import Status
    from taskharbor.drivers.memory import MemoryDriver
    from taskharbor.enqueuer import DueTaskEnqueuer
    from taskharbor.harbor import Harbor
    from taskharbor.tasks import Call, Handle, Task
    from taskharbor.worker.context import Context
    from taskharbor.worker.worker import Worker

__all__ = [
    "Call",
    "Cancel",
    "Client",
    "Context",
    "DeadLetter",
    "DueTaskEnqueuer",
    "Enqueued",
    "Exponential",
    "Fixed",
    "Handle",
    "Harbor",
    "Job",
    "JobFailed",
    "JobRequest",
    "JsonCodec",
    "MemoryDriver",
    "Never",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "Status",
    "Task",
    "TaskHarborError",
    "Worker",
    "__version__",
]

# A name is imported when it is first asked for: `taskharbor --help` asks for none of them.
_HOMES: Final = {
    "Call": "tasks",
    "Cancel": "core.decide",
    "Client": "client",
    "Context": "worker.context",
    "DeadLetter": "core.decide",
    "DueTaskEnqueuer": "enqueuer",
    "Enqueued": "core.answers",
    "Exponential": "core.retry",
    "Fixed": "core.retry",
    "Handle": "tasks",
    "Harbor": "harbor",
    "Job": "core.model",
    "JobFailed": "core.errors",
    "JobRequest": "core.request",
    "JsonCodec": "core.codec",
    "MemoryDriver": "drivers.memory",
    "Never": "core.retry",
    "ResultTimeout": "core.errors",
    "Retry": "core.decide",
    "RetryPolicy": "core.retry",
    "Snooze": "core.decide",
    "Status": "core.states",
    "Task": "tasks",
    "TaskHarborError": "core.errors",
    "Worker": "worker.worker",
}


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # noqa: TRY003  Python's own words
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
