"""Wrong uses of tasks: both type checkers must reject every marked line and no other."""

from __future__ import annotations

from taskharbor import Context, Fixed, Harbor, Retry

harbor = Harbor("memory://")


@harbor.task
def greet(number: int, *, lang: str = "en") -> str:
    return lang * number


@harbor.task
async def later(number: int) -> int:
    return number


@harbor.task
def with_context(ctx: Context, number: int) -> float:
    return number / 2


@harbor.task(queue=7)  # wrong
def queued() -> None: ...


@harbor.task(retires=3)  # wrong
def optioned() -> None: ...


@harbor.schedule("0 2 * * *", missed="sometimes")  # wrong
@harbor.task
def nightly() -> None: ...


@harbor.schedule("0 2 * * *", overlap="never")  # wrong
@harbor.task
def hourly() -> None: ...


@harbor.schedule("0 2 * * *", timezone="Europe/Paris")  # wrong
@harbor.task
def daily() -> None: ...


@harbor.schedule("0 2 * * *", window="6 hours")  # wrong
@harbor.task
def weekly() -> None: ...


@harbor.schedule("0 2 * * *")  # wrong
def no_task() -> None: ...


@harbor.task
def mixed(first: int, /, *rest: float, **more: bool) -> None: ...


@harbor.lifespan  # wrong
def resources() -> int:
    return 7


harbor.worker(concurency=5)  # wrong
harbor.worker(lease="30 s")  # wrong
harbor.include(Harbor)  # wrong
Harbor(names="dotted")  # wrong
Retry(after="30")  # wrong
Fixed("30")  # wrong
greet("7")  # wrong
mixed.enqueue(first=1)  # wrong
mixed.enqueue(1, "a")  # wrong
mixed.enqueue(1, loud="yes")  # wrong
greet.enqueue("7")  # wrong
greet.enqueue()  # wrong
greet.enqueue(7, 8)  # wrong
greet.enqueue(7, language="fr")  # wrong
greet.enqueue(7, lang=3)  # wrong
greet.using(delay=5).enqueue("7")  # wrong
greet.using(delay="5 minutes")  # wrong
greet.using(dealy=5)  # wrong
greet.call("7")  # wrong
with_context.enqueue("7")  # wrong
with_context.enqueue(Context, 7)  # wrong
number: int = greet.enqueue(7).result()  # wrong
text: str = with_context.enqueue(7).result()  # wrong
harbor.enqueue_many([greet.call(7), later.call("7")])  # wrong
harbor.enqueue_many([greet.enqueue(7)])  # wrong
handles: list[str] = harbor.enqueue_many([greet.call(7)])  # wrong


with harbor.testing() as harness:
    harness.assert_enqueued(greet, "7")  # wrong
    harness.refute_enqueued(with_context, Context, 7)  # wrong
    harness.advance(hours="1")  # wrong
    harness.crash_after("start")  # wrong


async def main() -> None:
    await later.aenqueue("7")  # wrong
    await greet.using(priority="high").aenqueue(7)  # wrong
    text: str = await later.enqueue(7).aresult()  # wrong
    other: str = await later(7)  # wrong
