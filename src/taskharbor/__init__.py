"""TaskHarbor: durable background jobs, stored in your own database."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from taskharbor._version import __version__

if TYPE_CHECKING:
    from taskharbor.client import Client
    from taskharbor.core.codec import Codec, JsonCodec
    from taskharbor.core.errors import (
        EnqueueRefused,
        IdempotencyConflict,
        InvalidRequest,
        JobFailed,
        JobNotFound,
        LeaseLost,
        ResultTimeout,
        SchemaOutOfDate,
        StoreUnavailable,
        TaskHarborError,
        UsageError,
    )
    from taskharbor.core.model import Job
    from taskharbor.core.outcome import Cancel, DeadLetter, Retry, Snooze
    from taskharbor.core.request import JobRequest
    from taskharbor.core.results import Enqueued
    from taskharbor.core.retry import Exponential, Fixed, Never, RetryPolicy
    from taskharbor.core.states import Status
    from taskharbor.delivery.sqs import SqsTransport
    from taskharbor.drivers.memory import MemoryDriver
    from taskharbor.drivers.postgres import PostgresDriver as PostgresDriver
    from taskharbor.drivers.sqlite import SqliteDriver
    from taskharbor.enqueuer import DueTaskEnqueuer
    from taskharbor.harbor import Harbor
    from taskharbor.observability.job_log import JobLogFilter
    from taskharbor.tasks import Call, Handle, Task
    from taskharbor.worker.context import AttemptStopped, Context
    from taskharbor.worker.worker import Worker

__all__ = [
    "AttemptStopped",
    "Call",
    "Cancel",
    "Client",
    "Codec",
    "Context",
    "DeadLetter",
    "DueTaskEnqueuer",
    "EnqueueRefused",
    "Enqueued",
    "Exponential",
    "Fixed",
    "Handle",
    "Harbor",
    "IdempotencyConflict",
    "InvalidRequest",
    "Job",
    "JobFailed",
    "JobLogFilter",
    "JobNotFound",
    "JobRequest",
    "JsonCodec",
    "LeaseLost",
    "MemoryDriver",
    "Never",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "SchemaOutOfDate",
    "Snooze",
    "SqliteDriver",
    "SqsTransport",
    "Status",
    "StoreUnavailable",
    "Task",
    "TaskHarborError",
    "UsageError",
    "Worker",
    "__version__",
]
# PostgresDriver is not in __all__: `from taskharbor import *` must not need psycopg.

# Names are imported on first use, so that `taskharbor --help` stays fast.
_HOMES: Final = {
    "AttemptStopped": "worker.context",
    "Call": "tasks",
    "Cancel": "core.outcome",
    "Client": "client",
    "Codec": "core.codec",
    "Context": "worker.context",
    "DeadLetter": "core.outcome",
    "DueTaskEnqueuer": "enqueuer",
    "EnqueueRefused": "core.errors",
    "Enqueued": "core.results",
    "Exponential": "core.retry",
    "Fixed": "core.retry",
    "Handle": "tasks",
    "Harbor": "harbor",
    "IdempotencyConflict": "core.errors",
    "InvalidRequest": "core.errors",
    "Job": "core.model",
    "JobFailed": "core.errors",
    "JobLogFilter": "observability.job_log",
    "JobNotFound": "core.errors",
    "JobRequest": "core.request",
    "JsonCodec": "core.codec",
    "LeaseLost": "core.errors",
    "MemoryDriver": "drivers.memory",
    "Never": "core.retry",
    "PostgresDriver": "drivers.postgres",
    "ResultTimeout": "core.errors",
    "Retry": "core.outcome",
    "RetryPolicy": "core.retry",
    "SchemaOutOfDate": "core.errors",
    "Snooze": "core.outcome",
    "SqliteDriver": "drivers.sqlite",
    "SqsTransport": "delivery.sqs",
    "Status": "core.states",
    "StoreUnavailable": "core.errors",
    "Task": "tasks",
    "TaskHarborError": "core.errors",
    "UsageError": "core.errors",
    "Worker": "worker.worker",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # noqa: TRY003  Python's standard message
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
