"""Tasks of the site. They append to `RAN`, since the worker of a test runs in the same process."""

from __future__ import annotations

from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import connection

from taskharbor.integrations.django import harbor_of
from taskharbor.integrations.django.tasks_api import PACKAGE
from tests.support.django_site.models import Order

if PACKAGE == "django.tasks":
    from django.tasks import task
else:
    from django_tasks import task

RAN: Final[list[Any]] = []
harbor = harbor_of()


@task()  # type: ignore[untyped-decorator,unused-ignore]  # Django has no annotations
def ship(order: int, *, fast: bool = False) -> dict[str, Any]:
    RAN.append(("ship", order))
    return {"order": order, "fast": fast}


@task(takes_context=True)  # type: ignore[untyped-decorator,unused-ignore]  # as above
def count_attempts(context: Any, fails: int) -> int:
    RAN.append(("count_attempts", context.attempt))
    if context.attempt <= fails:
        raise ValueError(f"attempt {context.attempt}")
    return int(context.attempt)


@task()  # type: ignore[untyped-decorator,unused-ignore]  # as above
async def count_orders() -> int:
    return int(await Order.objects.acount())


@task()  # type: ignore[untyped-decorator,unused-ignore]  # as above
def query() -> None:
    Order.objects.count()
    RAN.append(connection.connection)


@task()  # type: ignore[untyped-decorator,unused-ignore]  # as above
async def aquery() -> None:
    RAN.append(await sync_to_async(_connected)())


def _connected() -> Any:
    Order.objects.count()
    return connection.connection


@task()  # type: ignore[untyped-decorator,unused-ignore]  # as above
def return_an_object() -> object:
    return object()


@task(max_attempts=2, timeout=30, priority=5, queue_name="bulk")  # type: ignore[untyped-decorator,unused-ignore]  # as above
def limited() -> None:
    raise LookupError("always")


@harbor.task(queue="native")
def resize(picture: str, width: int = 64) -> str:
    Order.objects.count()
    return f"{picture}-{width}"
