"""Requests for jobs whose task is named by its type, as the command line and the HTTP API enqueue them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from taskharbor.core.errors import UnknownType
from taskharbor.core.request import JobRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.task_options import CallOptions
    from taskharbor.tasks import Task

    Tasks = Mapping[str, Task[..., Any, Any]]


def request_for(
    tasks: Tasks, type: str, payload: object, options: CallOptions, *, accept_unknown: bool = False
) -> JobRequest:
    """Return the request for a job of *type*, with the options of its task unless *options* has them.

    *payload* is JSON: the arguments of the call by name, or None for a call without arguments. The type may be an alias
    and is kept, since workers of an earlier release know only that one. If there are no *tasks*, any type and payload
    are accepted. Raises `UnknownType`, unless *accept_unknown*, and `InvalidRequest` if the task does not take the
    payload.
    """
    task = task_of(tasks, type)
    if task is not None:
        return replace(task.request(payload_for(tasks, type, payload), options), type=type)
    if tasks and not accept_unknown:
        raise UnknownType(type, tuple(sorted(each for task in tasks.values() for each in task.types)))
    return JobRequest(type=type, payload=payload, **cast("dict[str, Any]", options))


def payload_for(tasks: Tasks, type: str, payload: object) -> object:
    """Return the payload to store for a job of *type*; *payload* is JSON. Raises `InvalidRequest`."""
    task = task_of(tasks, type)
    return payload if task is None else task.arguments.pack_json({} if payload is None else payload)


def task_of(tasks: Tasks, type: str) -> Task[..., Any, Any] | None:
    """Return the task that has *type* as its type or as an alias."""
    return tasks.get(type) or next((task for task in tasks.values() if type in task.types), None)
