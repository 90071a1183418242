"""The isolation of a worker: its options, what its children import, and their start."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from taskharbor.core.codec import codec_name
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.sizes import as_size
from taskharbor.worker.isolation.pool import ChildPool
from taskharbor.worker.isolation.zygote import ChildApp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.codec import Codec
    from taskharbor.drivers.base import Driver
    from taskharbor.worker.handlers import HandlerRegistry


class Isolation:
    """The children of a worker, which are started only if one of its handlers is isolated."""

    def __init__(
        self, driver: Driver, handlers: HandlerRegistry, *, max_jobs: int, max_memory: int | str | None
    ) -> None:
        if max_jobs < 1:
            raise UsageError(Problem(field="child_max_jobs", value=str(max_jobs), rule="must be at least 1"))
        memory = None if max_memory is None else as_size(max_memory, "child_max_memory")
        self.children = ChildPool(max_jobs=max_jobs, max_memory=memory)
        self._driver = driver
        self._handlers = handlers
        self._app: Callable[[], str | None] = lambda: None
        self._url: str | None = None

    def use_app(self, app: str | Callable[[], str | None], url: str | None) -> None:
        name = app
        self._app = (lambda: name) if isinstance(name, str) else name
        self._url = url

    @property
    def is_on(self) -> bool:
        """Whether any handler is isolated."""
        return bool(self._handlers.isolated_types)

    @property
    def is_total(self) -> bool:
        """Whether all handlers are isolated."""
        return self.is_on and self._handlers.isolated_types == self._handlers.types

    def start(self, codec: Codec) -> None:
        """Start the process that children are forked from. Raises `UsageError` if the handlers cannot be isolated."""
        if not self.is_on or self.children.is_started:
            return
        self._check_store()
        app = self._app()
        if app is None:
            rule = (
                "child processes must import the harbor; assign it to a variable of a module, "
                "or call worker.use_app('module:attribute')"
            )
            raise UsageError(Problem(field="isolate", value="a harbor without a name", rule=rule))
        types = self._handlers.isolated_types
        self.children.start(ChildApp(app=app, url=self._url, codec=codec_name(codec), types=types))

    @contextmanager
    def ended_by_error(self) -> Iterator[None]:
        """End the children if the rest of the worker cannot be started."""
        try:
            yield
        except BaseException:
            self.children.close()
            raise

    def _check_store(self) -> None:
        from taskharbor.drivers.memory import MemoryDriver  # noqa: PLC0415  only isolated tasks need it

        if isinstance(self._driver, MemoryDriver):
            rule = "another process cannot use a store in memory; use sqlite:/// or postgresql://"
            raise UsageError(Problem(field="isolate", value="memory://", rule=rule))
