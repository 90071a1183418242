"""Running jobs."""

from taskharbor.worker.context import Context, Stopped, running
from taskharbor.worker.worker import Worker

__all__ = ["Context", "Stopped", "Worker", "running"]
