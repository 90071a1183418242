"""The worker: claims jobs, runs their handlers and records the outcomes."""

from taskharbor.observability.job_log import current_attempt
from taskharbor.worker.context import AttemptStopped, Context
from taskharbor.worker.worker import Worker

__all__ = ["AttemptStopped", "Context", "Worker", "current_attempt"]
