"""Running jobs."""

from taskharbor.worker.context import AttemptStopped, Context, current_attempt
from taskharbor.worker.worker import Worker

__all__ = ["AttemptStopped", "Context", "Worker", "current_attempt"]
